//! The fuzz program of the target `layer_directories`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::rows::LAYER_DIRECTORIES.check(bytes);
});
