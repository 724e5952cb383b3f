//! Tests that read hostile bytes as answers of a registry of schemas and as stored schemas. No
//! input may cause a panic, and the cost must stay in proportion to the size of the input.

#[path = "../../fuzz/src/harness.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod harness;
#[path = "../../fuzz/src/stream.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod targets;

#[test]
fn no_bytes_are_a_panic_or_a_cost() {
    targets::ALL.iter().for_each(|target| target.check_cases());
}

#[test]
fn schemas_that_refer_to_each_other_come_to_an_end() {
    let _turn = harness::wait_for_turn();
    let reference = |name: &str| format!(r#"{{"name": "{name}", "subject": "s", "version": 1}}"#);
    let schema = |references: &str| format!(r#"{{"schema": "", "references": [{references}]}}"#);
    // The schema `a` refers to itself.
    let circle = format!("{}\n---\n{}", schema(&reference("a")), schema(&reference("a")));
    assert!(targets::REGISTRY_ANSWERS.check(circle.as_bytes()));
    // These are more references than a schema may have.
    let many: Vec<String> = (0..5000).map(|name| reference(&name.to_string())).collect();
    let many = format!("{}\n---\n{}", schema(&many.join(",")), schema(""));
    assert!(!targets::REGISTRY_ANSWERS.check(many.as_bytes()));
}
