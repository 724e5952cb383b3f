//! The fuzz program of the target `tokens`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::access::TOKENS.check(bytes);
});
