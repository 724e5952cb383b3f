//! The fuzz program of the target `protobuf_descriptors`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::reader::PROTOBUF_DESCRIPTORS.check(bytes);
});
