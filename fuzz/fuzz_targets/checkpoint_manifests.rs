//! The fuzz program of the target `checkpoint_manifests`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::trainer::CHECKPOINT_MANIFESTS.check(bytes);
});
