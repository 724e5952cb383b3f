//! Tests of the commands that rewrite files row by row: `zillion data explode`, `filter` and
//! `counters`. Together they make training data out of a log of sessions.

use serde_json::Value;

use crate::harness::{Workplace, last_json, stderr, stdout, zillion};

/// Runs a command in the place with `--json`, and returns what it printed.
fn ok(place: &Workplace, arguments: &[&str]) -> Value {
    let mut command = zillion(arguments);
    let output = command.arg("--json").current_dir(place.path("")).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

/// Runs a command in the place, which must fail. Returns its exit code and what it said.
fn refused(place: &Workplace, arguments: &[&str]) -> (Option<i32>, String) {
    let output = zillion(arguments).current_dir(place.path("")).output().expect("the binary runs");
    assert!(!output.status.success(), "{arguments:?}");
    (output.status.code(), stderr(&output))
}

/// The sessions of two users: the items that were shown, and whether each of them was clicked.
const SESSIONS: &str = "\
user,at,items,clicks
ann,1700000000,i1|i2|i3,0|1|0
bob,1700000060,i2|i3,1|0
ann,1700000120,i2,1
eve,1700000180,,
";

#[test]
fn sessions_become_rows_with_counters() {
    let place = Workplace::new();
    place.write("sessions.csv", SESSIONS);
    let exploded = ok(
        &place,
        &[
            "data",
            "explode",
            "sessions.csv",
            "--columns",
            "items,clicks",
            "--position",
            "place",
            "--type",
            "items=list<string>",
            "--type",
            "clicks=list<int64>",
            "--out",
            "rows",
        ],
    );
    assert_eq!(exploded["files"][0]["rows"], 6, "{exploded}");
    assert_eq!(exploded["rows_without_elements"], 1, "{exploded}");
    let filtered = ok(
        &place,
        &[
            "data",
            "filter",
            "rows/sessions.parquet",
            "--where",
            "user != 'eve'",
            "--min-count",
            "items=2",
            "--out",
            "frequent",
        ],
    );
    // Only i2 and i3 are shown twice or more.
    assert_eq!(filtered["files"][0]["rows"], 5, "{filtered}");
    assert_eq!(filtered["min_counts"][0]["ids_kept"], 2, "{filtered}");
    let counters: [&str; 13] = [
        "data",
        "counters",
        "frequent/sessions.parquet",
        "--by",
        "items",
        "--time",
        "at",
        "--positive",
        "clicks",
        "--windows",
        "1m,all",
        "--out",
        "counted",
    ];
    let counted = ok(&place, &[&counters[..], &["--time-unit", "s"]].concat());
    let columns = counted["columns"].as_array().expect("columns");
    assert_eq!((columns.len(), &columns[2]), (6, &"items_rate_1m".into()), "{counted}");
    // The last row of i2 has two earlier rows with a click each, one of them a minute ago.
    let last = ok(
        &place,
        &[
            "data",
            "filter",
            "counted/sessions.parquet",
            "--where",
            "items_rows_all = 2 and items_positives_all = 2 and items_rows_1m = 1",
            "--out",
            "last",
        ],
    );
    assert_eq!(last["files"][0]["rows"], 1, "{last}");

    let (code, said) = refused(&place, &counters);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("--overwrite replaces existing files"), "{said}");
    let (code, said) = refused(&place, &[&counters[..], &["--overwrite"]].concat());
    assert!(said.contains("set the unit of the times"), "{code:?} {said}");
    let wrong = ["data", "filter", "rows/sessions.parquet", "--where", "user = ann", "--out", "x"];
    let (code, said) = refused(&place, &wrong);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("single quotes"), "{said}");
}

#[test]
fn a_run_is_replaced_only_by_the_flag() {
    let place = Workplace::new();
    place.train_ok("run", &[]);
    let fails = |more: &[&str]| {
        let output = place.train("run", more).output().expect("the binary runs");
        (output.status.code(), stderr(&output))
    };
    let (code, said) = fails(&[]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("`--resume` resumes, `--overwrite` replaces"), "{said}");
    assert_eq!(fails(&["--overwrite", "--resume"]).0, Some(2));
    let output = place.train_ok("run", &["--overwrite", "--json"]);
    let report = last_json(&stdout(&output));
    assert!(report["history"].as_array().is_some_and(|epochs| !epochs.is_empty()), "{report}");
}
