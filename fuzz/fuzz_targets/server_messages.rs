//! The fuzz program of the target `server_messages`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::ps::SERVER_MESSAGES.check(bytes);
});
