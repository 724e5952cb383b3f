//! The fuzz program of the target `key_files`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::access::KEY_FILES.check(bytes);
});
