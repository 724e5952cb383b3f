//! The fuzz program of the target `request_bodies`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::serving::REQUEST_BODIES.check(bytes);
});
