//! The fuzz program of the target `registry_answers`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::stream::REGISTRY_ANSWERS.check(bytes);
});
