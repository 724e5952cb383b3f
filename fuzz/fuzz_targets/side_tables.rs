//! The fuzz program of the target `side_tables`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::registry::SIDE_TABLES.check(bytes);
});
