//! Hostile bytes in the place of graphs and dense parameters: no panic, and no cost out of
//! proportion.

#[path = "../../fuzz/src/harness.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod harness;
#[path = "../../fuzz/src/nn.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod targets;

#[test]
fn no_bytes_are_a_panic_or_a_cost() {
    targets::ALL.iter().for_each(|target| target.check_cases());
}
