//! The fuzz program of the target `key_sets`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::access::KEY_SETS.check(bytes);
});
