//! Tests of servers and trainers that are killed. The run must end with the bytes of an undisturbed
//! run.

use super::proxy::{Act, FrameProxy, Way, once, op};
use super::runs::{TrainerProcess, addresses, outcome, small_place, start_all, train_alone};
use super::servers::ServerProcess;
use crate::harness::Workplace;

/// Asserts that a run was set back once, that it says so, and that it repeated steps.
fn assert_rewound(ended: &super::runs::Ended, repeated: u64) {
    let report = ended.succeeded();
    let count = |name: &str| report[name].as_u64();
    assert_eq!(count("rewinds"), Some(1), "{report}");
    assert_eq!(count("repeated_steps"), Some(repeated), "{report}");
    for text in ["was started again", "repeats", "set back 1 times"] {
        assert!(ended.said.contains(text), "no {text:?}:\n{}", ended.said);
    }
}

/// Kills one of several servers while the proxy before it holds a frame of a step. Returns the end
/// of the run.
fn killed_at(
    place: &Workplace,
    output: &str,
    (count, victim): (usize, usize),
    (way, op, step, act): (Way, u16, u64, Act),
) -> super::runs::Ended {
    let mut servers = ServerProcess::start_group(&place.path(""), count, &[]);
    let mut at = addresses(&servers);
    let proxy = FrameProxy::start(&at[victim], once(way, op, step, act));
    at[victim].clone_from(&proxy.address);
    let trainer = TrainerProcess::start(place, output, &at, (0, 1), &[]);
    proxy.wait_for_disturbance();
    if way == Way::Answer {
        assert_eq!(servers[victim].count("repeated_frames"), 0, "the frame was done once");
    }
    servers[victim].kill_and_restart(&[]);
    if act == Act::HoldAndLose {
        proxy.release();
    }
    trainer.end()
}

#[test]
fn a_server_is_killed_after_its_work_and_before_its_answer() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    // A checkpoint is written after step 5. With `Hold`, the connection does not end, as if the
    // host of the server had lost its power.
    for (op, step, act, repeated) in [
        (op::PUSH, 7, Act::HoldAndLose, 1),
        (op::APPLY, 8, Act::HoldAndLose, 2),
        (op::PULL, 4, Act::HoldAndLose, 3),
        (op::APPLY, 9, Act::Hold, 3),
    ] {
        let output = format!("killed-{op}-{act:?}");
        let ended = killed_at(&place, &output, (1, 0), (Way::Answer, op, step, act));
        assert_rewound(&ended, repeated);
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

#[test]
fn one_of_three_servers_is_killed_between_two_applies_of_a_step() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    for victim in 0..3 {
        let output = format!("killed-{victim}");
        // The other two servers apply step 9. The victim never sees the frame.
        let ended =
            killed_at(&place, &output, (3, victim), (Way::Question, op::APPLY, 9, Act::Hold));
        assert_rewound(&ended, 3);
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

#[test]
fn a_server_of_two_trainers_is_killed_and_a_second_one_during_the_recovery() {
    let place = small_place();
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);
    let mut servers = ServerProcess::start_group(&place.path(""), 3, &[]);
    let mut at = addresses(&servers);
    let first = FrameProxy::start(&at[2], once(Way::Question, op::APPLY, 7, Act::Hold));
    // The restoring of the second generation is a frame of step 0.
    let mut is_done = false;
    let second = FrameProxy::start(&at[0], move |seen| {
        let is_it = !is_done && seen.op == op::RESTORE && seen.way == Way::Answer;
        is_done |= is_it;
        if is_it { Act::HoldAndLose } else { Act::Pass }
    });
    at[2].clone_from(&first.address);
    at[0].clone_from(&second.address);
    let trainers = start_all(&place, "over", &at, 2, &[]);
    first.wait_for_disturbance();
    servers[2].kill_and_restart(&[]);
    second.wait_for_disturbance();
    servers[0].kill_and_restart(&[]);
    second.release();
    for trainer in trainers {
        let report = trainer.end().succeeded();
        assert!(report["rewinds"].as_u64() >= Some(1), "{report}");
    }
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

#[test]
fn a_killed_trainer_is_replaced() {
    let place = small_place();
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);
    for victim in 0..2 {
        let output = format!("killed-{victim}");
        let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[0], once(Way::Question, op::APPLY, 7, Act::Hold));
        at[0].clone_from(&proxy.address);
        let mut trainers = start_all(&place, &output, &at, 2, &[]);
        proxy.wait_for_disturbance();
        drop(trainers.remove(victim));
        proxy.release();
        // A trainer that begins again must be told to go on.
        let again = TrainerProcess::start(&place, &output, &at, (victim, 2), &["--resume"]);
        for trainer in [trainers.remove(0), again] {
            trainer.end().succeeded();
        }
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

/// A trainer that never comes may have failed before it has reached the servers.
#[test]
fn a_trainer_waits_for_the_others_only_for_a_while() {
    let place = small_place();
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let at = addresses(&servers);
    let impatient = ["--set", "ps.wait_seconds=2"];
    let alone = TrainerProcess::start(&place, "over", &at, (0, 3), &impatient).end();
    let text = "trainers 1, 2 of 3 did not come within 2s (`ps.wait_seconds`)";
    assert!(!alone.status.success() && alone.said.contains(text), "{}", alone.said);
    // A trainer that is there learns the error of the one that waits.
    let first = TrainerProcess::start(&place, "two", &at, (0, 3), &impatient);
    let second = TrainerProcess::start(&place, "two", &at, (1, 3), &[]);
    for (ended, text) in [
        (first.end(), "trainer 2 of 3 did not come within 2s"),
        (second.end(), "trainer 0 has ended with an error: trainer 2 of 3 did not come"),
    ] {
        assert!(!ended.status.success() && ended.said.contains(text), "{}", ended.said);
    }
    // A signal ends a longer wait.
    let mut patient = TrainerProcess::start(&place, "again", &at, (0, 2), &[]);
    patient.wait_for("the run waits for trainer 1 of 2");
    patient.signal("-TERM");
    let ended = patient.end();
    let text = "stopped while the trainer waited for trainer 1";
    assert!(!ended.status.success() && ended.said.contains(text), "{}", ended.said);
}

#[test]
fn a_server_is_killed_while_trainers_wait_for_another_one() {
    let place = small_place();
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);
    let mut servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let at = addresses(&servers);
    let mut first = TrainerProcess::start(&place, "over", &at, (0, 2), &[]);
    first.wait_for("the run waits for trainer 1 of 2");
    servers[1].kill_and_restart(&[]);
    let second = TrainerProcess::start(&place, "over", &at, (1, 2), &[]);
    for trainer in [first, second] {
        trainer.end().succeeded();
    }
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

/// A cluster whose command was killed may go on while the same run is begun again elsewhere.
#[test]
fn a_process_in_an_earlier_generation_writes_no_checkpoint() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let proxy =
        FrameProxy::start(&servers[0].address, once(Way::Question, op::APPLY, 7, Act::Hold));
    let earlier =
        TrainerProcess::start(&place, "over", std::slice::from_ref(&proxy.address), (0, 1), &[]);
    proxy.wait_for_disturbance();
    let at = [servers[1].address.clone()];
    TrainerProcess::start(&place, "over", &at, (0, 1), &["--resume"]).end().succeeded();
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
    proxy.release();
    let ended = earlier.end();
    assert!(!ended.status.success(), "{}", ended.said);
    let text = "another process has begun generation 2 of the run `over`";
    assert!(ended.said.contains(text), "{}", ended.said);
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

#[test]
fn tables_that_are_lost_while_they_are_opened_are_opened_again() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    for (way, act) in [(Way::Answer, Act::Lose), (Way::Question, Act::Lose)] {
        let output = format!("opened-{way:?}");
        let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[1], once(way, op::OPEN, 0, act));
        at[1].clone_from(&proxy.address);
        let trainer = TrainerProcess::start(&place, &output, &at, (0, 1), &[]);
        proxy.wait_for_disturbance();
        let ended = trainer.end();
        let report = ended.succeeded();
        assert!(report["rewinds"].is_null(), "nothing is repeated: {report}");
        assert!(servers[1].count("generation") >= 2);
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}
