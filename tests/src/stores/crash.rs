//! Tests of processes that are killed at random moments while the store has many faults. No
//! incomplete state may become visible, and no acknowledged change may be lost. If two publishers
//! write at the same time, exactly one of them may succeed.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use zillion_feature::random::mix64;

use super::place::S3Place;
use super::proxy::{Proxy, storm};
use super::s3::{Create, S3Server};
use crate::harness::{csv, stderr};
use crate::server::{MODEL, Server, infer_body, instances};

const SIGKILL: i32 = 9;

/// Returns the duration of the loop with random kills.
fn crash_time() -> Duration {
    let seconds = std::env::var("ZILLION_TEST_CRASH_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

#[test]
fn a_run_and_its_server_are_killed_among_store_faults() {
    let server = S3Server::start(Create::Honoured);
    let proxy = Proxy::start(server.address, storm(3, 60));
    let s3 = S3Place::new(proxy.address);
    let body = infer_body(&instances(&csv(7, 20)), &["logits"]);
    let path = format!("/v2/models/{MODEL}/infer");
    let began = Instant::now();
    let (mut kills, mut answers, mut acknowledged, mut round) = (0, 0u64, 0, 0u64);
    let mut running: Option<Server> = None;
    while began.elapsed() < crash_time() || kills < 3 || answers == 0 {
        round += 1;
        let epochs = format!("train.epochs={}", round + 1);
        let settings = ["--resume", "--set", "publish.every=3", "--set", &epochs];
        let mut run = s3
            .train("run", &settings)
            .args(["--set", "train.plateau.patience=1000000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let until = Instant::now() + Duration::from_millis(500 + mix64(round) % 2500);
        while Instant::now() < until {
            let asked = running.get_or_insert_with(|| s3.serve(&[]));
            match asked.try_post(&path, body.as_bytes()) {
                Ok(reply) if reply.status == 200 => {
                    answers += 1;
                    let version =
                        reply.json()["model_version"].as_str().and_then(|v| v.parse().ok());
                    acknowledged = acknowledged.max(version.unwrap_or(0));
                }
                Ok(reply) => assert_eq!(reply.status, 503, "{reply:?}"),
                Err(error) => panic!("the server has gone: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if round.is_multiple_of(3)
            && let Some(mut running) = running.take()
        {
            running.kill();
        }
        run.kill().expect("our own child can be killed");
        kills += u32::from(run.wait().expect("our own child").signal() == Some(SIGKILL));
        if acknowledged > 0 {
            let newest = s3.latest();
            assert!(newest >= acknowledged, "version {acknowledged} was served and is lost");
            s3.operate(&["model", "verify"]);
        }
        assert!(round < 10_000, "{kills} kills, {answers} answers");
    }
    // After the kills, everything still works: the server starts again, and one last version
    // reaches it.
    let show = s3.operate(&["model", "show", "--json"]);
    let show: Value = serde_json::from_str(&show).expect("JSON");
    let reached = show["origin"]["cursor"]["epoch"].as_u64().expect("a number");
    let epochs = format!("train.epochs={}", reached + 1);
    let plateau = "train.plateau.patience=1000000";
    s3.train_ok(
        "run",
        &["--resume", "--set", "publish.every=3", "--set", &epochs, "--set", plateau],
    );
    let mut running = running.unwrap_or_else(|| s3.serve(&[]));
    assert!(running.becomes_ready());
    let newest = s3.latest();
    assert!(newest >= acknowledged);
    running.wait_for(newest);
    assert!(proxy.broken() > 10, "{}", proxy.broken());
}

#[test]
fn of_two_publishers_at_once_exactly_one_wins() {
    let server = S3Server::start(Create::Honoured);
    let proxy = Proxy::start(server.address, storm(5, 60));
    let s3 = S3Place::new(proxy.address);
    let place = &s3.place;
    for run in ["left", "right"] {
        place.train_ok(run, &["--set", "train.epochs=1"]);
    }
    let root = format!("data.root={}", place.text(""));
    let (mut won, mut told) = (Vec::new(), 0);
    for round in 0..5 {
        let children: Vec<_> = ["left", "right"]
            .iter()
            .map(|run| {
                // With a new name, the run counts as one that has published nothing yet.
                std::fs::write(place.path(&format!("{run}/RUN")), format!("{run}{round}"))
                    .expect("a name");
                s3.operator(&["publish", &place.text(run), "--set", &root, "--json"])
                    .stderr(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("the binary runs")
            })
            .collect();
        for child in children {
            let result = child.wait_with_output().expect("our own child");
            if result.status.success() {
                let said: Value = serde_json::from_slice(&result.stdout).expect("JSON");
                won.push(said["version"].as_u64().expect("a number"));
            } else {
                let said = stderr(&result);
                assert!(said.contains("at the same time"), "{said}");
                told += 1;
            }
        }
    }
    assert_eq!(won.len() + told, 10);
    let newest = s3.latest();
    let mut distinct = won.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), won.len(), "no version was given to two: {won:?}");
    assert!(distinct.iter().all(|&version| version <= newest));
    s3.operate(&["model", "verify"]);
}
