//! The fuzz program of the target `infer_messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::serving::INFER_MESSAGES.check(bytes);
});
