//! Tests of what an operator does by hand: a rewind to a version, and a reset of the streams.

use serde_json::Value;

use super::kills::replay_arguments;
use super::place::{Place, ROWS, now_ms, rows};
use crate::harness::{last_json, stderr, stdout};

/// Follows rows in steps, with a version after each step, and returns the number of messages.
pub(super) fn follow(place: &Place, steps: std::ops::Range<u64>, begin: u64) -> u64 {
    let mut run = place.start(&[]);
    for step in steps.clone() {
        let lines = rows(step * 500..(step + 1) * 500, begin + step * 1000);
        place.put("events/a", &format!("{step:04}"), &lines);
        run.wait_for_messages((step + 1) * 500);
        run.wait_until("a version", |status| status["version"].as_u64() > Some(step));
    }
    run.stop();
    steps.end * 500
}

/// Returns the exit code, stdout and stderr of a command.
pub(super) fn try_run(place: &Place, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = place.command(arguments).output().expect("the binary runs");
    (output.status.code(), stdout(&output), stderr(&output))
}

/// Returns the name and the bytes of the dense parameters of the newest checkpoint of a run.
pub(super) fn dense(place: &Place, run: &str) -> (String, Vec<u8>) {
    let folder = place.path(&format!("runs/{run}/checkpoints"));
    let newest = std::fs::read_dir(&folder).expect("checkpoints");
    let newest = newest.map(|entry| entry.expect("an entry").path()).max().expect("one");
    let name = newest.file_name().expect("a name").to_string_lossy().into_owned();
    (name, std::fs::read(newest.join("dense.safetensors")).expect("parameters"))
}

/// Returns the number of the version that the pointer names.
pub(super) fn pointed(place: &Place) -> u64 {
    let log = ["model", "log", "--model", "live", "--registry", "registry", "--json"];
    let moves = last_json(&place.ok(&log));
    moves[0]["to"]["version"].as_u64().expect("a version")
}

#[test]
fn a_stopped_run_is_rewound_by_hand() {
    let place = Place::new(ROWS);
    let begin = now_ms() - 600_000;
    follow(&place, 0..6, begin);
    let newest = pointed(&place);
    assert!(newest >= 6);
    let rewind = ["model", "rewind", "job.toml", "--to-version", "3", "--reason", "bad labels"];
    let (code, _, said) = try_run(&place, &[&rewind[..], &["--dry-run"]].concat());
    assert_eq!(code, Some(0), "{said}");
    for words in ["versions go into quarantine", "are left out for ever", "nothing was changed"] {
        assert!(said.contains(words), "{said}");
    }
    // Without a word of consent, nothing happens.
    let (code, _, said) = try_run(&place, &rewind);
    assert!(code == Some(3) && said.contains("--yes"), "{said}");
    assert_eq!(pointed(&place), newest);
    let (code, out, said) = try_run(&place, &[&rewind[..], &["--yes", "--json"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let outcome = last_json(&out);
    assert!(outcome["is_done"] == true && outcome["is_live"] == false, "{outcome}");
    let left_out = outcome["rows"].as_u64().expect("rows");
    assert!(left_out > 0, "{outcome}");
    assert_eq!(pointed(&place), 3);
    let (code, _, said) = try_run(&place, &[&rewind[..4], &["5", "--reason", "x"]].concat());
    assert!(code == Some(3) && said.contains("is in quarantine"), "{said}");
    // The run goes on, and equals one that has never seen the batches.
    let written = follow(&place, 6..8, begin);
    let report = place.status().expect("a status");
    assert_eq!(report["feed"]["messages"].as_u64(), Some(written));
    assert!(pointed(&place) > newest);
    place.ok(&replay_arguments());
    assert!(dense(&place, "live") == dense(&place, "again"), "the parameters differ");
}

#[test]
fn a_live_run_is_rewound_by_hand() {
    let place = Place::new(ROWS);
    let begin = now_ms() - 600_000;
    let mut run = place.start(&[]);
    for step in 0..5 {
        let lines = rows(step * 500..(step + 1) * 500, begin + step * 1000);
        place.put("events/a", &format!("{step:04}"), &lines);
        run.wait_until("a version", |status| {
            status["feed"]["messages"].as_u64() >= Some((step + 1) * 500)
                && status["version"].as_u64() > Some(step)
        });
    }
    let rewind = ["model", "rewind", "job.toml", "--to-version", "2", "--reason", "bad", "--yes"];
    let (code, out, said) = try_run(&place, &[&rewind[..], &["--json"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(last_json(&out)["is_live"] == true, "{out}");
    assert_eq!(pointed(&place), 2);
    let reset = ["stream", "reset", "job.toml", "--to-end", "--yes"];
    let (code, _, said) = try_run(&place, &reset);
    assert!(code == Some(3) && said.contains("a process runs the training"), "{said}");
    place.put("events/a", "0005", &rows(2500..3000, begin + 5000));
    run.wait_for_messages(3000);
    run.wait_until("a version", |status| status["version"].as_u64() > Some(5));
    run.stop();
    place.ok(&replay_arguments());
    assert!(dense(&place, "live") == dense(&place, "again"), "the parameters differ");
}

#[test]
fn streams_are_reset_to_a_time_and_to_their_end() {
    let place = Place::new(ROWS);
    let begin = now_ms() - 600_000;
    follow(&place, 0..4, begin);
    let time = (begin + 2000).to_string();
    let reset = ["stream", "reset", "job.toml", "--to", &time];
    let (code, out, said) = try_run(&place, &[&reset[..], &["--dry-run", "--json"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let plan = last_json(&out);
    let moved = &plan["partitions"][0];
    assert_eq!(moved["messages"], 1000, "{plan}");
    assert!(moved["to"].as_u64() < moved["from"].as_u64(), "{plan}");
    assert!(said.contains("1,000 messages are read again") && said.contains("twice"), "{said}");
    assert!(plan["first_batch"].as_u64() > Some(1) && plan["versions"].is_array(), "{plan}");
    let (code, _, said) = try_run(&place, &reset);
    assert!(code == Some(3) && said.contains("--yes"), "{said}");
    place.ok(&[&reset[..], &["--yes"]].concat());
    let mut run = place.start(&[]);
    run.wait_for_messages(3000);
    let report = run.stop();
    assert_eq!(report["rows"], 3000, "1,000 rows count twice: {report}");
    // What waits is left out.
    place.put("events/a", "0009", &rows(9000..9300, begin + 9000));
    let (code, out, said) =
        try_run(&place, &["stream", "reset", "job.toml", "--to-end", "--yes", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(last_json(&out)["partitions"][0]["messages"], 300, "{said}");
    assert!(said.contains("300 messages are left out for ever"), "{said}");
    let mut run = place.start(&[]);
    place.put("events/a", "0010", &rows(10_000..10_200, begin + 10_000));
    run.wait_for_messages(3200);
    let report: Value = run.stop();
    assert_eq!((&report["messages"], &report["rows"]), (&3200.into(), &3200.into()), "{report}");
    let tail = place.ok(&["stream", "tail", "runs/live", "--last", "100000"]);
    assert_eq!(tail.matches("\"reset\"").count(), 2, "{tail}");
    // A replay follows the resets.
    place.ok(&replay_arguments());
    assert!(dense(&place, "live") == dense(&place, "again"), "the parameters differ");
    let (_, _, said) = try_run(&place, &["stream", "reset", "job.toml", "--to-start", "--dry-run"]);
    assert!(said.contains("2,500 messages are read again"), "{said}");
}
