//! Tests that read hostile bytes as messages of a parameter server. Reading must not panic, and its
//! cost must stay in proportion to the size of the message.

#[path = "../../fuzz/src/harness.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod harness;
#[path = "../../fuzz/src/ps.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod targets;

#[test]
fn no_bytes_are_a_panic_or_a_cost() {
    targets::ALL.iter().for_each(|target| target.check_cases());
}
