//! Tests of the gate: labels that are flipped for a minute are caught, their versions are in
//! quarantine, and the run goes on as if the bad batches had never come.

use serde_json::Value;

use super::guards::list_moves;
use super::kills::replay_arguments;
use super::place::{Place, ROWS, Running, files_below, is_click, mix, now_ms};
use super::served::{named_versions, newest_event, served_versions};

/// The number of rows in a second of event time.
const RATE: u64 = 600;

/// The settings of the run and of its replay beside those of the job.
const SETTINGS: [&str; 6] = [
    "--set",
    "online.stable_seconds=20",
    "--set",
    "online.publish_rows=1200",
    "--set",
    "online.disorder_seconds=1",
];

/// The settings of a gate over short windows.
const GATE: &str = r#"
[validation]
windows = [10, 60]
[gate]
min_rows = 500
anchor_rows = 4000
anchor_every = 4
anchor_delay_seconds = 20
"#;

/// Returns the rows of some seconds of event time. `flip` says in which seconds labels are flipped.
fn seconds(begin: u64, range: std::ops::Range<u64>, flip: &std::ops::Range<u64>) -> Vec<String> {
    let mut lines = Vec::new();
    for second in range {
        for row in 0..RATE {
            let number = second * RATE + row;
            let (user, item) = (mix(number) % 300, mix(number ^ 77) % 100);
            let click = is_click(user, item, number) != flip.contains(&second);
            let time = begin + second * 1000 + row * 1000 / RATE;
            lines.push(format!(
                "{{\"user\":{user},\"item\":{item},\"time\":{time},\"click\":{}}}",
                u8::from(click)
            ));
        }
    }
    lines
}

/// Follows a stream of 320 seconds of event time in steps of five seconds, and returns the report,
/// what the run has written about its windows and verdicts, and the time of the first event.
fn follow(place: &Place, flip: &std::ops::Range<u64>) -> (Value, Vec<Value>, u64) {
    let begin = now_ms() / 60_000 * 60_000 - 3_600_000;
    let mut run = place.start(&SETTINGS);
    let mut written = 0;
    for step in 0..64 {
        let lines = seconds(begin, step * 5..(step + 1) * 5, flip);
        written += lines.len() as u64;
        place.put("events/a", &format!("{step:06}"), &lines);
        // The stream is slower than the run, so that verdicts come before much more is learned.
        run.wait_for_messages(written.saturating_sub(RATE * 10));
    }
    run.wait_for_messages(written);
    let report = run.stop();
    let history = std::fs::read_to_string(place.path("runs/live/stream/validation.jsonl"));
    let history = history.expect("a history");
    let read = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    (report, history.lines().map(read).collect(), begin)
}

/// Returns the AUCs of the live model on the closed windows of ten seconds, by their second.
fn aucs(history: &[Value]) -> Vec<f64> {
    let windows = history.iter().filter(|entry| entry["window"]["length"] == 10_000);
    windows.filter_map(|entry| entry["window"]["live"]["auc"].as_f64()).collect()
}

#[test]
fn flipped_labels_are_caught_and_left_out() {
    let place = Place::new(&format!("{GATE}{ROWS}"));
    let flip = 200..260;
    let (_, history, begin) = follow(&place, &flip);
    let log = place.ok(&["stream", "tail", "runs/live", "--last", "100000"]);
    let skips: Vec<&str> = log.lines().filter(|line| line.contains("\"skip\"")).collect();
    assert!(!skips.is_empty(), "the gate has not tripped: {:?}", aucs(&history));
    let moves = place.ok(&["model", "log", "--model", "live", "--registry", "registry"]);
    assert!(moves.contains("quarantine"), "{moves}");
    // The rows of the first batches that were left out end within two windows and what the run may
    // have read ahead.
    let cuts = place.ok(&["stream", "tail", "runs/live", "--last", "100000", "--json"]);
    let (mut rows, mut caught) = (0, None);
    for line in cuts.lines() {
        let decision: Value = serde_json::from_str(line).expect("JSON");
        let decision = &decision["decision"];
        rows += decision["cut"]["rows"].as_u64().unwrap_or(0);
        if caught.is_none() && decision["skip"].is_object() {
            caught = Some(rows as f64 / RATE as f64 - flip.start as f64);
        }
    }
    let caught = caught.expect("a skip");
    assert!(caught > 0.0 && caught <= 2.0 * 10.0 + 12.0, "caught after {caught} s");
    // No version that the pointer named has lost more than 0.005 AUC on fresh rows.
    let served = served_versions(&place, begin + flip.start * 1000);
    let worst = served.iter().map(|version| version.auc).fold(f64::INFINITY, f64::min);
    let lowest = served.iter().min_by(|a, b| a.auc.total_cmp(&b.auc)).expect("a version");
    eprintln!(
        "caught after {caught:.1} s; served AUC {:.4}, at worst {worst:.4} by version {}",
        served[0].auc, lowest.version
    );
    assert!(worst >= served[0].auc - 0.005, "{served:?}");
    // The model after the minute is as good as before it.
    let aucs = aucs(&history);
    let (before, after) = (aucs[..20].last().expect("a window"), aucs.last().expect("a window"));
    assert!(after > &(before - 0.01), "{aucs:?}");
    // The run equals one that has never seen the batches that the log leaves out.
    place.ok(&[&replay_arguments()[..], &SETTINGS].concat());
    let dense = |run: &str| {
        let folder = place.path(&format!("runs/{run}/checkpoints"));
        let newest = std::fs::read_dir(&folder).expect("checkpoints");
        let newest = newest.map(|entry| entry.expect("an entry").path()).max().expect("one");
        let name = newest.file_name().expect("a name").to_owned();
        (name, std::fs::read(newest.join("dense.safetensors")).expect("parameters"))
    };
    let (live, again) = (dense("live"), dense("again"));
    assert_eq!(live.0, again.0, "{skips:?}");
    assert!(live.1 == again.1, "the parameters differ");
}

#[test]
fn a_run_that_ends_between_a_verdict_and_its_rewind_serves_no_bad_version() {
    let place = Place::new(&format!("{GATE}{ROWS}"));
    let begin = now_ms() / 60_000 * 60_000 - 3_600_000;
    let flip = 200..260;
    // The feed decides on a version at each batch, so that it is ahead of every verdict.
    let often = ["--set", "train.batch_size=512", "--set", "online.publish_rows=512"];
    let late = ["--set", "online.checkpoint_seconds=1000"];
    let settings = [&SETTINGS[..2], &SETTINGS[4..], &often].concat();
    let write = |run: &mut Running<'_>, steps: std::ops::Range<u64>| {
        for step in steps {
            let lines = seconds(begin, step * 5..(step + 1) * 5, &flip);
            place.put("events/a", &format!("{step:06}"), &lines);
            let wanted = ((step + 1) * 5 * RATE).saturating_sub(RATE * 10);
            let is_read = || {
                let status = place.status().unwrap_or_default();
                status["feed"]["messages"].as_u64() >= Some(wanted)
            };
            while !is_read() {
                if run.ends_within(std::time::Duration::from_millis(20)) {
                    return step + 1;
                }
            }
        }
        64
    };
    let mut run = place.start(&settings);
    write(&mut run, 0..36);
    run.wait_for_messages(180 * RATE);
    run.stop();
    // The state of the way back is out of reach while the gate looks for it.
    let settings = [&settings[..], &late].concat();
    let mut run = place.start(&settings);
    run.wait_for_messages(180 * RATE);
    let states = files_below(&place.path("runs/live/stream"));
    let newest = states.into_iter().rfind(|(name, _)| name.ends_with("/STATE"));
    let (_, state) = newest.expect("a state of the feed");
    let hidden = state.with_extension("hidden");
    std::fs::rename(&state, &hidden).expect("a rename");
    let next = write(&mut run, 36..64);
    let said = run.fail();
    assert!(said.contains("cannot read the state of the streams"), "{said}");
    let moves = list_moves(&place);
    assert_eq!(moves[0]["kind"], "quarantine", "{said}");
    let log = place.ok(&["stream", "tail", "runs/live", "--last", "100000"]);
    assert!(next < 64 && !log.contains("\"skip\""), "{log}");
    // The next start judges the same state again, and rewinds before it publishes anything.
    std::fs::rename(&hidden, &state).expect("a rename");
    let mut run = place.start(&settings);
    write(&mut run, next..64);
    run.wait_for_messages(320 * RATE);
    let said = run.interrupt();
    let (left_out, moved) = (said.find("are left out"), said.find("the pointer stands on it"));
    assert!(left_out.is_some() && left_out < moved, "{said}");
    let served = served_versions(&place, begin + flip.start * 1000);
    let worst = served.iter().map(|version| version.auc).fold(f64::INFINITY, f64::min);
    assert!(worst >= served[0].auc - 0.02, "{served:?}");
}

#[test]
fn bad_batches_without_a_way_back_stay_and_are_not_served() {
    let place = Place::new(&format!("{GATE}{ROWS}"));
    let begin = now_ms() / 60_000 * 60_000 - 3_600_000;
    let flip = 150..190;
    let write = |run: &mut Running<'_>, steps: std::ops::Range<u64>| {
        let end = steps.end * 5 * RATE;
        for step in steps {
            let lines = seconds(begin, step * 5..(step + 1) * 5, &flip);
            place.put("events/a", &format!("{step:06}"), &lines);
            run.wait_for_messages(((step + 1) * 5 * RATE).saturating_sub(RATE * 10));
        }
        run.wait_for_messages(end);
    };
    let mut run = place.start(&SETTINGS);
    write(&mut run, 0..30);
    run.stop();
    std::fs::remove_dir_all(place.path("events/a")).expect("a folder");
    std::fs::create_dir(place.path("events/a")).expect("a folder");
    let mut run = place.start(&SETTINGS);
    write(&mut run, 30..64);
    let report = run.stop();
    assert_eq!(report["messages"], 320 * RATE, "{report}");
    let log = place.ok(&["stream", "tail", "runs/live", "--last", "100000"]);
    let keeps = log.lines().filter(|line| line.contains("\"keep\"")).count();
    // Labels that are still wrong behind the kept batches may be left out as usual.
    assert!(keeps > 0, "{log}");
    let moves = place.ok(&["model", "log", "--model", "live", "--registry", "registry"]);
    assert!(moves.contains("quarantine"), "{moves}");
    let served = served_versions(&place, begin + flip.start * 1000);
    let worst = served.iter().map(|version| version.auc).fold(f64::INFINITY, f64::min);
    eprintln!("served AUC {:.4}, at worst {worst:.4}, {} versions", served[0].auc, served.len());
    assert!(worst >= served[0].auc - 0.02, "{served:?}");
    // The run can be started again, and repeats nothing.
    let mut run = place.start(&SETTINGS);
    run.wait_for_messages(320 * RATE);
    assert_eq!(run.stop()["rows"], report["rows"]);
}

#[test]
fn small_versions_with_flipped_labels_are_held() {
    let place = Place::new(&format!("{GATE}{ROWS}"));
    let begin = now_ms() / 60_000 * 60_000 - 3_600_000;
    let (flip, steps) = (120..150, 30);
    // A version has half of the rows that the gate needs to judge the newest rows.
    let rows = ["--set", "online.publish_rows=256", "--set", "online.publish_seconds=1000"];
    let mut run = place.start(&[&SETTINGS[..2], &SETTINGS[4..], &rows].concat());
    for step in 0..steps {
        let lines = seconds(begin, step * 5..(step + 1) * 5, &flip);
        place.put("events/a", &format!("{step:06}"), &lines);
        run.wait_for_messages(((step + 1) * 5 * RATE).saturating_sub(RATE * 10));
    }
    run.wait_for_messages(steps * 5 * RATE);
    run.stop();
    let log = place.ok(&["stream", "tail", "runs/live", "--last", "100000"]);
    assert!(log.contains("\"skip\""), "the gate has not tripped");
    // The pointer named no version behind the first rows that are enough to be judged. Behind the
    // gap, none follows while labels are flipped.
    let bad = begin + flip.start * 1000;
    let mut named: Vec<u64> = named_versions(&place);
    let count = named.len();
    named.sort_unstable();
    named.dedup();
    let newest = |version: &u64| newest_event(&place, *version).saturating_sub(bad);
    let last = named.iter().rev().take(20).map(newest).max().expect("a version");
    eprintln!("{count} moves; the last version has rows until {last} ms after the first bad one");
    assert!(last <= 2_000, "a version has rows until {last} ms after the first bad one");
}

#[test]
fn a_stream_without_poison_trips_no_gate() {
    let place = Place::new(&format!("{GATE}{ROWS}"));
    let (report, history, _) = follow(&place, &(0..0));
    let verdicts: Vec<&Value> = history
        .iter()
        .map(|entry| &entry["verdict"]["outcome"])
        .filter(|v| v.is_string())
        .collect();
    assert!(verdicts.len() > 20, "{report}");
    assert!(verdicts.iter().all(|outcome| *outcome != "fail"), "{verdicts:?}");
    let held = verdicts.iter().filter(|outcome| **outcome == "hold").count();
    eprintln!("{held} of {} versions were held", verdicts.len());
    assert!(held * 50 <= verdicts.len(), "{held} of {} versions were held", verdicts.len());
    let aucs = aucs(&history);
    assert!(aucs.last() > Some(&0.7), "{aucs:?}");
}

#[test]
fn labels_that_features_cannot_tell_give_an_auc_of_one_half() {
    let place = Place::new(ROWS);
    let begin = now_ms() / 60_000 * 60_000 - 3_600_000;
    let mut lines = Vec::new();
    for number in 0..60_000u64 {
        let (user, item) = (mix(number) % 300, mix(number ^ 77) % 100);
        let click = mix(number ^ 0xbeef).is_multiple_of(3);
        let time = begin + number * 2;
        lines.push(format!(
            "{{\"user\":{user},\"item\":{item},\"time\":{time},\"click\":{}}}",
            u8::from(click)
        ));
    }
    place.put("events/a", "0", &lines);
    let mut run = place.start(&[]);
    run.wait_for_messages(60_000);
    run.stop();
    let history = std::fs::read_to_string(place.path("runs/live/stream/validation.jsonl"));
    let windows: Vec<Value> = history
        .expect("a history")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["window"].clone())
        .filter(|window| window["length"] == 60_000)
        .collect();
    assert!(!windows.is_empty());
    for window in windows {
        let (auc, error) = (&window["live"]["auc"], &window["live"]["auc_error"]);
        let (auc, error) = (auc.as_f64().expect("an AUC"), error.as_f64().expect("an error"));
        assert!((auc - 0.5).abs() <= 3.0 * error, "{window}");
    }
}
