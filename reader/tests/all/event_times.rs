//! Tests of event times with a unit, and of the counts of bytes and bad rows.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, TimestampMicrosecondArray, TimestampMillisecondArray};
use zillion_feature::Cursor;
use zillion_reader::{BAD_ROWS, BadRowKind, Dataset};

use crate::fixture::{Folder, PLAIN, read, schema};

fn job(unit: &str) -> zillion_feature::Schema {
    schema(&format!(
        "[features.x]\nkind='id'\n[labels.label]\n[columns]\nevent_time='t'\nevent_time_unit='{unit}'"
    ))
}

fn with_times(folder: &Folder, times: ArrayRef) {
    let x: ArrayRef = Arc::new(Int64Array::from(vec![1, 0]));
    folder.write_parquet("a.parquet", vec![("x", x.clone()), ("label", x), ("t", times)], 9);
}

fn times(dataset: &Dataset) -> Vec<i64> {
    let batches = read(dataset, PLAIN, Cursor::default(), 1).unwrap();
    batches.into_iter().flat_map(|(batch, _)| batch.event_time.unwrap()).collect()
}

#[test]
fn times_keep_the_unit_of_the_job() {
    let at = [1_700_000_000_i64, 1_700_000_001];
    let numbers = |factor: i64| -> Vec<i64> { at.iter().map(|t| t * factor).collect() };
    let fits: Vec<(&str, ArrayRef, i64)> = vec![
        ("s", Arc::new(Int64Array::from(numbers(1))), 1),
        ("ms", Arc::new(Int64Array::from(numbers(1000))), 1000),
        ("ms", Arc::new(TimestampMillisecondArray::from(numbers(1000))), 1000),
        ("us", Arc::new(TimestampMicrosecondArray::from(numbers(1_000_000))), 1_000_000),
    ];
    for (unit, array, factor) in fits {
        let folder = Folder::new();
        with_times(&folder, array);
        let dataset = folder.open(&["a.parquet"], &job(unit)).unwrap();
        assert_eq!(times(&dataset), numbers(factor), "{unit}");
    }
}

#[test]
fn a_number_that_is_none_of_its_unit_is_a_bad_row_in_every_format() {
    // Some times are in milliseconds, although the job declares seconds.
    let numbers = vec![1_700_000_000_i64, 1_700_000_000_000];
    let text = "x,label,t\n1,1,1700000000\n0,0,1700000000000\n";
    let folder = Folder::with("max_bad_rows = 1");
    with_times(&folder, Arc::new(Int64Array::from(numbers.clone())));
    folder.write("a.csv", text);
    folder.write(
        "a.jsonl",
        "{\"x\":1,\"label\":1,\"t\":1700000000}\n{\"x\":0,\"label\":0,\"t\":1700000000000}\n",
    );
    for file in ["a.parquet", "a.csv", "a.jsonl"] {
        let dataset = folder.open(&[file], &job("s")).unwrap();
        assert_eq!(times(&dataset), [1_700_000_000], "{file}");
        let counts = dataset.counts();
        assert_eq!(counts.bad_rows, [1, 0, 0], "{file}");
        assert!(counts.bytes > 0, "{file}");
        // A second pass counts the same rows again.
        times(&dataset);
        assert_eq!(dataset.counts().bad_rows, [2, 0, 0], "{file}");
        assert_eq!(dataset.counts().bytes, 2 * counts.bytes, "{file}");
    }
    let strict = Folder::new();
    strict.write("a.csv", text);
    let dataset = strict.open(&["a.csv"], &job("s")).unwrap();
    let error = read(&dataset, PLAIN, Cursor::default(), 1).unwrap_err().to_string();
    for part in ["`columns.event_time_unit`", "1700000000000", "seconds since 1970", "row 2"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn kinds_of_bad_rows_are_counted_apart() {
    let folder = Folder::with("max_bad_rows = 9");
    folder.write("a.csv", "x,label\n1,1\nwrong,0\n1,0,7\n2,1\n1\n");
    let job = schema("[features.x]\nkind='id'\n[labels.label]");
    let dataset = folder.open(&["a.csv"], &job).unwrap();
    read(&dataset, PLAIN, Cursor::default(), 1).unwrap();
    let counts = dataset.counts();
    let of = |kind: BadRowKind| counts.bad_rows[BAD_ROWS.iter().position(|&k| k == kind).unwrap()];
    assert_eq!((of(BadRowKind::Value), of(BadRowKind::Cells), of(BadRowKind::Record)), (1, 2, 0));
}
