//! Tests of files that were removed: a rewind or a reset that needs them destroys no run.

use super::kills::repeat;
use super::operator::{dense, follow, pointed, try_run};
use super::place::{Place, ROWS, now_ms, rows};

/// Removes the files of a partition whose names are before `end`.
fn remove_files(place: &Place, partition: &str, end: &str) {
    for entry in std::fs::read_dir(place.path(partition)).expect("a folder") {
        let entry = entry.expect("an entry");
        if *entry.file_name() < *end {
            std::fs::remove_file(entry.path()).expect("a file");
        }
    }
}

/// Returns the names of the checkpoints of the run.
fn checkpoints(place: &Place) -> Vec<String> {
    let folder = std::fs::read_dir(place.path("runs/live/checkpoints")).expect("checkpoints");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("an entry").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = folder.map(name).collect();
    names.sort();
    names
}

#[test]
fn a_rewind_whose_files_were_removed_changes_nothing() {
    let place = Place::new(ROWS);
    let begin = now_ms() - 600_000;
    follow(&place, 0..6, begin);
    let (newest, before) = (pointed(&place), checkpoints(&place));
    remove_files(&place, "events/a", "0006");
    let rewind = ["model", "rewind", "job.toml", "--to-version", "3", "--reason", "x", "--yes"];
    let (code, _, said) = try_run(&place, &rewind);
    assert!(code == Some(3) && said.contains("was removed or changed"), "{said}");
    assert!(said.contains("cannot go back so far") && said.contains("events/a/0"), "{said}");
    assert_eq!((pointed(&place), checkpoints(&place)), (newest, before));
    // The run goes on.
    let written = follow(&place, 6..7, begin);
    assert_eq!(place.status().expect("a status")["feed"]["messages"].as_u64(), Some(written));
    assert!(pointed(&place) > newest);
}

#[test]
fn the_status_says_which_files_may_be_removed() {
    let place = Place::new(ROWS);
    let keep = ["--set", "train.keep=1", "--set", "online.checkpoint_seconds=0.2"];
    let mut run = place.start(&keep);
    for step in 0..20u64 {
        let lines = rows(step * 500..(step + 1) * 500, now_ms());
        place.put("events/a", &format!("{step:04}"), &lines);
        run.wait_for_messages((step + 1) * 500);
    }
    run.stop();
    let status = crate::harness::last_json(&place.ok(&["stream", "status", "runs/live", "--json"]));
    let needed = &status["needed"][0];
    assert_eq!((&needed["stream"], &needed["partition"]), (&"events".into(), &"a".into()));
    // The run has one checkpoint, at its end.
    assert_eq!(needed["offset"], status["feed"]["partitions"][0]["next"], "{status}");
    let said = place.ok(&["stream", "status", "runs/live"]);
    assert!(said.contains("earlier messages may be removed"), "{said}");
    remove_files(&place, "events/a", "9");
    let mut run = place.start(&keep);
    place.put("events/a", "0020", &rows(10_000..10_500, now_ms()));
    run.wait_for_messages(10_500);
    assert_eq!(run.stop()["rows"], 10_500);
}

#[test]
fn a_reset_leads_out_of_a_log_that_cannot_be_repeated() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..2_000, now_ms()));
    let mut run = place.start(&[]);
    run.wait_for_messages(2_000);
    run.stop();
    place.put("events/a", "1", &rows(2_000..3_000, now_ms()));
    let slow = ["--set", "online.checkpoint_seconds=1000"];
    let mut run = place.start(&slow);
    run.wait_for_messages(3_000);
    run.kill();
    std::fs::remove_file(place.path("events/a/1")).expect("a file");
    let error = place.start(&[]).fail();
    assert!(error.contains("events/a/1"), "{error}");
    let reset = ["stream", "reset", "job.toml", "--to-end"];
    let (code, _, said) = try_run(&place, &reset);
    assert!(code == Some(3) && said.contains("cannot repeat what it did"), "{said}");
    assert!(said.contains("events/a/1"), "{said}");
    place.ok(&[&reset[..], &["--yes"]].concat());
    place.put("events/a", "2", &rows(3_000..4_000, now_ms()));
    let mut run = place.start(&slow);
    run.wait_for_messages(3_000);
    run.kill();
    // The next start passes the forgotten decisions again, and repeats those after them.
    let mut run = place.start(&[]);
    run.wait_for_messages(3_000);
    let report = run.stop();
    assert_eq!((&report["messages"], &report["rows"]), (&3_000.into(), &3_000.into()), "{report}");
    let again = repeat(&place, &[]);
    assert_eq!(again["rows"], report["rows"]);
    assert!(dense(&place, "live") == dense(&place, "again"), "the parameters differ");
    let (_, _, said) = try_run(&place, &["stream", "reset", "job.toml", "--to-end", "--dry-run"]);
    assert!(said.contains("all partitions are there already"), "{said}");
}
