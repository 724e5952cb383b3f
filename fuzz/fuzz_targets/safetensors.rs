//! The fuzz program of the target `safetensors`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::nn::SAFETENSORS.check(bytes);
});
