//! Tests of checkpoints over servers in which a process is killed at a durable operation. Every
//! operation of a server and of the first trainer gets its turn if `ZILLION_TEST_ALL_KILLS` is set;
//! otherwise, some operations do.

use std::os::unix::process::ExitStatusExt;

use super::proxy::PATIENCE;
use super::runs::{TrainerProcess, addresses, checkpoints, outcome, train_alone};
use super::sites::{Site, whole_checkpoints};
use crate::harness::{stderr, stdout, zillion};
use crate::stores::{Create, S3Server};

const SIGKILL: i32 = 9;

/// The settings of a run with a checkpoint of all rows, one of changes, and one at its end.
const FEW: [&str; 4] = ["--set", "train.checkpoint_every=9", "--set", "train.full_every=2"];

/// Returns the number of operations from one that is disturbed to the next one.
fn stride(sampled: u64) -> usize {
    let is_all = std::env::var("ZILLION_TEST_ALL_KILLS").is_ok();
    if is_all { 1 } else { sampled as usize }
}

/// Asserts that every checkpoint that has a manifest can be read.
fn assert_whole(site: &Site, bucket: Option<&S3Server>, output: &str) {
    if let Some(bucket) = bucket {
        whole_checkpoints(&site.checkpoints_in(bucket, output));
        return;
    }
    for checkpoint in checkpoints(site.place(), output) {
        let path = checkpoint.to_str().expect("temporary folders have plain names");
        let scored = zillion(&["predict", path, &site.place().text("test.csv")]).output();
        let scored = scored.expect("the binary runs");
        assert!(scored.status.success(), "{path}: {}", stderr(&scored));
        assert!(stdout(&scored).lines().count() > 100);
    }
}

/// Kills a server at operations of its, and starts it again. Returns the number of kills.
fn kill_servers(site: &Site, bucket: Option<&S3Server>, sampled: u64) -> u64 {
    train_alone(site.place(), "alone", &FEW);
    let other = site.server("127.0.0.1:0", None);
    let mut kills = 0;
    for operation in (1..).step_by(stride(sampled)) {
        let mut dying = site.server("127.0.0.1:0", Some(&format!("{operation}:kill")));
        let at = [other.address.clone(), dying.address.clone()];
        let output = format!("killed-{operation}");
        let mut trainer = site.start_all(&output, &at, 1, &FEW).remove(0);
        let began = std::time::Instant::now();
        while dying.is_running() && trainer.is_running() {
            assert!(began.elapsed() < PATIENCE, "{output}: {}", trainer.said());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let is_killed = !dying.is_running();
        assert_whole(site, bucket, &output);
        if is_killed {
            kills += 1;
            dying = site.server(&dying.address.clone(), None);
        }
        let report = trainer.end().succeeded();
        assert_eq!(report["rewinds"].as_u64().is_some(), is_killed, "{output}: {report}");
        assert_eq!(outcome(site.place(), &output), outcome(site.place(), "alone"), "{output}");
        drop(dying);
        if !is_killed {
            break;
        }
        std::fs::remove_dir_all(site.place().path(&output)).expect("our own folder");
    }
    kills
}

/// Kills the first trainer at operations of its. Returns the number of kills.
fn kill_trainers(site: &Site, bucket: Option<&S3Server>, sampled: u64) -> u64 {
    train_alone(site.place(), "alone", &FEW);
    let servers = site.servers(2);
    let at = addresses(&servers);
    let mut kills = 0;
    for operation in (1..).step_by(stride(sampled)) {
        let output = format!("killed-{operation}");
        let mut command = site.train(&output, &at, (0, 1), &FEW);
        command.env("ZILLION_FAILPOINT", format!("{operation}:kill"));
        let ended = TrainerProcess::spawn(site.place(), command).end();
        assert_whole(site, bucket, &output);
        if ended.status.success() {
            assert_eq!(outcome(site.place(), &output), outcome(site.place(), "alone"), "{output}");
            break;
        }
        assert_eq!(ended.status.signal(), Some(SIGKILL), "{output}: {}", ended.said);
        kills += 1;
        site.train_over(&output, &at, 1, &[&FEW[..], &["--resume"]].concat());
        assert_eq!(outcome(site.place(), &output), outcome(site.place(), "alone"), "{output}");
        std::fs::remove_dir_all(site.place().path(&output)).expect("our own folder");
    }
    kills
}

#[test]
fn a_server_is_killed_at_its_operations_in_a_folder() {
    let kills = kill_servers(&Site::folder(), None, 13);
    assert!(kills >= 5, "{kills} kills");
}

#[test]
fn trainer_0_is_killed_at_its_operations_in_a_folder() {
    let kills = kill_trainers(&Site::folder(), None, 7);
    assert!(kills >= 5, "{kills} kills");
}

#[test]
fn a_server_is_killed_at_its_operations_in_a_bucket() {
    let server = S3Server::start(Create::Honoured);
    let kills = kill_servers(&Site::bucket(server.address), Some(&server), 11);
    assert!(kills >= 5, "{kills} kills");
}

#[test]
fn trainer_0_is_killed_at_its_operations_in_a_bucket() {
    let server = S3Server::start(Create::Honoured);
    let kills = kill_trainers(&Site::bucket(server.address), Some(&server), 13);
    assert!(kills >= 5, "{kills} kills");
}
