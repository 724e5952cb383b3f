//! Bodies of requests, as they come from anybody: read by each protocol, with and without binary tensors, refused or
//! taken, and never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    zillion_serving::read_body(body);
});
