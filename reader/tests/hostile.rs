//! Tests that read hostile bytes as messages of streams and as their schemas. No input may cause a
//! panic, and the cost must stay in proportion to the size of the input.

#[path = "../../fuzz/src/harness.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod harness;
#[path = "../../fuzz/src/reader.rs"]
#[allow(unreachable_pub, reason = "the fuzz crate exports this module")]
mod targets;

#[test]
fn no_bytes_are_a_panic_or_a_cost() {
    targets::ALL.iter().for_each(|target| target.check_cases());
}

#[test]
fn packed_values_cost_in_proportion_to_their_bytes() {
    // Each byte is a value, so that no message of this size has more values.
    let values = vec![1; 1 << 20];
    let message = [&[0, 0, 0, 0, 1, 0, 0x1a, 0x80, 0x80, 0x40][..], &values].concat();
    let _turn = harness::wait_for_turn();
    // The time of the event is missing.
    assert!(!targets::PROTOBUF_MESSAGES.check(&message));
    let time = [0x32, 6, 0x08, 0x80, 0xe2, 0xcf, 0xaa, 0x06];
    assert!(targets::PROTOBUF_MESSAGES.check(&[&message[..], &time].concat()));
}
