//! The fuzz target for bodies of requests: every protocol, with and without binary tensors, must
//! accept or refuse each body without a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    zillion_serving::read_body(body);
});
