//! Tests of checkpoints that several servers write together.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::runs::{
    TrainerProcess, addresses, checkpoints, outcome, small_place, train_alone, train_over,
};
use super::servers::ServerProcess;
use crate::harness::{Workplace, stdout, zillion};

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

/// The files of a server cannot be written, in each durable operation in turn.
#[test]
fn a_checkpoint_that_one_server_cannot_write_fails_as_a_whole() {
    let place = small_place();
    let few = ["--set", "train.checkpoint_every=9"];
    train_alone(&place, "alone", &few);
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    for operation in [1, 3, 8] {
        let failpoint = format!("{operation}:enospc");
        let failing =
            ServerProcess::start_at(&place.path(""), "127.0.0.1:0", &[], Some(&failpoint));
        let at = [&addresses(&servers)[..], std::slice::from_ref(&failing.address)].concat();
        let output = format!("full-{operation}");
        let trainer = TrainerProcess::start(&place, &output, &at, (0, 1), &few);
        let ended = trainer.end();
        let said = ended.failed();
        assert!(said.contains("space") && said.contains(&failing.address), "{said}");
        assert_whole(&place, &output);
        // The disk has space again.
        train_over(&place, &output, &at, 1, &[&few[..], &["--resume"]].concat());
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

/// A server is killed at a durable operation of a checkpoint, and started again.
#[test]
fn a_server_that_is_killed_while_it_writes_leaves_no_checkpoint_in_part() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let other = ServerProcess::start(&place.path(""), &[]);
    for operation in [1, 4, 9] {
        let failpoint = format!("{operation}:kill");
        let mut dying =
            ServerProcess::start_at(&place.path(""), "127.0.0.1:0", &[], Some(&failpoint));
        let at = [other.address.clone(), dying.address.clone()];
        let output = format!("killed-{operation}");
        let trainer = TrainerProcess::start(&place, &output, &at, (0, 1), &[]);
        let began = std::time::Instant::now();
        while dying.is_running() {
            assert!(began.elapsed() < super::proxy::PATIENCE, "{output}: no durable operation");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_whole(&place, &output);
        dying.kill_and_restart(&[]);
        let report = trainer.end().succeeded();
        assert_eq!(report["rewinds"].as_u64(), Some(1), "{output}: {report}");
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

/// The first trainer is killed at a durable operation. Some of them lie between the last file of a
/// server and the manifest.
#[test]
fn a_trainer_that_is_killed_while_it_writes_leaves_no_checkpoint_in_part() {
    let place = small_place();
    let few = ["--set", "train.checkpoint_every=9"];
    train_alone(&place, "alone", &few);
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let at = addresses(&servers);
    for operation in [2, 5, 8, 11, 14, 17] {
        let output = format!("killed-{operation}");
        let (joined, store) = (at.join(","), place.text(""));
        let mut command =
            place.train(&output, &[&few[..], &["--ps", &joined, "--ps-store", &store]].concat());
        command.env("ZILLION_FAILPOINT", format!("{operation}:kill"));
        let ended = TrainerProcess::spawn(&place, command).end();
        assert_eq!(ended.status.signal(), Some(9), "{output}: {}", ended.said);
        assert_whole(&place, &output);
        train_over(&place, &output, &at, 1, &[&few[..], &["--resume"]].concat());
        assert_eq!(outcome(&place, &output), outcome(&place, "alone"), "{output}");
    }
}

/// Asserts that every checkpoint that has a manifest can be read.
fn assert_whole(place: &Workplace, output: &str) {
    for checkpoint in checkpoints(place, output) {
        let path = checkpoint.to_str().expect("temporary folders have plain names");
        let scored = zillion(&["predict", path, &place.text("test.csv")]).output();
        let scored = scored.expect("the binary runs");
        assert!(scored.status.success(), "{path}: {}", crate::harness::stderr(&scored));
        assert!(stdout(&scored).lines().count() > 100);
    }
}
