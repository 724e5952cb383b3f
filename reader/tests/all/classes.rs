//! Tests of labels of classes, which every format reads as the same indices.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array, StringArray};
use zillion_feature::{Cursor, Schema};

use crate::fixture::{Folder, PLAIN, read, schema, write_ipc};

fn job(classes: &str) -> Schema {
    schema(&format!("[features.user]\nkind='id'\n[labels.label]\nkind='class'\nclasses={classes}"))
}

fn labels(folder: &Folder, file: &str, schema: &Schema) -> Vec<f32> {
    let dataset = folder.open(&[file], schema).unwrap();
    let batches = read(&dataset, PLAIN, Cursor::default(), 2).unwrap();
    batches.iter().flat_map(|(batch, _)| batch.labels[0].values.clone()).collect()
}

#[test]
fn texts_and_numbers_are_classes_in_every_format() {
    let folder = Folder::with("");
    let user = |rows: i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(0..rows)) };
    let texts = ["red", "dark blue", "red", "green"];
    let schema = job("['red', 'green', 'dark blue']");
    let expected = [0.0, 2.0, 0.0, 1.0];
    let column = || -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
    for dictionary in [true, false] {
        let columns = vec![("user", user(4)), ("label", column())];
        crate::fixture::write_parquet(&folder.path("t.parquet"), columns, 3, dictionary);
        assert_eq!(labels(&folder, "t.parquet", &schema), expected);
    }
    write_ipc(&folder.path("t.arrow"), vec![("user", user(4)), ("label", column())], 3, None);
    assert_eq!(labels(&folder, "t.arrow", &schema), expected);
    folder.write("t.csv", "user,label\n0,red\n1,dark blue\n2,red\n3,green\n");
    assert_eq!(labels(&folder, "t.csv", &schema), expected);
    let lines = texts.map(|text| format!("{{\"user\":1,\"label\":\"{text}\"}}\n")).concat();
    folder.write("t.jsonl", lines);
    assert_eq!(labels(&folder, "t.jsonl", &schema), expected);

    let schema = job("[5, -1, 3]");
    let expected = [2.0, 0.0, 1.0];
    let numbers: [ArrayRef; 2] = [
        Arc::new(Int32Array::from(vec![3, 5, -1])),
        Arc::new(Float64Array::from(vec![3.0, 5.0, -1.0])),
    ];
    for column in numbers {
        folder.write_parquet("n.parquet", vec![("user", user(3)), ("label", column)], 2);
        assert_eq!(labels(&folder, "n.parquet", &schema), expected);
    }
    folder.write("n.csv", "user,label\n0,3\n1,5.0\n2,-1\n");
    assert_eq!(labels(&folder, "n.csv", &schema), expected);
    folder.write(
        "n.jsonl",
        "{\"user\":1,\"label\":3}\n{\"user\":1,\"label\":5.0}\n{\"user\":1,\"label\":\"-1\"}\n",
    );
    assert_eq!(labels(&folder, "n.jsonl", &schema), expected);
}

#[test]
fn values_that_are_no_class_are_refused_by_row_and_value() {
    let folder = Folder::with("");
    let user = || -> ArrayRef { Arc::new(Int64Array::from(vec![1, 2])) };
    let texts = job("['red', 'green']");
    folder.write("t.csv", "user,label\n0,red\n1,Red\n");
    let column: ArrayRef = Arc::new(StringArray::from(vec!["red", "Red"]));
    folder.write_parquet("t.parquet", vec![("user", user()), ("label", column)], 9);
    for file in ["t.csv", "t.parquet"] {
        let error = folder.error(&[file], &texts);
        for part in [file, "2", "\"Red\" is not a class of label `label`", "red, green"] {
            assert!(error.contains(part), "{error}");
        }
    }
    let numbers = job("[1, 2]");
    folder.write("n.csv", "user,label\n0,1\n1,1.5\n");
    let error = folder.error(&["n.csv"], &numbers);
    assert!(error.contains("\"1.5\" is not a class"), "{error}");
    folder.write("w.csv", "user,label\n0,1\n1,one\n");
    let error = folder.error(&["w.csv"], &numbers);
    assert!(error.contains("\"one\" is not a class"), "{error}");
    // The type of a column is checked before any row is read.
    let error = folder.error(&["t.parquet"], &numbers);
    assert!(error.contains("numbers, as its `classes` are"), "{error}");
}
