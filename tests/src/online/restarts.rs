//! Tests of what a checkpoint and the log must have, so that a killed run goes on as if nothing had
//! happened: the windows before a verdict, the settings of rows, and messages that were begun.

use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use serde_json::Value;

use super::kills::repeat;
use super::place::{JUDGED, Place, ROWS, is_click, mix, now_ms, rows};

/// Returns the lines of the history of the run `run`: its windows and verdicts.
fn history(place: &Place, run: &str) -> Vec<Value> {
    let path = place.path(&format!("runs/{run}/stream/validation.jsonl"));
    let text = std::fs::read_to_string(path).expect("a history");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_verdict_after_a_kill_judges_the_windows_before_it() {
    let place = Place::new(&format!("{JUDGED}{ROWS}"));
    let begin = now_ms() - 3_600_000;
    // Windows close in almost every batch, and a version is published after several checkpoints.
    let more = [
        "--set",
        "online.checkpoint_seconds=0.1",
        "--set",
        "online.publish_seconds=0.8",
        "--set",
        "online.stable_seconds=3",
    ];
    let mut written = 0;
    for part in 0..4u64 {
        let mut run = place.start(&more);
        for file in 0..30 {
            let first = (part * 30 + file) * 300;
            let lines: Vec<String> = (first..first + 300)
                .flat_map(|number| rows(number..number + 1, begin + number * 10))
                .collect();
            written += lines.len() as u64;
            place.put("events/a", &format!("{first:08}"), &lines);
            std::thread::sleep(std::time::Duration::from_millis(60));
        }
        run.wait_for_messages(written - 600);
        match part {
            3 => {
                run.wait_for_messages(written);
                run.stop();
            }
            _ => run.kill(),
        }
    }
    repeat(&place, &["--set", "online.stable_seconds=3"]);
    let (live, again) = (history(&place, "live"), history(&place, "again"));
    let verdicts = |lines: &[Value]| -> Vec<Value> {
        lines.iter().filter(|line| line["verdict"].is_object()).cloned().collect()
    };
    assert!(verdicts(&live).len() > 6, "{} verdicts", verdicts(&live).len());
    for (one, other) in verdicts(&live).iter().zip(&verdicts(&again)) {
        assert_eq!(one, other);
    }
    assert_eq!(live, again);
}

#[test]
fn settings_of_rows_stay_while_decisions_are_left_to_repeat() {
    let place = Place::new(ROWS);
    let slow = "online.checkpoint_seconds=1000";
    place.put("events/a", "0", &rows(0..2_000, now_ms()));
    let mut run = place.start(&["--set", slow]);
    run.wait_for_messages(2_000);
    run.wait_until("a version is published", |status| status["version"].is_u64());
    run.kill();
    for (changed, given, made) in [
        ("online.disorder_seconds=9", "is 9", "was made with 0.2"),
        ("online.max_ahead_seconds=7", "is 7", "was made with 3600"),
        ("online.accept_jump_after=5", "is 5", "was made with 1000"),
        ("online.max_message_bytes=4096", "is 4096", "was made with 16777216"),
    ] {
        let error = place.start(&["--set", slow, "--set", changed]).fail();
        let (key, _) = changed.split_once('=').expect("a key");
        assert!(error.contains(&format!("`{key}` {given}")), "{error}");
        assert!(error.contains(made) && error.contains("stop it by a signal"), "{error}");
    }
    // Without a change, the decisions are repeated. After a stop, none are left.
    let mut run = place.start(&["--set", slow]);
    run.wait_for_messages(2_000);
    run.stop();
    let changed = ["--set", slow, "--set", "online.disorder_seconds=9"];
    place.put("events/a", "1", &rows(2_000..3_000, now_ms()));
    let mut run = place.start(&changed);
    run.wait_for_messages(3_000);
    run.kill();
    // Now the decisions after the checkpoint are those of the other setting.
    let error = place.start(&["--set", slow]).fail();
    assert!(error.contains("was made with 9"), "{error}");
    let mut run = place.start(&changed);
    run.wait_for_messages(3_000);
    assert_eq!(run.stop()["rows"], 3_000);
}

#[test]
fn a_message_that_a_checkpoint_interrupts_has_one_dead_letter() {
    let place = Place::new(&format!("{ROWS}format = \"arrow\"\n"));
    // Each message has many batches, and its last rows have a time far ahead.
    const MESSAGES: u64 = 3;
    const ROWS_OF_A_MESSAGE: u64 = 60_000;
    let now = now_ms();
    std::fs::create_dir(place.path("events/a")).expect("a folder");
    for message in 0..MESSAGES {
        let numbers = message * ROWS_OF_A_MESSAGE..(message + 1) * ROWS_OF_A_MESSAGE;
        let bytes = arrow_message(numbers, now);
        let hidden = place.path("events/a/.next.tmp");
        std::fs::write(&hidden, bytes).expect("a file");
        std::fs::rename(&hidden, place.path(&format!("events/a/{message}"))).expect("a rename");
    }
    let more = ["--set", "online.checkpoint_seconds=0.1", "--set", "online.publish_seconds=1000"];
    let total = MESSAGES * ROWS_OF_A_MESSAGE;
    for part in 1..4 {
        let mut run = place.start(&more);
        run.wait_until("some rows are learned from", |status| {
            status["feed"]["rows"].as_u64() >= Some(part * total / 4)
        });
        run.kill();
    }
    let mut run = place.start(&more);
    run.wait_until("all rows are learned from", |status| {
        status["feed"]["rows"].as_u64() >= Some(total - MESSAGES * 2)
    });
    let report = run.stop();
    assert_eq!(report["rejected"], MESSAGES, "{report}");
    let dead = place.ok(&["stream", "dead", "runs/live"]);
    assert_eq!(dead.lines().count() as u64, MESSAGES, "{dead}");
    let again = repeat(&place, &[]);
    assert_eq!((&again["rows"], &again["rejected"]), (&report["rows"], &report["rejected"]));
    let letters = |run: &str| {
        let path = place.path(&format!("runs/{run}/stream/dead_letters.jsonl"));
        std::fs::read_to_string(path).expect("dead letters")
    };
    assert!(letters("live") == letters("again"), "the dead letters differ");
}

/// Returns rows as one message in Arrow. Its last two rows are a year ahead.
fn arrow_message(numbers: std::ops::Range<u64>, now: u64) -> Vec<u8> {
    let last = numbers.end - 2;
    let column = |value: &dyn Fn(u64) -> u64| {
        let values = numbers.clone().map(|number| value(number) as i64);
        Arc::new(Int64Array::from_iter_values(values))
    };
    let user = |number: u64| mix(number) % 500;
    let item = |number: u64| mix(number ^ 77) % 200;
    let names = ["user", "item", "time", "click"];
    let fields: Vec<Field> =
        names.iter().map(|name| Field::new(*name, DataType::Int64, false)).collect();
    let schema = Arc::new(Schema::new(fields));
    let ahead = |number: u64| if number >= last { 365 * 24 * 3_600_000 } else { 0 };
    let batch = RecordBatch::try_new(
        schema.clone(),
        vec![
            column(&user),
            column(&item),
            column(&|number| now + ahead(number)),
            column(&|number| u64::from(is_click(user(number), item(number), number))),
        ],
    );
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &schema).expect("a writer");
    writer.write(&batch.expect("columns of one length")).expect("memory");
    writer.finish().expect("memory");
    drop(writer);
    bytes
}
