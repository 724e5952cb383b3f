//! The fuzz program of the target `table_parts`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    zillion_fuzz::rows::TABLE_PARTS.check(bytes);
});
