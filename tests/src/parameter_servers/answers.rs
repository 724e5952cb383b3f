//! Tests of answers that are lost, and of frames that arrive twice or too late.

use super::proxy::{Act, FrameProxy, Way, once, op};
use super::runs::{
    TrainerProcess, addresses, outcome, replaced, small_place, train_alone, train_over,
};
use super::servers::ServerProcess;
use crate::harness::{JOB, Workplace};

/// The disturbances of one frame after which the client must ask again.
const DISTURBANCES: [(Way, Act); 4] = [
    (Way::Answer, Act::Lose),
    (Way::Question, Act::Lose),
    (Way::Question, Act::CutBehind),
    (Way::Question, Act::Twice),
];

/// Trains over a proxy that disturbs a frame of an operation. Returns the end of the run and the
/// number of frames that the server has received twice.
fn disturbed(
    place: &Workplace,
    output: &str,
    (way, op, act): (Way, u16, Act),
    more: &[&str],
) -> (super::runs::Ended, u64) {
    let server = ServerProcess::start(&place.path(""), more);
    let proxy = FrameProxy::start(&server.address, once(way, op, 7, act));
    let servers = [proxy.address.clone()];
    let trainer = TrainerProcess::start(place, output, &servers, (0, 1), &[]);
    let ended = trainer.end();
    assert_eq!(proxy.disturbed(), 1, "{output}");
    (ended, server.count("repeated_frames"))
}

#[test]
fn a_lost_answer_or_a_second_frame_changes_no_byte() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let expected = outcome(&place, "alone");
    for op in [op::PUSH, op::NORM, op::APPLY, op::PULL] {
        for (way, act) in DISTURBANCES {
            let output = format!("{op}-{way:?}-{act:?}");
            let (ended, repeated) = disturbed(&place, &output, (way, op, act), &[]);
            assert_eq!(ended.succeeded()["rewinds"].as_u64().unwrap_or(0), 0, "{output}");
            assert_eq!(outcome(&place, &output), expected, "{output}");
            // A question that is lost before the server has it is sent again only once.
            let is_repeated = (way, act) != (Way::Question, Act::Lose);
            assert!(repeated > 0 || !is_repeated, "{output}");
        }
    }
}

/// The counterpart of the test before: it shows that a server that repeats the work of a frame
/// gives another result.
#[test]
fn without_deduplication_a_lost_answer_changes_the_result() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let expected = outcome(&place, "alone");
    for op in [op::PUSH, op::APPLY] {
        let (output, more) = (format!("lost-{op}"), ["--without-deduplication"]);
        let lost = (Way::Answer, op, Act::Lose);
        let (ended, repeated) = disturbed(&place, &output, lost, &more);
        assert!(repeated > 0, "{output}");
        let is_equal = ended.status.success() && outcome(&place, &output) == expected;
        assert!(!is_equal, "{output}: the repeated work had no effect");
    }
}

/// Without clipping, a push changes rows at once, so a push that is done twice doubles a step.
#[test]
fn a_push_that_is_applied_at_once_is_applied_once() {
    let place = Workplace::new();
    let changes = [("clip_norm = 1.0\n", ""), ("epochs = 3\n", "epochs = 1\n")];
    place.write("job.toml", &replaced(JOB, &changes));
    train_alone(&place, "alone", &[]);
    let expected = outcome(&place, "alone");
    for op in [op::PUSH, op::SWEEP] {
        let lost = (Way::Answer, op, Act::Lose);
        let (ended, repeated) = disturbed(&place, &format!("once-{op}"), lost, &[]);
        ended.succeeded();
        assert!(repeated > 0);
        assert_eq!(outcome(&place, &format!("once-{op}")), expected, "{op}");
        let twice = format!("twice-{op}");
        let (ended, _) = disturbed(&place, &twice, lost, &["--without-deduplication"]);
        assert!(!ended.status.success() || outcome(&place, &twice) != expected, "{op}");
    }
}

#[test]
fn a_slow_connection_changes_no_byte() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let mut at = addresses(&servers);
    let proxy = FrameProxy::start(&at[1], |seen| match seen.step % 5 {
        3 => Act::Slow,
        _ => Act::Pass,
    });
    at[1].clone_from(&proxy.address);
    train_over(&place, "over", &at, 1, &[]);
    assert!(proxy.disturbed() > 5);
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

/// A frame of an earlier generation reaches a server in a later generation, in which the same step
/// is trained again.
#[test]
fn a_frame_of_an_earlier_generation_is_refused() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let mut servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let keeping =
        FrameProxy::start(&servers[1].address, once(Way::Question, op::PUSH, 7, Act::Keep));
    let holding =
        FrameProxy::start(&servers[0].address, once(Way::Question, op::APPLY, 9, Act::Hold));
    let at = [holding.address.clone(), keeping.address.clone()];
    let trainer = TrainerProcess::start(&place, "over", &at, (0, 1), &[]);
    holding.wait_for_disturbance();
    keeping.wait_for_disturbance();
    servers[0].kill_and_restart(&[]);
    holding.release();
    keeping.wait_for_generation(2);
    let before = servers[1].count("refused_frames");
    let answer = keeping.answer_to_kept_frame();
    assert!(answer.contains("generation"), "{answer}");
    let ended = trainer.end();
    assert_eq!(ended.succeeded()["rewinds"].as_u64(), Some(1));
    assert_eq!(servers[1].count("refused_frames"), before + 1);
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}
