//! Hostile bytes in the place of parts of checkpoints and of layers: no panic, and no cost out of
//! proportion.

#[path = "../../fuzz/src/harness.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod harness;
#[path = "../../fuzz/src/rows.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod targets;

#[test]
fn no_bytes_are_a_panic_or_a_cost() {
    targets::ALL.iter().for_each(|target| target.check_cases());
}
