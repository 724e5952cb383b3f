//! The fuzz program of the target `graphs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::nn::GRAPHS.check(bytes);
});
