//! Tests of tables that go by event time: days of event time pass while new ids keep coming, and a
//! kill changes nothing.

use serde_json::Value;

use super::kills::{compare_versions, repeat};
use super::place::{Place, ROWS, is_click, mix, now_ms};

const HOUR: u64 = 3_600_000;
/// The number of hours of event time.
const HOURS: u64 = 14 * 24;
/// The number of users that are active at the same time. A fifth of them is new in each hour.
const ACTIVE: u64 = 300;
const NEW_IN_AN_HOUR: u64 = ACTIVE / 5;
/// The number of rows in an hour.
const ROWS_IN_AN_HOUR: u64 = 300;

/// The settings of the tables.
const TABLES: &str = r#"
[tables."*"]
admission = { kind = "count", at_least = 2 }
admission_window = "6 hours"
eviction = { kind = "unseen_for", span = "1 day" }
statistics = { decay = 0.5, every = "1 day" }
"#;

/// Returns the rows of an hour of event time. Now and then a row has a time far ahead.
fn hour(begin: u64, hour: u64) -> Vec<String> {
    let row = |row: u64| {
        let number = hour * ROWS_IN_AN_HOUR + row;
        let (user, item) = (hour * NEW_IN_AN_HOUR + mix(number) % ACTIVE, mix(number ^ 77) % 100);
        let click = u64::from(is_click(user, item, number));
        let is_wrong = mix(number ^ 9).is_multiple_of(500);
        let ahead = if is_wrong { 365 * 24 * HOUR } else { 0 };
        let time = begin + hour * HOUR + row * HOUR / ROWS_IN_AN_HOUR + ahead;
        format!("{{\"user\":{user},\"item\":{item},\"time\":{time},\"click\":{click}}}")
    };
    (0..ROWS_IN_AN_HOUR).map(row).collect()
}

/// Returns the number of rows of a table in the newest checkpoint of the run.
fn rows_of(place: &Place, table: &str) -> u64 {
    let report = place.ok(&["table", "stats", "runs/live", "--json"]);
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let tables = report["tables"].as_array().expect("tables");
    let found = tables.iter().find(|found| found["table"] == table).expect("the table");
    found["rows"].as_u64().expect("a number")
}

#[test]
fn a_table_stays_bounded_while_days_pass_also_after_kills() {
    let place = Place::new(&format!("{TABLES}{ROWS}"));
    let begin = now_ms() / HOUR * HOUR - HOURS * HOUR;
    let more = ["--set", "online.checkpoint_seconds=0.3", "--set", "online.disorder_seconds=60"];
    let mut written = 0;
    for part in 0..4 {
        let mut run = place.start(&more);
        for at in part * HOURS / 4..(part + 1) * HOURS / 4 {
            let lines = hour(begin, at);
            written += lines.len() as u64;
            place.put("events/a", &format!("{at:06}"), &lines);
        }
        // The run is killed somewhere in the part, behind some of its checkpoints.
        run.wait_for_messages(written - HOURS / 8 * ROWS_IN_AN_HOUR);
        run.kill();
    }
    let mut run = place.start(&more);
    run.wait_for_messages(written);
    let report = run.stop();
    // The rows with a wrong time are dead letters.
    let dead = report["rejected"].as_u64().expect("a number");
    assert!(dead > 100 && report["rows"] == written - dead, "{report}");

    // An id is active for five hours, and its row stays for a day and an eighth.
    let users = rows_of(&place, "user");
    let bound = ACTIVE + NEW_IN_AN_HOUR * (27 + 1);
    assert!(users > ACTIVE && users <= bound, "{users} rows");
    assert!(HOURS * NEW_IN_AN_HOUR > 10 * bound);
    assert_eq!(rows_of(&place, "item"), 100);
    // A row tells its age in event time.
    let last = HOURS * NEW_IN_AN_HOUR - 1 + 10;
    let known = (last..last + ACTIVE).find_map(|user| {
        let id = user.to_string();
        let arguments = ["table", "explain", "runs/live", "--table", "user", "--key", &id];
        let said = place.ok(&arguments);
        said.contains("it has a row").then_some(said)
    });
    let said = known.expect("an active user has a row");
    assert!(said.contains("of event time") && said.contains("more than 86,400 seconds"), "{said}");

    // The same log gives the same versions in a run that was never killed.
    let again = repeat(&place, &more);
    for key in ["batches", "rows", "messages", "rejected", "published"] {
        assert_eq!(report[key], again[key], "{key}");
    }
    compare_versions(&place);
}
