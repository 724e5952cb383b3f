//! Tests of wrong jobs and wrong events: each has a clear error or is in the dead letters, and no
//! other row is lost.

use std::time::Duration;

use super::place::{JOINED, Place, ROWS, now_ms, rows};

/// A year in milliseconds.
const YEAR: u64 = 365 * 24 * 3600 * 1000;

#[test]
fn wrong_jobs_are_refused_by_the_key() {
    let place = Place::new(ROWS);
    for (setting, words) in [
        ("online.linger_seconds=0", "online.linger_seconds"),
        ("online.max_message_bytes=0", "online.max_message_bytes"),
        ("publish.every=10", "publish.every"),
        ("train.accumulate=2", "train.accumulate"),
        ("data.sample=0.5", "data.sample"),
        ("online.lingers=1", "linger_seconds"),
        ("join.key=[\"request\"]", "join"),
    ] {
        let error = place.fails(&["online", "job.toml", "--set", setting]);
        assert!(error.contains(words), "{setting}: {error}");
    }
    for (from, to, words) in [
        ("[[stream]]", "[[streams]]", "did you mean `stream`"),
        ("path = \"events\"", "", "stream.events.path"),
        ("path = \"events\"", "path = \"nowhere\"", "create the folder"),
        ("path = \"events\"", "path = \"events\"\nrole = \"feedback\"", "need a section `[join]`"),
        (
            "path = \"events\"",
            "path = \"events\"\nlabel = \"click\"",
            "only feedback names a label",
        ),
        ("event_time_unit = \"ms\"", "", "set `columns.event_time`"),
        ("[labels.click]", "[labels.click]\n[side.items]\npath = \"x\"\nkey = \"item\"", "side"),
    ] {
        let job = std::fs::read_to_string(place.path("job.toml")).expect("a job");
        std::fs::write(place.path("wrong.toml"), job.replace(from, to)).expect("a job");
        let error = place.fails(&["online", "wrong.toml"]);
        assert!(error.contains(words), "{to}: {error}");
    }
    // A job without streams has nothing to follow.
    let job = std::fs::read_to_string(place.path("job.toml")).expect("a job");
    let job = job.replace(ROWS, "").replace("[online]", "[train.plateau]");
    let files: Vec<&str> = job.lines().filter(|line| !line.contains("seconds")).collect();
    std::fs::write(place.path("files.toml"), files.join("\n").replace("[train.plateau]", ""))
        .expect("a job");
    let error = place.fails(&["online", "files.toml"]);
    assert!(error.contains("the job has no stream"), "{error}");
}

#[test]
fn wrong_events_are_dead_letters_and_others_are_learned_from() {
    let place = Place::new(ROWS);
    let now = now_ms();
    let mut lines = rows(0..1_000, now);
    let row = |time: &str| format!("{{\"user\":1,\"item\":2,\"time\":{time},\"click\":1}}");
    let wrong = [
        ("{\"user\":1,", "poison"),
        (&*row(&(now + YEAR).to_string()), "a year ahead"),
        (&*row("-5"), "negative time"),
        (&*row("null"), "no time"),
        ("{\"user\":1,\"item\":2,\"time\":1}", "no label"),
        ("[1, 2]", "no object"),
    ]
    .map(|(line, _)| line.to_owned());
    for (at, line) in wrong.iter().enumerate() {
        lines.insert(100 * (at + 1), line.clone());
    }
    place.put("events/a", "0", &lines);
    let allow = ["--set", "online.max_rejected=100"];
    let mut run = place.start(&allow);
    run.wait_for_messages(lines.len() as u64);
    let report = run.stop();
    assert_eq!(report["rows"], 1_000, "{report}");
    assert_eq!(report["rejected"], wrong.len(), "{report}");
    let dead = place.ok(&["stream", "dead", "runs/live"]);
    assert_eq!(dead.lines().count(), wrong.len(), "{dead}");
    assert!(dead.contains("too far ahead of the other events"), "{dead}");
    assert!(dead.contains("column `click`"), "{dead}");
    assert!(dead.contains("stream events partition a offset"), "{dead}");
    place.ok(&["stream", "dead", "runs/live", "--export", "dead"]);
    let exported = std::fs::read_to_string(place.path("dead/events.jsonl")).expect("a file");
    assert_eq!(exported.lines().collect::<Vec<_>>(), wrong);
}

#[test]
fn too_many_rejected_messages_stop_the_run() {
    let place = Place::new(ROWS);
    let mut lines = rows(0..100, now_ms());
    lines.extend((0..20).map(|_| "poison".to_owned()));
    place.put("events/a", "0", &lines);
    let error = place.start(&["--set", "online.max_rejected=10"]).fail();
    assert!(error.contains("more than 10 of 10000 messages were rejected"), "{error}");
    assert!(error.contains("partition 0 of stream 0"), "{error}");
}

#[test]
fn a_partition_may_be_added_and_a_file_may_not_be_changed() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..500, now_ms()));
    let mut run = place.start(&[]);
    run.wait_for_messages(500);
    place.put("events/b", "0", &rows(500..900, now_ms()));
    run.wait_for_messages(900);
    // A half-written file has a name that is not read.
    std::fs::write(place.path("events/b/1.tmp"), "{\"user\":").expect("a file");
    place.put("events/b", "2", &rows(900..1_000, now_ms()));
    run.wait_for_messages(1_000);
    // A file that appears before a file that was begun would be lost silently.
    place.put("events/b", "1", &rows(0..10, now_ms()));
    let error = run.fail();
    assert!(error.contains('b') && error.contains('1'), "{error}");
    std::fs::remove_file(place.path("events/b/1")).expect("a file");
    let mut run = place.start(&[]);
    run.wait_for_messages(1_000);
    assert_eq!(run.stop()["rows"], 1_000);
}

#[test]
fn a_full_disk_stops_the_run_and_loses_nothing() {
    let place = Place::new(ROWS);
    let now = now_ms();
    let mut written = 0;
    // The first operations make the folders and the log. Later ones may be those of a version. A
    // version that cannot be written ends nothing: the run says so, and publishes it later.
    for (step, operation) in [2, 7, 12, 25, 40].into_iter().enumerate() {
        let mut run = place.start_failing(&format!("{operation}:enospc"));
        let mut has_ended = false;
        for file in 0..8 {
            place.put("events/a", &format!("{step}-{file}"), &rows(written..written + 400, now));
            written += 400;
            has_ended = run.ends_within(Duration::from_millis(500));
            if has_ended {
                break;
            }
        }
        let said = if has_ended { run.fail() } else { run.interrupt() };
        assert!(said.contains("the disk is full"), "{operation}: {said}");
    }
    let mut run = place.start(&[]);
    run.wait_for_messages(written);
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&written.into(), &0.into()), "{report}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..300, now_ms()));
    // No process may make files there, whatever its rights.
    for (setting, path) in [
        ("publish.registry=\"/proc/registry\"", "/proc/registry"),
        ("run.output=\"/proc/run\"", "/proc/run"),
    ] {
        let error = place.start(&["--set", setting]).fail();
        assert!(error.contains(path), "{error}");
    }
    let mut run = place.start(&[]);
    run.wait_for_messages(300);
    assert_eq!(run.stop()["rows"], 300);
}

#[test]
fn a_clock_of_the_writer_that_goes_back_moves_no_watermark_back() {
    let place = Place::new(ROWS);
    let now = now_ms();
    let mut run = place.start(&[]);
    let mut highest = 0;
    for (step, time) in
        [now, now - 24 * 3600 * 1000, now - 60_000, now + 500].into_iter().enumerate()
    {
        let first = 300 * step as u64;
        place.put("events/a", &format!("{step}"), &rows(first..first + 300, time));
        run.wait_for_messages(first + 300);
        run.wait_until("the rows are in batches", |status| {
            status["feed"]["rows"].as_u64() == Some(first + 300)
        });
        let status = place.status().expect("a status");
        let watermark = status["feed"]["watermark_ms"].as_u64().expect("a watermark");
        assert!(watermark >= highest, "{status}");
        highest = watermark;
    }
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&1_200.into(), &0.into()), "{report}");
}

#[test]
fn feedback_without_an_impression_and_keys_that_are_missing_are_counted() {
    let place = Place::new(JOINED);
    let now = now_ms();
    let impressions: Vec<String> = (0..50)
        .map(|n| format!("{{\"request\":\"r{n}\",\"user\":{n},\"item\":1,\"time\":{}}}", now + n))
        .chain([format!("{{\"user\":1,\"item\":1,\"time\":{now}}}")])
        // The end of the windows of all others.
        .chain([format!("{{\"request\":\"end\",\"user\":1,\"item\":1,\"time\":{}}}", now + 10_000)])
        .collect();
    let click = |request: &str| format!("{{\"request\":\"{request}\",\"time\":{}}}", now + 60);
    place.put("impressions/0", "0", &impressions);
    place.put("clicks/0", "0", &[click("r3"), click("r3"), click("nobody"), click("r7")]);
    let mut run = place.start(&[]);
    run.wait_until("all rows are learned from", |status| {
        status["feed"]["rows"].as_u64() >= Some(50)
    });
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&50.into(), &1.into()), "{report}");
    let counters = &place.status().expect("a status")["feed"]["join"]["counters"];
    assert_eq!(counters["positives"], 2, "{counters}");
    assert_eq!(counters["negatives"], 48, "{counters}");
    assert_eq!(counters["duplicate_feedback"], 1, "{counters}");
}
