//! Tests of runs that are killed at any moment: nothing is lost or doubled, and every version has
//! the bytes of a run that was not disturbed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::guards::list_moves;
use super::place::{JOINED, Place, ROWS, files_below, is_click, mix, now_ms, rows};

/// The number of rounds in which events are written.
const ROUNDS: u64 = 60;

/// The settings by which every second version has the dense parameters of its parent, and bases are
/// merged beside the publications, two versions after the merge has begun.
const SETTINGS: [&str; 4] = ["--set", "publish.dense_every=2", "--set", "publish.max_deltas=4"];

#[test]
fn killed_runs_publish_the_bytes_of_an_undisturbed_run() {
    let place = Place::new(JOINED);
    let written = AtomicU64::new(0);
    let report = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_joined_events(&place, &written));
        // The moments of the kills differ in each run of this test.
        let mut seed = now_ms();
        for _ in 0..4 {
            let run = place.start(&SETTINGS);
            seed = mix(seed);
            std::thread::sleep(Duration::from_millis(600 + seed % 1500));
            run.kill();
        }
        let mut run = place.start(&SETTINGS);
        writer.join().expect("the writer ends");
        run.wait_for_messages(written.load(Ordering::Relaxed));
        run.stop()
    });
    assert_eq!(report["messages"], written.load(Ordering::Relaxed));
    // The batches of a stream with pauses end for both reasons.
    let (batches, lingered) = (report["batches"].as_u64(), report["lingered"].as_u64());
    let share = lingered.unwrap_or(0) as f64 / batches.unwrap_or(1) as f64;
    assert!(share >= 1.0 / 3.0, "{report}");
    assert!(report["published"].as_u64() > Some(3), "{report}");

    let again = repeat(&place, &SETTINGS);
    for key in ["batches", "rows", "messages", "rejected", "published"] {
        assert_eq!(report[key], again[key], "{key}");
    }
    compare_versions(&place);
    let versions = versions(&place, "registry");
    let older = versions.iter().filter(|(_, version)| version["origin"]["later_dense"].is_string());
    assert!(older.count() > 1, "{versions:?}");
    // One base is written, and the others are merged.
    let merged = |version: &Value| version["origin"]["compacts"].is_u64();
    let bases: Vec<_> = versions.iter().filter(|(_, v)| v["parent"].is_null()).collect();
    let repeating = bases.iter().filter(|(_, version)| merged(version)).count();
    assert!(repeating > 0 && bases.len() == repeating + 1, "{versions:?}");
}

#[test]
fn a_run_that_was_killed_before_its_first_checkpoint_repeats_the_log() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..3_000, now_ms()));
    let slow = ["--set", "online.checkpoint_seconds=1000"];
    let mut run = place.start(&slow);
    run.wait_for_messages(3_000);
    run.wait_until("a version is published", |status| status["version"].is_u64());
    run.kill();
    place.put("events/a", "1", &rows(3_000..4_000, now_ms()));
    let mut run = place.start(&slow);
    run.wait_for_messages(4_000);
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&4_000.into(), &0.into()), "{report}");
    repeat(&place, &[]);
    compare_versions(&place);
}

#[test]
fn a_long_repetition_leads_no_pointer_through_old_states() {
    let place = Place::new(ROWS);
    // A version follows each batch, and no checkpoint is written before the end.
    let often = [
        "--set",
        "train.batch_size=64",
        "--set",
        "online.publish_rows=64",
        "--set",
        "online.checkpoint_seconds=1000",
        "--set",
        "online.linger_seconds=20",
    ];
    place.put("events/a", "0", &rows(0..9_600, now_ms()));
    let mut run = place.start(&often);
    run.wait_until("many versions", |status| status["version"].as_u64() >= Some(100));
    run.kill();
    let before = list_moves(&place).len();
    place.put("events/a", "1", &rows(9_600..10_240, now_ms()));
    let mut run = place.start(&often);
    run.wait_for_messages(10_240);
    let report = run.stop();
    assert_eq!(report["published"], 160, "{report}");
    // Each move of the pointer leads to a later state than the move before it.
    let moves = list_moves(&place);
    let to: Vec<_> = moves.iter().map(|entry| entry["to"]["version"].as_u64()).collect();
    assert_eq!(to, (1..=160).rev().map(Some).collect::<Vec<_>>(), "{before} moves before the kill");
    repeat(&place, &often);
    compare_versions(&place);
}

#[test]
fn a_log_repeated_on_a_gpu_publishes_the_bytes_of_processors() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..2_000, now_ms()));
    let mut run = place.start(&["--device", "cpu"]);
    run.wait_for_messages(2_000);
    run.wait_until("a version is published", |status| status["version"].is_u64());
    place.put("events/a", "1", &rows(2_000..3_000, now_ms()));
    run.wait_for_messages(3_000);
    let report = run.stop();
    let again = repeat(&place, &["--set", "run.device=\"emulated:3\""]);
    assert_eq!(report["published"], again["published"], "{report}");
    compare_versions(&place);
}

#[test]
fn a_replay_finds_data_that_was_changed() {
    let place = Place::new(ROWS);
    let mut lines = rows(0..20_000, now_ms());
    place.put("events/a", "0", &lines);
    let mut run = place.start(&[]);
    run.wait_for_messages(20_000);
    run.stop();
    // A change far behind the beginning of the file keeps its size and its head.
    let last = lines.last_mut().expect("a line");
    *last = if last.ends_with("1}") { last.replace("1}", "0}") } else { last.replace("0}", "1}") };
    place.put("events/a", "0", &lines);
    let error = place.fails(&replay_arguments());
    assert!(error.contains("restore the original data"), "{error}");
}

/// Returns the arguments that repeat the log of the run in another folder and registry.
pub(super) fn replay_arguments() -> [&'static str; 9] {
    [
        "stream",
        "replay",
        "job.toml",
        "--of=runs/live",
        "--json",
        "--set",
        "run.output=\"runs/again\"",
        "--set",
        "publish.registry=\"again\"",
    ]
}

/// Repeats the log of the run in another folder, and returns the report.
pub(super) fn repeat(place: &Place, more: &[&str]) -> Value {
    crate::harness::last_json(&place.ok(&[&replay_arguments()[..], more].concat()))
}

/// Writes impressions and clicks in bursts with pauses. One partition of three is silent half of
/// the time, and clicks come late.
fn write_joined_events(place: &Place, written: &AtomicU64) {
    let mut number = 0;
    let mut clicks: Vec<(u64, String)> = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("{round:06}");
        for partition in 0..3 {
            let is_silent = partition == 2 && (round / 15) % 2 == 1;
            if is_silent || mix(round * 3 + partition).is_multiple_of(2) {
                continue;
            }
            let time = now_ms();
            let mut lines = Vec::new();
            for _ in 0..70 {
                number += 1;
                let (user, item) = (mix(number) % 500, mix(number ^ 77) % 200);
                lines.push(format!(
                    "{{\"request\":\"r{number}\",\"user\":{user},\"item\":{item},\"time\":{time}}}"
                ));
                if is_click(user, item, number) {
                    let due = round + mix(number) % 4;
                    let line = format!("{{\"request\":\"r{number}\",\"time\":{}}}", time + 100);
                    clicks.push((due, line));
                }
            }
            place.put(&format!("impressions/{partition}"), &name, &lines);
            written.fetch_add(lines.len() as u64, Ordering::Relaxed);
        }
        let (ready, waiting): (Vec<_>, Vec<_>) =
            clicks.into_iter().partition(|(due, _)| *due <= round);
        clicks = waiting;
        let lines: Vec<String> = ready.into_iter().map(|(_, line)| line).collect();
        if !lines.is_empty() {
            place.put("clicks/0", &name, &lines);
            written.fetch_add(lines.len() as u64, Ordering::Relaxed);
        }
        std::thread::sleep(Duration::from_millis(120));
    }
}

/// Asserts that both registries have the same versions, apart from what names the run and the time.
pub(super) fn compare_versions(place: &Place) {
    let [first, second] = ["registry", "again"].map(|registry| versions(place, registry));
    assert!(first.len() > 1, "{first:?}");
    let names = |versions: &[(String, Value)]| -> Vec<String> {
        versions.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&first), names(&second));
    for ((name, first), (_, second)) in first.iter().zip(&second) {
        assert_eq!(first, second, "{name}");
    }
}

/// Returns the manifests of the versions of a registry, without what differs between two runs.
fn versions(place: &Place, registry: &str) -> Vec<(String, Value)> {
    let mut manifests = files_below(&place.path(&format!("{registry}/live/versions")));
    // A write that a kill interrupts leaves a temporary file, which is no object of the registry.
    manifests.retain(|(name, _)| !name.contains('#'));
    let read = |(name, path): (String, std::path::PathBuf)| {
        let text = std::fs::read_to_string(path).expect("a manifest");
        let begin = text.find('{').expect("a manifest has JSON");
        let mut manifest: Value = serde_json::from_str(&text[begin..]).expect("JSON");
        let root = manifest.as_object_mut().expect("an object");
        root.remove("chain");
        root.remove("published_ms");
        let origin = root["origin"].as_object_mut().expect("an origin");
        origin.remove("run");
        // A run that is killed between the end of an epoch and the next checkpoint ends it again.
        origin.remove("dirty_epoch");
        if let Some(parent) = root.get_mut("parent").and_then(Value::as_object_mut) {
            parent.remove("chain");
        }
        (name, manifest)
    };
    manifests.into_iter().map(read).collect()
}
