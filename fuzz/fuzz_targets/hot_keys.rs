//! The fuzz program of the target `hot_keys`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::rows::HOT_KEYS.check(bytes);
});
