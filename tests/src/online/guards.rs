//! Tests of what a run refuses or warns about, because it would do harm silently.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::kills::replay_arguments;
use super::place::{JOINED, PATIENCE, Place, ROWS, impressions, now_ms, rows};

/// The milliseconds of a year.
const YEAR: u64 = 365 * 24 * 3_600_000;

/// Returns the moves of the pointer `stable`, the newest first.
pub(super) fn list_moves(place: &Place) -> Vec<Value> {
    let log = ["model", "log", "--model", "live", "--registry", "registry", "--json"];
    let log = [&log[..], &["--limit", "100000"]].concat();
    let moves = crate::harness::last_json(&place.ok(&log));
    moves.as_array().expect("a list of moves").clone()
}

#[test]
fn a_replay_into_the_model_of_its_run_is_refused() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..500, now_ms()));
    let mut run = place.start(&[]);
    run.wait_for_messages(500);
    run.stop();
    let before = list_moves(&place);
    let all = replay_arguments();
    let error = place.fails(&all[..all.len() - 2]);
    assert!(error.contains("`publish.registry`"), "{error}");
    assert_eq!(list_moves(&place), before, "the pointer has moved");
    assert!(!place.path("runs/again").exists(), "a refused replay leaves a folder");
    place.ok(&all);
}

#[test]
fn two_runs_do_not_fight_for_one_pointer() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..500, now_ms()));
    let mut first = place.start(&[]);
    first.wait_until("a version is published", |status| {
        status["version"].is_u64() && status["feed"]["rows"] == 500
    });
    let by_first = list_moves(&place)[0]["by"].clone();
    let other = ["online", "job.toml", "--json", "--set", "run.output=\"runs/other\""];
    let error = place.fails(&other);
    assert!(error.contains("`publish.take_over = true`"), "{error}");
    // The job says that the new run takes over. The first run then stops to publish, and says so.
    let taken = [&other[..], &["--set", "publish.take_over=true"]].concat();
    let mut command = place.command(&taken);
    let mut second = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a run");
    let began = Instant::now();
    while list_moves(&place)[0]["by"] == by_first {
        assert!(began.elapsed() < PATIENCE, "the second run publishes nothing");
        std::thread::sleep(Duration::from_millis(50));
    }
    let moved = list_moves(&place)[0]["number"].as_u64();
    place.put("events/a", "1", &rows(500..900, now_ms()));
    first.wait_for_messages(900);
    let said = first.interrupt();
    second.kill().expect("our own child");
    second.wait().expect("our own child");
    assert!(said.contains("so two runs publish to it"), "{said}");
    // Every move since the second run has the pointer is its own.
    let moves = list_moves(&place);
    let mut later = moves.iter().filter(|entry| entry["number"].as_u64() >= moved);
    assert!(later.all(|entry| entry["by"] != by_first), "{moves:?}");
}

#[test]
fn a_first_event_of_the_future_does_no_harm() {
    let place = Place::new(ROWS);
    let mut lines = rows(0..1, now_ms() + YEAR);
    lines.extend(rows(1..600, now_ms()));
    place.put("events/a", "0", &lines);
    let mut run = place.start(&["--set", "online.max_rejected=10"]);
    run.wait_for_messages(600);
    run.wait_until("the rows are in batches", |status| status["feed"]["rows"] == 599);
    let report = run.stop();
    assert_eq!((&report["rejected"], &report["rows"]), (&1.into(), &599.into()), "{report}");
    let status = place.status().expect("a status");
    assert!(status["feed"]["watermark_ms"].as_u64() < Some(now_ms()), "{status}");
    assert_eq!(status["version"], report["published"], "the last status has the last version");
    // The count of batches is that of the life of the run.
    let mut run = place.start(&[]);
    run.wait_until("the run is up", |status| status["step"].is_u64());
    let again = run.stop();
    assert_eq!(again["batches"], report["batches"], "{again}");
    assert_eq!(again["published"], report["published"], "{again}");
    let said = place.ok(&["stream", "status", "runs/live"]);
    assert!(said.contains("not running") && said.contains("version"), "{said}");
}

#[test]
fn a_join_whose_keys_differ_warns() {
    let place = Place::new(JOINED);
    let (shown, clicked) = impressions(0..3_000, now_ms());
    let clicked: Vec<String> =
        clicked.iter().map(|line| line.replace(":\"r", ":\"other-")).collect();
    assert!(clicked.len() > 200, "{} clicks", clicked.len());
    place.put("impressions/a", "0", &shown);
    place.put("clicks/a", "0", &clicked);
    let mut run = place.start(&[]);
    run.wait_until("feedback is lost", |status| {
        status["feed"]["join"]["counters"]["unmatched_feedback"].as_u64() >= Some(100)
    });
    let said = run.interrupt();
    assert!(said.contains("compare the columns of `join.key`"), "{said}");
    let status = place.ok(&["stream", "status", "runs/live"]);
    assert!(status.contains("feedback   0 joined"), "{status}");
}

#[test]
fn keys_without_effect_are_refused_and_a_job_is_checked_without_files() {
    let place = Place::new(ROWS);
    for (setting, key) in [
        ("train.epochs=3", "train.epochs"),
        ("train.drop_last=true", "train.drop_last"),
        ("train.checkpoint_every=10", "train.checkpoint_every"),
        ("data.shuffle=false", "data.shuffle"),
        ("data.shuffle_window=5000", "data.shuffle_window"),
    ] {
        let error = place.fails(&["online", "job.toml", "--set", setting]);
        assert!(error.contains(key) && error.contains("has no effect with a stream"), "{error}");
    }
    let checked = place.ok(&["check", "job.toml"]);
    assert!(checked.contains("the job can run"), "{checked}");
    let error = place.fails(&["train", "job.toml"]);
    assert!(error.contains("`zillion online` follows them"), "{error}");
}
