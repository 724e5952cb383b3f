//! Real files, where they are: `ZILLION_DATA` names the folder that holds them.

use std::path::PathBuf;

use zillion_feature::{Cursor, Schema, TableId};
use zillion_reader::{BatchOrder, DataConfig, Dataset, vocabulary};

use crate::fixture::{read, schema, workers};

fn open(set: &str, job: &Schema) -> Option<Dataset> {
    let root = std::env::var_os("ZILLION_DATA").map(PathBuf::from)?.join(set);
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
    let Some(dataset) = open("frappe_x1r", &schema(&format!("{features}[labels.label]"))) else {
        eprintln!("skipped: ZILLION_DATA is not set");
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
    let Some(dataset) =
        open("criteo_kaggle_10k", &schema(&format!("{numbers}{ids}[labels.label]")))
    else {
        eprintln!("skipped: ZILLION_DATA is not set");
        return;
    };
    let order = BatchOrder { seed: 1, shuffle: true, batch_rows: 512, drop_last: false };
    let batches = read(&dataset, order, Cursor::default(), 2).unwrap();
    assert_eq!(batches.iter().map(|(b, _)| b.rows).sum::<usize>(), 8000);
    assert!(batches.iter().flat_map(|(b, _)| b.numeric.iter().flatten()).all(|x| x.is_finite()));
}
