//! Tests of histories: `zillion data history` adds them to files, and a model with attention reads
//! them.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;
use zillion_feature::random::{combine, mix64};

use crate::harness::{Workplace, stderr, stdout, zillion};

const ITEMS: u64 = 32;
const ROWS_A_USER: u64 = 24;

/// A row of a click log: the user, the item, the time and the label.
type Row = (String, i64, i64, i64);

/// Generates the click log of users that occur in no other file. Each item has one of four colours,
/// and each user likes one colour. Neither the user alone nor the item alone explains the label.
/// The items that the user liked before explain it.
fn log(first_user: u64, users: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for turn in 0..ROWS_A_USER {
        for user in first_user..first_user + users {
            let draw = |salt: u64| mix64(combine(combine(user, salt), turn));
            let item = draw(1) % ITEMS;
            let liked = item % 4 == mix64(user) % 4;
            let label = i64::from(liked != draw(2).is_multiple_of(12));
            // Two turns of a user have the same time, so the history of neither contains the other.
            rows.push((format!("u{user}"), item as i64, (turn / 2) as i64, label));
        }
    }
    rows
}

fn write(place: &Workplace, name: &str, rows: &[Row]) {
    let whole = |f: &dyn Fn(&Row) -> i64| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(f(row))).collect::<Int64Array>())
    };
    let users: ArrayRef = Arc::new(rows.iter().map(|row| Some(&row.0)).collect::<StringArray>());
    let batch = RecordBatch::try_from_iter([
        ("user", users),
        ("item", whole(&|row| row.1)),
        ("time", whole(&|row| row.2)),
        ("label", whole(&|row| row.3)),
    ])
    .expect("columns of one length");
    let file = File::create(place.path(name)).expect("a file");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
    writer.write(&batch).expect("memory");
    writer.close().expect("a disk");
}

/// Reads a file with a column of histories. Returns this column and the number of all columns.
fn histories(place: &Workplace, name: &str) -> (Vec<Vec<i64>>, usize) {
    let file = File::open(place.path(name)).expect("it was written");
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet").build();
    let mut lists = Vec::new();
    let mut columns = 0;
    for batch in reader.expect("Parquet") {
        let batch = batch.expect("Parquet");
        columns = batch.num_columns();
        let column = batch.column_by_name("history").expect("the new column").as_list::<i32>();
        for list in column.iter() {
            let list = list.expect("no nulls");
            lists.push(list.as_primitive::<Int64Type>().values().to_vec());
        }
    }
    (lists, columns)
}

const ADD: [&str; 14] = [
    "data", "history", "--by", "user", "--of", "item", "--time", "time", "--when", "label=1",
    "--last", "6", "--out", "with",
];

fn place() -> Workplace {
    let place = Workplace::new();
    for (name, first, users) in [("train", 0, 250), ("valid", 240, 50), ("test", 290, 80)] {
        write(&place, &format!("{name}.parquet"), &log(first, users));
    }
    place
}

fn add(place: &Workplace, more: &[&str]) -> std::process::Output {
    let arguments = [&ADD[..], more].concat();
    zillion(&arguments).current_dir(place.path("")).output().expect("the binary runs")
}

#[test]
fn a_row_has_the_earlier_likes_of_its_user() {
    let place = place();
    let result = add(&place, &["--json", "--in", "train.parquet,valid.parquet", "test.parquet"]);
    assert!(result.status.success(), "{}", stderr(&result));
    let report: Value = serde_json::from_str(stdout(&result).trim()).expect("JSON");
    let mut known: BTreeMap<String, Vec<(i64, i64)>> = BTreeMap::new();
    let files = [("train", 0, 250), ("valid", 240, 50), ("test", 290, 80)];
    let logs = files.map(|(name, first, users)| (name, log(first, users)));
    for (user, item, time, label) in logs.iter().flat_map(|(_, log)| log) {
        if *label == 1 {
            known.entry(user.clone()).or_default().push((*time, *item));
        }
    }
    // Events with the same time are in the order of the files.
    known.values_mut().for_each(|events| events.sort_by_key(|&(time, _)| time));
    for (index, (name, log)) in logs.iter().enumerate() {
        let (lists, columns) = histories(&place, &format!("with/{name}.parquet"));
        assert_eq!((lists.len(), columns), (log.len(), 5));
        let mut empty = 0;
        for ((user, _, now, _), list) in log.iter().zip(lists) {
            let events = known.get(user).map_or(&[][..], Vec::as_slice);
            let before: Vec<i64> =
                events.iter().filter(|(time, _)| time < now).map(|&(_, item)| item).collect();
            assert_eq!(list, before[before.len().saturating_sub(6)..]);
            empty += u64::from(list.is_empty());
        }
        assert_eq!(report[index]["empty"].as_u64(), Some(empty));
        assert_eq!(report[index]["rows"].as_u64(), Some(log.len() as u64));
    }
    // With a lag, the history also leaves out the events of the previous time.
    let again = ["--lag", "100", "--in", "test.parquet"];
    let result = add(&place, &again);
    assert!(!result.status.success());
    let said = stderr(&result);
    assert!(said.contains("with/test.parquet`: the file exists"), "{said}");
    assert!(said.contains("--overwrite replaces existing files"), "{said}");
    let result = add(&place, &[&again[..], &["--overwrite"]].concat());
    assert!(result.status.success(), "{}", stderr(&result));
    assert!(histories(&place, "with/test.parquet").0.iter().all(Vec::is_empty));
}

#[test]
fn impossible_histories_are_refused() {
    let place = place();
    let fails = |more: &[&str], message: &str| {
        let result = add(&place, more);
        assert!(!result.status.success(), "{more:?}");
        let said = stderr(&result);
        assert!(said.contains(message), "{said}");
    };
    fails(&["--in", "train.csv"], "convert it to Parquet first");
    fails(&["--in", "train.parquet", "--out", "."], "cannot be used multiple times");
    fails(
        &["--in", "train.parquet", "--name", "item"],
        "has a column of this name; choose another name",
    );
    fails(&["--in", "train.parquet", "--when", "labl=1"], "did you mean `label`?");
    fails(&["--in", "train.parquet", "--when", "time=noon"], "holds whole numbers");
    fails(&["--in", "train.parquet", "--when", "label"], "COLUMN=VALUE");
    let over: Vec<&str> = ADD.iter().map(|&a| if a == "with" { "." } else { a }).collect();
    let result = zillion(&[&over[..], &["--in", "train.parquet"]].concat())
        .current_dir(place.path(""))
        .output()
        .expect("the binary runs");
    assert!(stderr(&result).contains("overwritten while it is read"), "{}", stderr(&result));
}

const JOB: &str = r#"
name = "din"
seed = 5

[data]
root = "with"
train = ["train.parquet"]
valid = ["valid.parquet"]
test = ["test.parquet"]

[features.user]
kind = "id"
type = "string"
[features.item]
kind = "id"
table = "items"
[features.liked]
kind = "sequence"
column = "history"
table = "items"
max_len = 6

[labels.label]

[tables."*"]
dim = 8
initializer = { kind = "normal", std = 0.1 }
optimizer = { kind = "adagrad", lr = 0.1 }

[model]
kind = "din"
attention = [{ query = "item", history = "liked" }]
attention_hidden = [16, 8]
hidden = [16]
activation = "dice"

[train]
epochs = 8
batch_size = 64
checkpoint_every = 50
optimizer = { kind = "adam", lr = 0.01 }

[run]
threads = 1
"#;

fn test_auc(report: &str) -> f64 {
    let report: Value = serde_json::from_str(report.lines().last().expect("a line")).expect("JSON");
    report["test_auc"].as_f64().expect("a number")
}

#[test]
fn attention_learns_from_histories() {
    let place = place();
    let result = add(&place, &["--in", "*.parquet"]);
    assert!(result.status.success(), "{}", stderr(&result));
    place.write("job.toml", JOB);
    let root = format!("data.root={}", place.text("with"));
    let report = place.train_ok("reference", &["--json", "--set", &root, "--set", "run.shards=3"]);
    let auc = test_auc(&stdout(&report));
    assert!(auc > 0.7, "{auc}");

    // A run that is killed and resumed with other threads and shards ends with the same bytes.
    let mut killed = place.train("killed", &["--set", &root]);
    let killed = killed.env("ZILLION_FAILPOINT", "150:kill").output();
    assert!(!killed.expect("the binary runs").status.success());
    let other = ["--resume", "--set", &root, "--set", "run.threads=2", "--set", "run.shards=5"];
    place.train_ok("killed", &other);
    assert_eq!(place.digest("killed/checkpoints"), place.digest("reference/checkpoints"));

    // Without histories, the data has no information about the label.
    let (before, rest) = JOB.split_once("[features.liked]").expect("the history");
    let (_, labels) = rest.split_once("[labels.label]").expect("what follows it");
    let (tables, rest) = labels.split_once("[model]").expect("what follows it");
    let (_, train) = rest.split_once("[train]").expect("what follows it");
    let plain = format!(
        "{before}[labels.label]{tables}[model]\nkind = 'dnn'\nhidden = [16]\n[train]{train}"
    );
    place.write("job.toml", &plain);
    let without = test_auc(&stdout(&place.train_ok("without", &["--json", "--set", &root])));
    assert!(without < 0.6, "{without}");
}
