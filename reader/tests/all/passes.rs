//! Tests of the first passes: statistics and vocabularies are compared with simple computations.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array};
use zillion_feature::{Cursor, FeatureKey, TableId};
use zillion_reader::{statistics, vocabulary};

use crate::fixture::{Folder, PLAIN, read, schema, workers};

#[test]
fn statistics_cover_what_needs_them_and_nothing_else() {
    let job = schema(
        r#"
        [features.age]
        kind = "numeric"
        transform = "standardise"
        missing = 0
        [features.raw]
        kind = "numeric"
        [features.price]
        kind = "bucketized"
        buckets = 4
        column = "raw"
        [features.given]
        kind = "bucketized"
        boundaries = [1, 2]
        column = "raw"
        [labels.label]
        "#,
    );
    let folder = Folder::new();
    let n = 200_000;
    let age: ArrayRef =
        Arc::new(Float64Array::from_iter((0..n).map(|i| (i % 3 > 0).then_some(f64::from(i % 7)))));
    let raw: ArrayRef = Arc::new(Float64Array::from_iter_values((0..n).rev().map(f64::from)));
    let label: ArrayRef = Arc::new(Int64Array::from(vec![0; n as usize]));
    folder.write_parquet("a.parquet", vec![("age", age), ("raw", raw), ("label", label)], 30_000);
    let dataset = folder.open(&["a.parquet"], &job).unwrap();

    let error = dataset.batches(PLAIN, Cursor::default(), workers(1)).unwrap_err().to_string();
    assert!(error.starts_with("feature `age` has no statistics"), "{error}");

    let found = statistics(&dataset, &workers(1)).unwrap();
    assert_eq!(found, statistics(&dataset, &workers(3)).unwrap());
    assert_eq!(found.columns.keys().collect::<Vec<_>>(), ["age", "price"]);
    let present: Vec<f64> = (0..n).filter(|i| i % 3 > 0).map(|i| f64::from(i % 7)).collect();
    let count = present.len() as f64;
    let mean = present.iter().sum::<f64>() / count;
    let variance = present.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let age = &found.columns["age"];
    assert_eq!((age.count, age.min, age.max), (present.len() as u64, 0.0, 6.0));
    assert!((age.mean - mean).abs() < 1e-12 && (age.std - variance.sqrt()).abs() < 1e-12);
    let price = &found.columns["price"];
    assert_eq!(price.boundaries.as_deref(), Some([50_000.0, 100_000.0, 150_000.0].as_slice()));

    let batches = read(&dataset.with_statistics(found), PLAIN, Cursor::default(), 1).unwrap();
    let mut counts = [0; 4];
    for (batch, _) in &batches {
        for key in &batch.sparse[0].keys {
            counts[key.unmix() as usize] += 1;
        }
    }
    assert_eq!(counts, [50_000; 4]);
}

#[test]
fn a_feature_without_a_value_has_no_statistics() {
    let job = schema(
        "[features.age]\nkind='numeric'\ntransform='standardise'\nmissing=0\n[labels.label]",
    );
    let folder = Folder::new();
    folder.write("a.csv", "age,label\n,1\n,0\n");
    let dataset = folder.open(&["a.csv"], &job).unwrap();
    assert_eq!(
        statistics(&dataset, &workers(1)).unwrap_err().to_string(),
        "`features.age`: no row of the training data has a value; remove the feature from the job"
    );
}

#[test]
fn a_vocabulary_is_sorted_unique_and_capped() {
    let job = schema(
        r#"
        [features.user]
        kind = "id"
        table = "ids"
        [features.age]
        kind = "numeric"
        transform = "standardise"
        [features.items]
        kind = "ids"
        table = "ids"
        [features.city]
        kind = "id"
        type = "string"
        [labels.label]
        "#,
    );
    let folder = Folder::new();
    let rows: String =
        (0..100_000).map(|i| format!("{},1,{}|{},x,0\n", i % 1000, i % 10, 5000 + i % 5)).collect();
    folder.write("a.csv", format!("user,age,items,city,label\n{rows},1,,,1\n"));
    let dataset = folder.open(&["a.csv"], &job).unwrap();
    // A transform without statistics is allowed, because its feature has no table.
    let (ids, city) = (TableId(0), TableId(1));
    let found = vocabulary(&dataset, &[(city, 2), (ids, 1006)], &workers(2)).unwrap();
    let mut wanted: Vec<FeatureKey> =
        (0..1000).chain(5000..5005).map(FeatureKey::from_u64).collect();
    wanted.push(FeatureKey::missing("user"));
    wanted.sort_unstable();
    assert_eq!(found[1], wanted);
    let mut cities = [FeatureKey::missing("city"), FeatureKey::from_text("x")];
    cities.sort_unstable();
    assert_eq!(found[0], cities);
    assert_eq!(
        vocabulary(&dataset, &[(ids, 1005)], &workers(2)).unwrap_err().to_string(),
        "table `ids` has more than 1005 distinct keys in the data; raise its `max_rows` or make it dynamic (`dense = false`)"
    );
    assert_eq!(vocabulary(&dataset, &[], &workers(1)).unwrap(), Vec::<Vec<FeatureKey>>::new());
}
