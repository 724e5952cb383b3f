//! The fuzz program of the target `access_files`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::access::ACCESS_FILES.check(bytes);
});
