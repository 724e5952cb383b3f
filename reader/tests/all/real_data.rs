//! Tests with real data sets. They run only if the data lies in `shared/data` beside the checkout.

use std::io::Write;
use std::path::Path;

use zillion_feature::{Cursor, Schema, TableId};
use zillion_reader::{BatchOrder, DataConfig, Dataset, vocabulary};

use crate::fixture::{read, schema, workers};

/// Opens the training file of a real data set. If the data set is absent, returns `None` and prints
/// that `test` is skipped, in the words that CI compares with the list of allowed skips.
fn open(test: &str, set: &str, job: &Schema) -> Option<Dataset> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(set);
    if !root.exists() {
        // The test does not use `eprintln!`, because the test harness hides its output if the test
        // passes.
        let mut stderr = std::io::stderr().lock();
        writeln!(stderr, "SKIPPED {test}: {set} is not beside the checkout").unwrap();
        return None;
    }
    let config = DataConfig { root, ..DataConfig::default() };
    let files = config.files(&"train.parquet".into()).unwrap();
    Some(Dataset::open(&config, &files, job).unwrap())
}

#[test]
fn frappe() {
    let fields = [
        "user",
        "item",
        "daytime",
        "weekday",
        "isweekend",
        "homework",
        "cost",
        "weather",
        "country",
        "city",
    ];
    let features: String =
        fields.iter().map(|f| format!("[features.{f}]\nkind='id'\ntable='ids'\n")).collect();
    let Some(dataset) =
        open("reader_frappe", "frappe_x1r", &schema(&format!("{features}[labels.label]")))
    else {
        return;
    };
    assert_eq!(dataset.rows(), Some(202_027));
    let order = BatchOrder { seed: 1, shuffle: true, batch_rows: 4096, drop_last: false };
    let batches = read(&dataset, order, Cursor::default(), 2).unwrap();
    assert_eq!(batches.len(), 202_027_usize.div_ceil(4096));
    let positives: f32 = batches.iter().flat_map(|(b, _)| &b.labels[0].values).sum();
    assert_eq!(positives, 67_604.0);
    let keys = vocabulary(&dataset, &[(TableId(0), 10_000)], &workers(2)).unwrap();
    assert!((5000..=5382).contains(&keys[0].len()), "{}", keys[0].len());
}

#[test]
fn criteo() {
    let numbers: String = (1..=13)
        .map(|i| format!("[features.I{i}]\nkind='numeric'\ntransform='log1p'\nmissing=0\n"))
        .collect();
    let ids: String =
        (1..=26).map(|i| format!("[features.C{i}]\nkind='id'\ntype='string'\n")).collect();
    let Some(dataset) = open(
        "reader_criteo",
        "criteo_kaggle_10k",
        &schema(&format!("{numbers}{ids}[labels.label]")),
    ) else {
        return;
    };
    let order = BatchOrder { seed: 1, shuffle: true, batch_rows: 512, drop_last: false };
    let batches = read(&dataset, order, Cursor::default(), 2).unwrap();
    assert_eq!(batches.iter().map(|(b, _)| b.rows).sum::<usize>(), 8000);
    assert!(batches.iter().flat_map(|(b, _)| b.numeric.iter().flatten()).all(|x| x.is_finite()));
}
