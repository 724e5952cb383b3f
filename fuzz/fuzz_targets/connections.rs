//! The fuzz program of the target `connections`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::serving::CONNECTIONS.check(bytes);
});
