//! The fuzz program of the target `candidates`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::rows::CANDIDATES.check(bytes);
});
