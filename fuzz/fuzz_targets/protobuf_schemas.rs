//! The fuzz program of the target `protobuf_schemas`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::reader::PROTOBUF_SCHEMAS.check(bytes);
});
