//! The fuzz program of the target `layer_packs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::rows::LAYER_PACKS.check(bytes);
});
