//! Tests that read hostile bytes as access files, key sets, tokens, keys and audit logs. No input
//! may cause a panic, and the cost must stay in proportion to the size of the input.

#[path = "../../fuzz/src/harness.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod harness;
#[path = "../../fuzz/src/access.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod targets;

use std::hint::black_box;
use std::panic::catch_unwind;
use std::time::Duration;

use zillion_device::machine::CpuTimes;

use harness::Target;

#[test]
fn no_bytes_are_a_panic_or_a_cost() {
    targets::ALL.iter().for_each(|target| target.check_cases());
}

/// Checks the target `read` on an input of one byte. Returns the message of the panic, or `None` if
/// the check passes.
fn failure(read: fn(&[u8]) -> bool) -> Option<String> {
    let target = Target { name: "sample", read, seeds: Vec::new };
    let panic = catch_unwind(move || target.check(b"x")).err()?;
    Some(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn the_oracle_finds_what_costs_too_much() {
    let _turn = harness::wait_for_turn();
    assert_eq!(failure(|bytes| bytes.len() == 1), None);
    let memory = failure(|_| !black_box(vec![1u8; 65 << 20]).is_empty());
    assert!(memory.expect("65 MiB are too much").contains("bytes of memory for 1 bytes"));
    let time = failure(|_| {
        let began = CpuTimes::now().own;
        while CpuTimes::now().own - began < Duration::from_millis(1100) {}
        true
    });
    assert!(time.expect("1.1 s are too much").contains("processor time for 1 bytes"));
}
