//! Hostile bytes in the place of manifests, pointers and side tables: no panic, and no cost out of
//! proportion.

#[path = "../../fuzz/src/harness.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod harness;
#[path = "../../fuzz/src/registry.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod targets;

#[test]
fn no_bytes_are_a_panic_or_a_cost() {
    targets::ALL.iter().for_each(|target| target.check_cases());
}

#[test]
fn a_table_of_impossible_width_is_refused() {
    let seed = (targets::VERSION_MANIFESTS.seeds)().remove(0);
    let text = String::from_utf8(seed).unwrap();
    let wide = text.replace("\"dim\": 4", "\"dim\": 18446744073709551615");
    assert_ne!(wide, text);
    let _turn = harness::wait_for_turn();
    assert!(!targets::VERSION_MANIFESTS.check(wide.as_bytes()));
}
