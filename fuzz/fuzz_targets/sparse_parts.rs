//! The fuzz program of the target `sparse_parts`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::rows::SPARSE_PARTS.check(bytes);
});
