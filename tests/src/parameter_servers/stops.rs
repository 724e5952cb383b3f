//! Tests of trainers and servers that hang for a while and then go on.

use super::proxy::{Act, FrameProxy, Way, once, op};
use super::runs::{
    TrainerProcess, addresses, outcome, small_place, start_all, train_alone, train_over,
};
use super::servers::ServerProcess;

const SHORT_LEASE: [&str; 2] = ["--lease-seconds", "1"];

/// A sign of life every eighth of a second.
const OFTEN: [&str; 2] = ["--set", "ps.deadline_seconds=1"];

#[test]
fn a_trainer_that_hangs_beyond_its_lease_goes_on_later() {
    let place = small_place();
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);
    for victim in 0..2 {
        let output = format!("stopped-{victim}");
        let servers = ServerProcess::start_group(&place.path(""), 2, &SHORT_LEASE);
        let mut at = addresses(&servers);
        let proxy = FrameProxy::start(&at[1], once(Way::Question, op::APPLY, 7, Act::Hold));
        at[1].clone_from(&proxy.address);
        let mut trainers = start_all(&place, &output, &at, 2, &OFTEN);
        proxy.wait_for_disturbance();
        trainers[victim].signal("-STOP");
        proxy.release();
        trainers[1 - victim].wait_for("was silent for more than 1s");
        trainers[victim].signal("-CONT");
        for trainer in trainers {
            let report = trainer.end().succeeded();
            assert!(report["rewinds"].as_u64() >= Some(1), "{report}");
        }
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

#[test]
fn a_trainer_that_was_replaced_while_it_hung_ends_with_an_error() {
    let place = small_place();
    train_alone(&place, "alone", &["--set", "train.accumulate=2"]);
    for victim in 0..2 {
        let output = format!("replaced-{victim}");
        let servers = ServerProcess::start_group(&place.path(""), 1, &SHORT_LEASE);
        // The run of the replacement waits until the test has seen the end of the first trainer.
        let mut first = once(Way::Question, op::APPLY, 7, Act::Hold);
        let gate = FrameProxy::start(&servers[0].address, move |seen| first(seen));
        let mut is_held = false;
        let second = FrameProxy::start(&gate.address, move |seen| {
            let is_it = !is_held
                && seen.generation >= 2
                && (seen.way, seen.op) == (Way::Question, op::APPLY)
                && seen.step >= 8;
            is_held |= is_it;
            if is_it { Act::Hold } else { Act::Pass }
        });
        let at = [second.address.clone()];
        let mut trainers = start_all(&place, &output, &at, 2, &OFTEN);
        gate.wait_for_disturbance();
        trainers[victim].signal("-STOP");
        gate.release();
        let mut other = trainers.remove(1 - victim);
        other.wait_for("was silent for more than 1s");
        let more = [&OFTEN[..], &["--resume"]].concat();
        let replacement = TrainerProcess::start(&place, &output, &at, (victim, 2), &more);
        second.wait_for_disturbance();
        let stopped = trainers.remove(0);
        stopped.signal("-CONT");
        let ended = stopped.end();
        let text = format!("another process is trainer {victim} of the run");
        assert!(ended.failed().contains(&text), "{}", ended.said);
        second.release();
        for trainer in [other, replacement] {
            trainer.end().succeeded();
        }
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

#[test]
fn a_server_that_hangs_is_named_and_its_late_answers_do_nothing() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let servers = ServerProcess::start_group(&place.path(""), 3, &[]);
    let mut at = addresses(&servers);
    let proxy = FrameProxy::start(&at[1], once(Way::Question, op::APPLY, 7, Act::Hold));
    at[1].clone_from(&proxy.address);
    let mut trainer = TrainerProcess::start(&place, "over", &at, (0, 1), &OFTEN);
    proxy.wait_for_disturbance();
    servers[1].signal("-STOP");
    proxy.release();
    trainer.wait_for(&format!("server {} gave no sign of life for 1s", at[1]));
    servers[1].signal("-CONT");
    let ended = trainer.end();
    assert!(ended.succeeded()["rewinds"].as_u64() >= Some(1));
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

#[test]
fn a_server_that_hangs_for_ever_is_an_error_with_its_name() {
    let place = small_place();
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let mut at = addresses(&servers);
    let proxy = FrameProxy::start(&at[0], once(Way::Question, op::PUSH, 7, Act::Hold));
    at[0].clone_from(&proxy.address);
    let short = [&OFTEN[..], &["--set", "ps.wait_seconds=1"]].concat();
    let trainer = TrainerProcess::start(&place, "over", &at, (0, 1), &short);
    proxy.wait_for_disturbance();
    servers[0].signal("-STOP");
    proxy.release();
    let ended = trainer.end();
    let said = ended.failed();
    assert!(said.contains(&format!("server {} cannot be reached", at[0])), "{said}");
    // The run goes on when the server does.
    servers[0].signal("-CONT");
    train_alone(&place, "alone", &[]);
    train_over(&place, "over", &at, 1, &["--resume"]);
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}
