//! The fuzz program of the target `stored_schemas`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::stream::STORED_SCHEMAS.check(bytes);
});
