//! Tests of the first passes: statistics and vocabularies are compared with simple computations.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array};
use zillion_feature::{Cursor, FeatureKey, TableId};
use zillion_reader::{ReaderError, labels, statistics, texts, vocabulary};

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

#[test]
fn labels_of_numbers_are_read_and_their_pass_may_end_early() {
    let job = schema(
        "[features.user]\nkind='id'\n[labels.sales]\nkind='count'\n[labels.gain]\nkind='number'",
    );
    let folder = Folder::new();
    let text: String = (0..50_000).map(|i| format!("{i},{},{}\n", i % 7, 3 - i % 10)).collect();
    folder.write("a.csv", format!("user,sales,gain\n{text}"));
    let dataset = folder.open(&["a.csv"], &job).unwrap();
    let sums = |most: u64, threads: usize| {
        let (mut sums, mut rows) = ([0.0f64; 2], 0);
        labels(&dataset, 3, most, &workers(threads), |batch| {
            for (sum, label) in sums.iter_mut().zip(&batch.labels) {
                *sum += label.values.iter().map(|&y| f64::from(y)).sum::<f64>();
            }
            rows += batch.rows;
            Ok::<(), ReaderError>(())
        })
        .unwrap();
        (sums, rows)
    };
    let expected = [(0..50_000).map(|i| i % 7).sum::<i64>(), (0..50_000).map(|i| 3 - i % 10).sum()];
    assert_eq!(sums(u64::MAX, 2), (expected.map(|sum| sum as f64), 50_000));
    let (some, rows) = sums(10_000, 1);
    assert!((10_000..50_000).contains(&rows), "{rows}");
    assert_eq!((some, rows), sums(10_000, 3));

    folder.write("bad.csv", "user,sales,gain\n1,-2,0\n");
    let bad = folder.open(&["bad.csv"], &job).unwrap();
    let error = read(&bad, PLAIN, Cursor::default(), 1).unwrap_err().to_string();
    assert!(error.contains("\"-2\" is negative, but label `sales` is a count"), "{error}");
}

#[test]
fn the_texts_of_keys_are_found() {
    let job = schema("[features.kind]\nkind='id'\ntype='string'\n[labels.label]");
    let folder = Folder::new();
    folder.write("a.csv", "kind,label\nphone,1\n,0\ntablet,1\nphone,0\n");
    let dataset = folder.open(&["a.csv"], &job).unwrap();
    let key = FeatureKey::from_text;
    let wanted = [key("tablet"), key("phone"), key("absent")].into_iter().collect();
    let found = texts(&dataset, &job.features[0], &wanted, &workers(1)).unwrap();
    let expected = ["phone", "tablet"].map(|text| (key(text), text.to_owned()));
    assert_eq!(found, expected.into_iter().collect());
}
