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
fn settings_of_rows_change_behind_the_last_decision() {
    let place = Place::new(ROWS);
    let begin = now_ms() - 600_000;
    // Each file ends with a message of more than 200 bytes, and with an event that is far ahead.
    let put = |name: u64, numbers: std::ops::Range<u64>| {
        let mut lines = rows(numbers.clone(), begin);
        let long = rows(numbers.clone(), begin).remove(0);
        lines.push(format!("{}{long}", " ".repeat(200)));
        lines.extend(rows(numbers, begin + 200_000 * (name + 1)).pop());
        place.put("events/a", &name.to_string(), &lines);
    };
    let slow = ["--set", "online.checkpoint_seconds=1000"];
    let strict = [
        "--set",
        "online.max_message_bytes=200",
        "--set",
        "online.max_ahead_seconds=7",
        "--set",
        "online.accept_jump_after=5",
        "--set",
        "online.disorder_seconds=9",
    ];
    let strict = [&slow[..], &strict].concat();
    // Each start has decisions to repeat that were made with the settings of the start before.
    put(0, 0..2_000);
    let mut run = place.start(&slow);
    run.wait_for_messages(2_002);
    run.wait_until("a version is published", |status| status["version"].is_u64());
    run.kill();
    put(1, 2_000..3_000);
    let mut run = place.start(&strict);
    run.wait_for_messages(3_004);
    run.kill();
    put(2, 3_000..4_000);
    let mut run = place.start(&slow);
    run.wait_for_messages(4_006);
    let report = run.stop();
    assert_eq!((&report["rows"], &report["rejected"]), (&4_004.into(), &2.into()), "{report}");
    // A rewind and a replay go the same way, whatever the settings of the job are now.
    place.ok(&["model", "rewind", "job.toml", "--to-version", "1", "--reason", "x", "--yes"]);
    put(3, 4_000..5_000);
    let mut run = place.start(&strict);
    run.wait_for_messages(5_008);
    let report = run.stop();
    assert_eq!(report["rejected"], 4, "{report}");
    let again = repeat(&place, &["--set", "online.max_message_bytes=60"]);
    for figure in ["rows", "messages", "rejected"] {
        assert_eq!(again[figure], report[figure], "{figure}");
    }
    let dense = |run: &str| super::operator::dense(&place, run);
    assert!(dense("live") == dense("again"), "the parameters differ");
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
