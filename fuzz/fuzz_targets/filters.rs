//! The fuzz program of the target `filters`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::rows::FILTERS.check(bytes);
});
