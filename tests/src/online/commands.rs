//! Tests of the commands that show and control the streams of a run.

use super::place::{Place, ROWS, now_ms, rows};

#[test]
fn a_run_is_paused_and_resumed_and_shows_its_place() {
    let place = Place::new(ROWS);
    place.put("events/a", "0", &rows(0..500, now_ms()));
    let mut run = place.start(&[]);
    run.wait_for_messages(500);
    let said = place.ok(&["stream", "pause", "runs/live", "--json"]);
    assert!(said.contains("\"was_paused\":false"), "{said}");
    run.wait_until("the run pauses", |status| status["feed"]["is_paused"] == true);
    place.put("events/a", "1", &rows(500..800, now_ms()));
    run.wait_until("the file is not consumed", |status| status["feed"]["messages"] == 500);
    assert!(place.ok(&["stream", "status", "runs/live"]).contains("paused"));
    place.ok(&["stream", "resume", "runs/live"]);
    run.wait_for_messages(800);
    run.wait_until("the rows are in batches", |status| status["feed"]["rows"] == 800);
    let status = place.ok(&["stream", "status", "runs/live"]);
    for words in ["running", "events", "watermark", "800 messages"] {
        assert!(status.contains(words), "{status}");
    }
    run.stop();
    let tail = place.ok(&["stream", "tail", "runs/live", "--last", "3"]);
    assert_eq!(tail.lines().count(), 3, "{tail}");
    assert!(tail.contains("checkpoint"), "{tail}");
    let all = place.ok(&["stream", "tail", "runs/live", "--last", "1000", "--json"]);
    for decision in ["partitions", "file", "took", "cut", "publish", "checkpoint"] {
        assert!(all.contains(&format!("{{\"{decision}\"")), "{decision}: {all}");
    }
}

#[test]
fn a_folder_without_streams_is_refused() {
    let place = Place::new(ROWS);
    for command in ["status", "tail", "dead", "pause", "resume"] {
        let error = place.fails(&["stream", command, "nowhere"]);
        assert!(error.contains("is not the folder of a run with streams"), "{error}");
    }
}
