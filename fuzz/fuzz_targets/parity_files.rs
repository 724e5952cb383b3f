//! The fuzz program of the target `parity_files`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::scorer::PARITY_FILES.check(bytes);
});
