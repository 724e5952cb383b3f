//! The fuzz program of the target `job_files`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::trainer::JOB_FILES.check(bytes);
});
