//! Tests of the commands `zillion table stats` and `zillion table top` on the tables of a
//! checkpoint.

use serde_json::Value;

use crate::harness::{ROWS, Workplace, csv, stderr, stdout, zillion};

fn table(place: &Workplace, arguments: &[&str]) -> Value {
    let result = zillion(&[&["table"], arguments, &["--json"]].concat())
        .current_dir(place.path(""))
        .output()
        .expect("the binary runs");
    assert!(result.status.success(), "{}", stderr(&result));
    serde_json::from_str(stdout(&result).trim()).expect("JSON")
}

/// Returns the different values in one column of the generated rows, each with its count. The most
/// frequent value comes first.
fn frequent(column: usize) -> Vec<(String, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for line in csv(0, ROWS).lines().skip(1) {
        let cell = line.split(',').nth(column).unwrap_or_default();
        for value in cell.split('|').filter(|v| !v.is_empty()) {
            *counts.entry(value.to_owned()).or_insert(0u64) += 1;
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    counts
}

#[test]
fn stats_add_up() {
    let place = Workplace::new();
    let waiting = "tables.user.admission={ kind = 'count', at_least = 31 }";
    place.train_ok("run", &["--set", "train.epochs=1", "--set", waiting]);
    // The command does not need the rows of the data.
    std::fs::remove_file(place.path("train.csv")).expect("our own file");
    let report = table(&place, &["stats", "run"]);
    let tables = report["tables"].as_array().expect("a list");
    assert_eq!(tables.len(), 4);
    for t in tables {
        let sum = |bins: &str| -> u64 {
            let bins = t[bins].as_array().expect("a list");
            bins.iter().map(|bin| bin["rows"].as_u64().expect("a number")).sum()
        };
        let rows = t["rows"].as_u64().expect("a number");
        assert_eq!((sum("counts"), sum("ages")), (rows, rows), "{t}");
        assert_eq!(Some(sum("waiting")), t["candidates"].as_u64(), "{t}");
        let norms = ["min", "p10", "p50", "p90", "p99", "max"].map(|q| t["norms"][q].as_f64());
        assert!(norms.is_sorted() && norms[0] > Some(0.0), "{t}");
        assert!(t["slots"]["max"].as_f64() >= t["slots"]["mean"].as_f64(), "{t}");
    }
    let user = &table(&place, &["stats", "run", "--table", "user"])["tables"][0];
    let often = frequent(0).iter().filter(|(_, count)| *count >= 31).count() as u64;
    assert!((1..50).contains(&often));
    assert_eq!(
        (user["rows"].as_u64(), user["candidates"].as_u64()),
        (Some(often), Some(50 - often))
    );
    // The payload has five floats for each row in slots of eight. Accumulators and metadata have
    // five more floats in slots of eight.
    assert_eq!(user["payload_bytes"].as_u64(), Some(often * 32));
    assert_eq!(user["state_bytes"].as_u64(), Some(often * 32));
    let said = zillion(&["table", "stats", &place.text("run")]).output().expect("the binary runs");
    let text = stdout(&said);
    assert!(text.contains("occurrences of waiting keys") && text.contains("table item"), "{text}");
}

#[test]
fn top_names_the_ids() {
    let place = Workplace::new();
    // With one row in each step, the number of pushes is the number of occurrences.
    let all = [
        "--set",
        "train.epochs=1",
        "--set",
        "train.batch_size=1",
        "--set",
        "model.batch_norm=false",
    ];
    place.train_ok("run", &[&all[..], &["--set", "train.checkpoint_every=5000"]].concat());
    let rows = |report: &Value| -> Vec<(String, u64)> {
        let rows = report["rows"].as_array().expect("a list").iter();
        let row = |row: &Value| {
            let id = row["id"].as_str().unwrap_or_default().to_owned();
            (id, row["count"].as_u64().expect("a number"))
        };
        rows.map(row).collect()
    };
    let sorted = |mut rows: Vec<(String, u64)>| {
        rows.sort();
        rows
    };
    // Integers are recovered from their keys.
    let items = table(&place, &["top", "run", "--table", "item", "-n", "500"]);
    assert!(rows(&items).is_sorted_by(|a, b| a.1 >= b.1));
    assert_eq!(sorted(rows(&items)), sorted(frequent(1)));
    // Texts come from a file that contains them, also as pieces of a cell.
    let users = table(&place, &["top", "run", "--table", "user", "-n", "3"]);
    assert!(users["rows"][0]["id"].is_null(), "{users}");
    let users =
        table(&place, &["top", "run", "--table", "user", "-n", "500", "--data", "train.csv"]);
    assert_eq!(sorted(rows(&users)), sorted(frequent(0)));
    let tags =
        table(&place, &["top", "run", "--table", "tags", "-n", "500", "--data", "train.csv"]);
    let names: Vec<String> = sorted(rows(&tags)).into_iter().map(|(id, _)| id).collect();
    let wanted: Vec<String> = sorted(frequent(2)).into_iter().map(|(id, _)| id).collect();
    assert_eq!(names, wanted);
    let ages = table(&place, &["top", "run", "--table", "age"]);
    let ages: Vec<String> = sorted(rows(&ages)).into_iter().map(|(id, _)| id).collect();
    assert_eq!(ages, ["bucket 0", "bucket 1", "bucket 2", "bucket 3", "no value of age"]);

    for (by, field) in [("norm", "norm"), ("recent", "last_step")] {
        let report = table(&place, &["top", "run", "--table", "item", "--by", by, "-n", "7"]);
        let rows = report["rows"].as_array().expect("a list");
        let values: Vec<f64> = rows.iter().filter_map(|row| row[field].as_f64()).collect();
        assert!(values.len() == 7 && values.is_sorted_by(|a, b| a >= b), "{report}");
    }
    // One id is named by its value in the data or by its key.
    let (user, count) = &frequent(0)[0];
    let one = table(&place, &["top", "run", "--table", "user", "--key", user]);
    assert_eq!(one["row"]["count"].as_u64(), Some(*count));
    assert_eq!(one["row"]["segments"][0]["weights"].as_array().map(Vec::len), Some(4));
    assert_eq!(one["row"]["segments"][1]["name"], "linear");
    let key = one["key"].as_str().expect("a text");
    assert_eq!(table(&place, &["top", "run", "--table", "user", "--key", key]), one);
}

#[test]
fn missing_tables_and_keys_are_named() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    let run = place.text("run");
    let fails = |arguments: &[&str]| {
        let result = zillion(&[&["table"], arguments].concat()).output().expect("the binary runs");
        assert!(!result.status.success());
        (result.status.code().unwrap_or(-1), stderr(&result))
    };
    let (code, said) = fails(&["stats", &run, "--table", "usr"]);
    assert!(code == 2 && said.contains("user, item, tags, age"), "{said}");
    let (code, said) = fails(&["top", &run, "--table", "item", "--key", "four"]);
    assert!(code == 2 && said.contains("four"), "{said}");
    let (code, said) = fails(&["top", &run, "--table", "item", "--key", "-7"]);
    assert!(code == 1 && said.contains("no row of -7"), "{said}");
    let (code, said) = fails(&["stats", &place.text("nowhere")]);
    assert!(code == 1 && said.contains("nowhere"), "{said}");
    // A changed part is refused, as by all other commands.
    let checkpoint = std::fs::read_dir(place.path("run/checkpoints"))
        .expect("the folder is there")
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .max()
        .expect("a checkpoint");
    let part = checkpoint.join("tables/user/part-00000.arrow");
    let mut bytes = std::fs::read(&part).expect("the part is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&part, bytes).expect("our own file");
    let checkpoint = checkpoint.to_str().expect("temporary folders have plain names");
    let (code, said) = fails(&["stats", checkpoint]);
    assert!(code == 1 && said.contains("part-00000.arrow"), "{said}");
}
