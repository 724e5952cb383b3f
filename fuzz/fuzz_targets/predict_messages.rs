//! The fuzz program of the target `predict_messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::serving::PREDICT_MESSAGES.check(bytes);
});
