//! The fuzz program of the target `item_deltas`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::scorer::ITEM_DELTAS.check(bytes);
});
