//! The fuzz program of the target `pointer_moves`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::registry::POINTER_MOVES.check(bytes);
});
