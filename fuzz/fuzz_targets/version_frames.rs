//! The fuzz program of the target `version_frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::registry::VERSION_FRAMES.check(bytes);
});
