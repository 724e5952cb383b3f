//! The fuzz program of the target `audit_logs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::access::AUDIT_LOGS.check(bytes);
});
