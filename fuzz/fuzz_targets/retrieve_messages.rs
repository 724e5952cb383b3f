//! The fuzz program of the target `retrieve_messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::serving::RETRIEVE_MESSAGES.check(bytes);
});
