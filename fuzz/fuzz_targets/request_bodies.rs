//! Bodies of requests from the outside: each protocol reads them, with and without binary tensors,
//! and accepts or refuses them, and never panics.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    zillion_serving::read_body(body);
});
