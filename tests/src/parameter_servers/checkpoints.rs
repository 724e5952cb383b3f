//! Tests of checkpoints that several servers write together.

use std::process::Command;

use super::runs::{
    TrainerProcess, addresses, checkpoints, outcome, small_place, train_alone, train_over,
};
use super::servers::ServerProcess;
use crate::harness::Workplace;

/// The settings of a run that stops after its first epoch, and of one that goes on.
const EPOCHS: [[&str; 2]; 2] = [["--set", "train.epochs=1"], ["--set", "train.epochs=2"]];

/// Trains the first epoch over some servers, and the second one over others (none: in one process).
fn train_in_two_halves(place: &Workplace, output: &str, (first, second): (&[String], &[String])) {
    train_over(place, output, first, 1, &EPOCHS[0]);
    let more = [&EPOCHS[1][..], &["--resume"]].concat();
    match second.is_empty() {
        true => drop(train_alone(place, output, &more)),
        false => drop(train_over(place, output, second, 1, &more)),
    }
}

#[test]
fn a_checkpoint_is_restored_by_another_number_of_servers() {
    let place = small_place();
    train_alone(&place, "alone", &EPOCHS[1]);
    let expected = outcome(&place, "alone");
    let servers = ServerProcess::start_group(&place.path(""), 5, &[]);
    let servers = addresses(&servers);
    for count in [0, 1, 2, 5] {
        let output = format!("three-then-{count}");
        train_in_two_halves(&place, &output, (&servers[..3], &servers[..count]));
        assert_eq!(outcome(&place, &output), expected, "{output}");
    }
    train_alone(&place, "one-then-3", &EPOCHS[0]);
    let more = [&EPOCHS[1][..], &["--resume"]].concat();
    train_over(&place, "one-then-3", &servers[2..], 1, &more);
    assert_eq!(outcome(&place, "one-then-3"), expected);
}

/// The further steps of a run with another number of trainers are those of this number.
#[test]
fn a_run_of_two_trainers_goes_on_with_one() {
    let place = small_place();
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let servers = addresses(&servers);
    let more = [&EPOCHS[1][..], &["--resume"]].concat();
    train_over(&place, "two", &servers, 2, &EPOCHS[0]);
    let first = outcome(&place, "two");
    let (from, to) = (place.path("two"), place.path("copy"));
    let copied = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.expect("`cp` runs").success());
    train_alone(&place, "alone", &[&EPOCHS[0][..], &["--set", "train.accumulate=2"]].concat());
    assert_eq!(first, outcome(&place, "alone"));
    train_over(&place, "two", &servers, 1, &more);
    train_alone(&place, "copy", &more);
    assert_eq!(outcome(&place, "two"), outcome(&place, "copy"));
    assert_ne!(outcome(&place, "two"), first);
}

/// The disk of one server is full, in different durable operations. The checkpoint fails as a
/// whole, training goes on, and the next checkpoint is whole.
#[test]
fn a_full_disk_of_one_server_costs_one_checkpoint() {
    let place = small_place();
    let few = ["--set", "train.checkpoint_every=9", "--set", "train.keep=5"];
    train_alone(&place, "alone", &few);
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    for operation in [1, 3, 8] {
        let failpoint = format!("{operation}:enospc");
        let failing =
            ServerProcess::start_at(&place.path(""), "127.0.0.1:0", &[], Some(&failpoint));
        let at = [&addresses(&servers)[..], std::slice::from_ref(&failing.address)].concat();
        let output = format!("full-{operation}");
        let ended = TrainerProcess::start(&place, &output, &at, (0, 1), &few).end();
        let report = ended.succeeded();
        assert!(report["rewinds"].is_null(), "{report}");
        for text in ["a checkpoint is not written", "space", &failing.address] {
            assert!(ended.said.contains(text), "no {text:?}: {}", ended.said);
        }
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
        // The first checkpoint failed, and the next one was written.
        let steps: Vec<u64> = checkpoints(&place, &output)
            .iter()
            .filter_map(|path| path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok())
            .collect();
        assert!(steps.contains(&18) && !steps.contains(&9), "{steps:?}");
    }
}
