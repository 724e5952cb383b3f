//! The commands of operators for servers that serve a run: explain, checkpoint, restore, and the
//! end of a server that drains.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::process::Output;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use zillion_ps::conformance::specs;
use zillion_ps::{
    Contribution, Error, Exchanging, RemoteClient, RemoteOptions, TableOptions, TrainerPlace,
};

use super::proxy::{Act, FrameProxy, Way, once, op};
use super::raw::{DIM, Raw, apply, plan, pull, push};
use super::runs::{
    TrainerProcess, addresses, checkpoints, outcome, small_place, start_all, train_alone,
};
use super::servers::{ServerProcess, options};
use crate::harness::{Workplace, last_json, stderr, stdout, zillion};

/// The time in which a trainer learns from a sign of life what an operator has asked for. The tests
/// do not depend on it: a trainer that learns of it later serves the request after a later step.
const HEARTBEATS: Duration = Duration::from_secs(1);

/// Runs a command of operators.
pub(super) fn ps(arguments: &[&str]) -> Output {
    zillion(&[&["ps"], arguments].concat()).output().expect("the binary runs")
}

/// Runs a command that must succeed, and returns the JSON that it prints.
pub(super) fn ps_json(arguments: &[&str]) -> Value {
    let output = ps(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    last_json(&stdout(&output))
}

/// Runs a command that must fail with an exit code, and returns its messages.
pub(super) fn ps_fails(arguments: &[&str], code: i32) -> String {
    let output = ps(arguments);
    assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn a_live_key_is_explained_and_never_inserted() {
    let store = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(store.path(), &[]);
    let at = server.address.as_str();
    let text = ps_fails(&["explain", "items", "7", "--ps", at], 1);
    assert!(text.contains("the server has no run"), "{text}");
    let mut victim = Raw::open(at, "victim");
    let keys = [3 << 52 | 5, 9 << 52];
    for step in 1..=3 {
        let plan = plan(0, &keys);
        victim.ask(op::PULL, step, &pull(&plan)).unwrap();
        victim.ask(op::PUSH, step, &push(&plan, &[0.5; 2 * DIM])).unwrap();
        victim.ask(op::APPLY, step, &apply()).unwrap();
    }
    let key = format!("{:#x}", keys[0]);
    let found = ps_json(&["explain", "items", &key, "--ps", at]);
    assert_eq!((&found["run"], &found["table"]), (&"victim".into(), &"items".into()), "{found}");
    assert_eq!((&found["slot"], &found["rows"]), (&3.into(), &2.into()), "{found}");
    assert_eq!(found["row"]["count"], 3, "{found}");
    assert_eq!(found["row"]["last_step"], 3, "{found}");
    let segment = &found["row"]["segments"][0];
    assert_eq!(segment["name"], "vector");
    let weights: Vec<f32> =
        segment["weights"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap() as f32).collect();
    assert_eq!(weights, victim.lookup(&keys[..1]));
    let said = stdout(&ps(&["explain", "items", &key, "--ps", at]));
    assert!(said.contains("pushes") && said.contains("it has a row"), "{said}");

    for absent in ["12345", "0x7777777777777777"] {
        let found = ps_json(&["explain", "items", absent, "--ps", at]);
        assert!(found["row"].is_null() && found["waiting"].is_null(), "{found}");
        assert_eq!(found["admission"]["kind"], "all");
        assert_eq!(found["rows"], 2, "a question has inserted a row");
    }
    let text = ps_fails(&["explain", "users", "7", "--ps", at], 1);
    assert!(text.contains("unknown table `users` (the run has: items)"), "{text}");
    let text = ps_fails(&["explain", "items", "seven", "--ps", at], 1);
    assert!(text.contains("--key-type"), "{text}");
}

/// A server that a proxy stands before, and a trainer that waits in a step because the proxy holds
/// its frame. A checkpoint is written after every fifth step.
fn held(
    place: &Workplace,
    output: &str,
    step: u64,
    more: &[&str],
) -> (ServerProcess, FrameProxy, TrainerProcess) {
    let server = ServerProcess::start(&place.path(""), &[]);
    let proxy = FrameProxy::start(&server.address, once(Way::Question, op::APPLY, step, Act::Hold));
    let at = [proxy.address.clone()];
    let trainer = TrainerProcess::start(place, output, &at, (0, 1), more);
    proxy.wait_for_disturbance();
    (server, proxy, trainer)
}

#[test]
fn a_checkpoint_is_written_after_the_step_in_which_it_is_asked_for() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let (server, proxy, trainer) = held(&place, "over", 7, &["--set", "train.keep=100"]);
    let at = server.address.clone();
    let asked = thread::spawn(move || ps_json(&["checkpoint", &at, "--wait", "50"]));
    thread::sleep(HEARTBEATS);
    proxy.release();
    let answer = asked.join().unwrap();
    assert_eq!(answer["run"], "over", "{answer}");
    assert!(answer["step"].as_u64() >= Some(7), "{answer}");
    trainer.end().succeeded();
    let steps: BTreeSet<u64> =
        checkpoints(&place, "over").iter().map(|path| step_of(path)).collect();
    assert!(steps.contains(&answer["step"].as_u64().unwrap()), "{answer} {steps:?}");
    // Beside the usual checkpoints there is at most the one of the request.
    // The answer names the newest one, which may be later.
    let unusual = steps.iter().filter(|&&step| step % 5 != 0 && step != 24).count();
    assert!(unusual <= 1, "{answer} {steps:?}");
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
    let text = ps_fails(&["checkpoint", &server.address], 1);
    assert!(text.contains("no run is open") && text.contains("have ended the run"), "{text}");
}

fn step_of(path: &std::path::Path) -> u64 {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.trim_start_matches("step-").parse().expect("a checkpoint has the name of its step")
}

#[test]
fn a_restored_run_repeats_its_steps_and_ends_in_the_same_bytes() {
    let place = small_place();
    let keep = ["--set", "train.keep=100"];
    train_alone(&place, "alone", &keep);
    // A run that is set back by an operator is not refused, even if no other rewind is allowed.
    let strict = [&keep[..], &["--set", "ps.rewinds=0"]].concat();
    let (server, proxy, trainer) = held(&place, "newest", 8, &strict);
    let at = server.address.as_str();
    let text = ps_fails(&["restore", at], 3);
    assert!(text.contains("checkpoint of step 5, and repeats 3 steps"), "{text}");
    assert!(text.contains("nothing was done"), "{text}");
    let text = ps_fails(&["restore", at, "--yes", "--step", "6"], 1);
    assert!(text.contains("no checkpoint of step 6 (it has: 5)"), "{text}");
    assert_eq!(server.count("generation"), 1);
    let asked = thread::spawn({
        let at = at.to_owned();
        move || ps_json(&["restore", &at, "--yes"])
    });
    wait_for_end(&server);
    proxy.release();
    let answer = asked.join().unwrap();
    assert_eq!((&answer["checkpoint"], &answer["generation"]), (&5.into(), &2.into()), "{answer}");
    let ended = trainer.end();
    let report = ended.succeeded();
    assert_eq!((&report["rewinds"], &report["repeated_steps"]), (&1.into(), &2.into()), "{report}");
    let text = "an operator has set the run back to the newest checkpoint";
    assert!(ended.said.contains(text), "{}", ended.said);
    assert_eq!(outcome(&place, "newest"), outcome(&place, "alone"));
}

/// Waits until the server has ended its generation.
fn wait_for_end(server: &ServerProcess) {
    while server.status()["ended"].is_null() {
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_run_goes_back_to_an_older_checkpoint() {
    let place = small_place();
    let keep = ["--set", "train.keep=100"];
    train_alone(&place, "alone", &[&keep[..], &["--set", "train.accumulate=2"]].concat());
    let servers = ServerProcess::start_group(&place.path(""), 2, &[]);
    let mut at = addresses(&servers);
    let proxy = FrameProxy::start(&at[0], once(Way::Question, op::APPLY, 11, Act::Hold));
    at[0].clone_from(&proxy.address);
    let trainers =
        start_all(&place, "over", &at, 2, &[&keep[..], &["--set", "ps.rewinds=0"]].concat());
    proxy.wait_for_disturbance();
    let text = ps_fails(&["restore", &servers[1].address, "--step", "5"], 3);
    assert!(text.contains("later steps are removed: 10"), "{text}");
    let asked = thread::spawn({
        let at = servers[1].address.clone();
        move || ps_json(&["restore", &at, "--step", "5", "--yes"])
    });
    wait_for_end(&servers[1]);
    proxy.release();
    let answer = asked.join().unwrap();
    assert_eq!(answer["checkpoint"], 5, "{answer}");
    for trainer in trainers {
        let ended = trainer.end();
        let report = ended.succeeded();
        assert_eq!(report["rewinds"], 1, "{report}");
        assert!(report["repeated_steps"].as_u64() >= Some(5), "{report}");
        assert!(ended.said.contains("set the run back to the checkpoint of step 5"));
    }
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

#[test]
fn commands_show_the_token_of_the_servers() {
    let store = tempfile::tempdir().unwrap();
    let (file, other) = (store.path().join("token"), store.path().join("other"));
    std::fs::write(&file, "a-secret-that-is-long-enough").unwrap();
    std::fs::write(&other, "another-secret-of-someone").unwrap();
    let (file, other) = (file.to_str().unwrap(), other.to_str().unwrap());
    let server = ServerProcess::start(store.path(), &["--token-file", file]);
    let at = server.address.as_str();
    for command in
        [&["explain", "t", "1", "--ps", at][..], &["checkpoint", at], &["restore", at, "--yes"]]
    {
        let text = ps_fails(command, 1);
        assert!(text.contains("shows no token"), "{command:?}: {text}");
        let text = ps_fails(&[command, &["--token-file", other]].concat(), 1);
        assert!(text.contains("shows another token") && !text.contains("someone"), "{text}");
        // The right token leads to the next problem.
        let text = ps_fails(&[command, &["--token-file", file]].concat(), 1);
        assert!(text.contains("run"), "{command:?}: {text}");
        assert!(!text.contains("token"), "{command:?}: {text}");
    }
}

#[test]
fn a_server_that_is_told_to_end_waits_for_a_checkpoint() {
    let place = small_place();
    train_alone(&place, "alone", &[]);
    let (mut server, proxy, trainer) = held(&place, "over", 9, &["--set", "train.keep=100"]);
    server.signal("-TERM");
    thread::sleep(HEARTBEATS);
    assert!(server.is_running(), "the server has not waited");
    proxy.release();
    assert!(server.wait());
    // Without the wait, the newest checkpoint would be that of step 5.
    let newest = checkpoints(&place, "over").last().map(|path| step_of(path));
    assert!(newest >= Some(9), "{newest:?}");
    server.restart();
    trainer.end().succeeded();
    assert_eq!(outcome(&place, "over"), outcome(&place, "alone"));
}

#[test]
fn a_second_signal_ends_a_server_at_once() {
    let place = small_place();
    let server = ServerProcess::start(&place.path(""), &["--drain-seconds", "3600"]);
    let proxy = FrameProxy::start(&server.address, once(Way::Question, op::APPLY, 9, Act::Hold));
    let trainer =
        TrainerProcess::start(&place, "over", std::slice::from_ref(&proxy.address), (0, 1), &[]);
    proxy.wait_for_disturbance();
    let mut server = server;
    server.signal("-TERM");
    thread::sleep(HEARTBEATS);
    assert!(server.is_running());
    server.signal("-TERM");
    assert!(server.wait());
    drop(trainer);
    // A server without a run has nothing to wait for.
    let mut idle = ServerProcess::start(&place.path(""), &["--drain-seconds", "3600"]);
    idle.signal("-TERM");
    assert!(idle.wait());
}

#[test]
fn a_trainer_that_ends_with_an_error_ends_the_others() {
    let store = tempfile::tempdir().unwrap();
    let server = ServerProcess::start(store.path(), &[]);
    let open = |index: usize| {
        let options = RemoteOptions {
            place: TrainerPlace { index, count: 2 },
            ..options(vec![server.address.clone()], "run", store.path())
        };
        RemoteClient::open(options, TableOptions::new(specs(), NonZeroUsize::MIN)).unwrap()
    };
    thread::scope(|scope| {
        let second = scope.spawn(|| open(1));
        let mut first = open(0);
        let mut second = second.join().unwrap();
        let waiting = scope.spawn(move || {
            first.start(b"note".to_vec())?;
            first.exchange(Contribution::default())
        });
        second.start(Vec::new()).unwrap();
        second.abort("no space left in its cache");
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Aborted { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("trainer 1 has ended with an error: no space left"), "{text}");
    });
    let status = server.status();
    assert!(status["ended"].as_str().unwrap().contains("no space left"), "{status}");
}
