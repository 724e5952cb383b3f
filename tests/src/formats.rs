//! Tests of the formats of data. The same rows must give the same results in any format, with any
//! compression and in any number of files.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::FileWriter;

use crate::harness::{Workplace, stderr, stdout, zillion};

/// The arguments that switch off shuffling, because the shuffled order depends on the list of
/// files.
const UNSHUFFLED: [&str; 4] = ["--set", "data.shuffle=false", "--set", "train.epochs=1"];

fn tables_of(place: &Workplace, output: &str, train: &str) -> Vec<(String, String)> {
    let train = format!("data.train={train}");
    let mut arguments = UNSHUFFLED.to_vec();
    arguments.extend(["--set", &train]);
    place.train_ok(output, &arguments);
    let files = place.digest(&format!("{output}/checkpoints"));
    files.into_iter().filter(|(name, _)| !name.ends_with("MANIFEST")).collect()
}

/// Converts CSV text to JSON lines. A cell becomes a number if it can be parsed as a number.
pub(crate) fn as_json(text: &str) -> String {
    let mut lines = text.lines().map(|line| line.split(','));
    let names: Vec<&str> = lines.next().expect("a header").collect();
    let row = |cells: std::str::Split<'_, char>| {
        let value = |cell: &str| match cell.parse::<serde_json::Number>() {
            Ok(number) => number.into(),
            Err(_) => serde_json::Value::from(cell),
        };
        let row = names.iter().map(|&name| name.to_owned()).zip(cells.map(value));
        serde_json::Value::Object(row.collect()).to_string() + "\n"
    };
    lines.map(row).collect()
}

/// Writes CSV text as an Arrow file with 300 rows in each record batch. Columns of numbers have a
/// numeric type; the other columns are strings.
pub(crate) fn write_arrow(path: &Path, text: &str) {
    let batch = record_batch(text);
    let file = std::fs::File::create(path).expect("a file");
    let mut writer = FileWriter::try_new(file, &batch.schema()).expect("a writer");
    for start in (0..batch.num_rows()).step_by(300) {
        let piece = batch.slice(start, 300.min(batch.num_rows() - start));
        writer.write(&piece).expect("it takes rows");
    }
    writer.finish().expect("it takes a footer");
}

/// Returns the rows of CSV text as arrays.
pub(crate) fn record_batch(text: &str) -> RecordBatch {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().expect("a header");
    let rows: Vec<Vec<&str>> = lines.collect();
    let column = |at: usize| -> ArrayRef {
        let cells = || rows.iter().map(|row| Some(row[at]).filter(|cell| !cell.is_empty()));
        if cells().flatten().all(|cell| cell.parse::<i64>().is_ok()) {
            Arc::new(cells().map(|c| c.and_then(|c| c.parse().ok())).collect::<Int64Array>())
        } else if cells().flatten().all(|cell| cell.parse::<f64>().is_ok()) {
            Arc::new(cells().map(|c| c.and_then(|c| c.parse().ok())).collect::<Float64Array>())
        } else {
            Arc::new(cells().collect::<StringArray>())
        }
    };
    let columns = names.iter().enumerate().map(|(at, name)| (*name, column(at), true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

#[test]
fn stdin_and_files_score_alike_in_every_format() {
    let place = Workplace::new();
    place.train_ok("run", &["--set", "train.epochs=1"]);
    let text = std::fs::read_to_string(place.path("test.csv")).expect("it is there");
    place.write("test.jsonl", &as_json(&text));
    let run = place.text("run");
    let predict = |arguments: &[&str]| {
        let mut command = zillion(&["predict", &run]);
        command.args(arguments);
        if arguments[0] == "-" {
            let rows = std::fs::File::open(place.path("test.jsonl")).expect("it is there");
            command.stdin(rows);
        }
        let result = command.output().expect("it runs");
        assert!(result.status.success(), "{}", stderr(&result));
        stdout(&result)
    };
    let reference = predict(&[&place.text("test.csv")]);
    assert_eq!(predict(&[&place.text("test.jsonl")]), reference);
    assert_eq!(predict(&["-", "--format", "jsonl"]), reference);
    place.write("rows.jsonl", "{\"user\": [1]}\n");
    let result = zillion(&["predict", &run, &place.text("rows.jsonl")]).output().expect("it runs");
    assert_eq!(result.status.code(), Some(1));
    assert!(stderr(&result).contains("rows.jsonl"), "{}", stderr(&result));
}

#[test]
fn packed_split_and_tsv_files_train_to_the_same_bytes() {
    let place = Workplace::new();
    let reference = tables_of(&place, "plain", "\"train.csv\"");
    assert!(reference.len() >= 5);

    let text = std::fs::read_to_string(place.path("train.csv")).expect("it is there");
    let packed = Command::new("gzip").arg("-kf").arg(place.path("train.csv")).status();
    assert!(packed.expect("gzip runs").success());
    assert_eq!(tables_of(&place, "gz", "\"train.csv.gz\""), reference);

    place.write("train.tsv", &text.replace(',', "\t"));
    assert_eq!(tables_of(&place, "tsv", "\"train.tsv\""), reference);

    place.write("train.jsonl", &as_json(&text));
    assert_eq!(tables_of(&place, "jsonl", "\"train.jsonl\""), reference);
    write_arrow(&place.path("train.arrow"), &text);
    assert_eq!(tables_of(&place, "arrow", "\"train.arrow\""), reference);
    let inspected = zillion(&["data", "inspect", &place.text("train.arrow")]).output();
    assert!(stdout(&inspected.expect("it runs")).contains("user"));
    let bench =
        ["bench", "reader", "--data", &place.text("train.arrow"), "--repeat", "1", "--json"];
    let outcome =
        zillion(&bench).args(["--job", &place.text("job.toml")]).output().expect("it runs");
    let outcome: serde_json::Value = serde_json::from_str(&stdout(&outcome)).expect("JSON");
    assert_eq!(outcome["rows"].as_u64(), Some(text.lines().count() as u64 - 1));

    let (header, rows) = text.split_once('\n').expect("a header");
    let lines: Vec<&str> = rows.lines().collect();
    let (first, second) = lines.split_at(700);
    std::fs::create_dir(place.path("parts")).expect("a new folder");
    place.write("parts/a.csv", &format!("{header}\n{}\n", first.join("\n")));
    place.write("parts/b.csv", &format!("{header}\n{}\n", second.join("\n")));
    assert_eq!(tables_of(&place, "split", "\"parts\""), reference);
    assert_eq!(tables_of(&place, "glob", "\"parts/*.csv\""), reference);
    place.write("bare.csv", rows);
    let names: Vec<String> = header.split(',').map(|n| format!("\"{n}\"")).collect();
    let header = format!("data.header=[{}]", names.join(","));
    // The validation and test files would need the same change, so they are left out.
    let train =
        ["--set", "data.train=\"bare.csv\"", "--set", "data.valid=[]", "--set", "data.test=[]"];
    let mut arguments = UNSHUFFLED.to_vec();
    arguments.extend(train);
    arguments.extend(["--set", &header]);
    place.train_ok("bare", &arguments);
    let files = place.digest("bare/checkpoints");
    let bare: Vec<_> = files.into_iter().filter(|(n, _)| !n.ends_with("MANIFEST")).collect();
    assert_eq!(bare, reference);
}

#[test]
fn a_file_with_a_wrong_extension_is_refused_by_name() {
    let place = Workplace::new();
    for name in ["bad.csv.zst", "bad.csv.gz", "bad.parquet"] {
        place.write(name, "this is nothing of the kind");
        let train = format!("data.train=\"{name}\"");
        let (code, said) = place.train_fails(&["--set", &train]);
        assert_eq!(code, 1);
        assert!(said.contains(name), "{said}");
    }
}
