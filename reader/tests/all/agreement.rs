//! Tests that the same rows make the same batches in every format.

use std::sync::Arc;

use arrow_array::builder::{Int64Builder, LargeListBuilder, StringDictionaryBuilder};
use arrow_array::types::{Int8Type, Int32Type, Int64Type, UInt16Type};
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, Int64Array, ListArray,
    NullArray, StringArray, StringViewArray,
};
use arrow_ipc::CompressionType;
use proptest::prelude::*;
use zillion_feature::{Cursor, Schema, Statistics};
use zillion_reader::BatchOrder;

use crate::fixture::{Folder, no_statistics, read, schema, workers, write_ipc, write_parquet};

fn job() -> Schema {
    schema(
        r#"
        [features.user]
        kind = "id"
        [features.city]
        kind = "id"
        type = "string"
        [features.tags]
        kind = "ids"
        [features.words]
        kind = "ids"
        type = "string"
        [features.age]
        kind = "numeric"
        transform = "log1p"
        missing = 30.5
        [features.size]
        kind = "numeric"
        transform = "standardise"
        missing = 0
        [features.price]
        kind = "bucketized"
        buckets = 5
        [labels.click]
        [labels.buy]
        [columns]
        weight = "weight"
        group = "user_group"
        event_time = "time"
        "#,
    )
}

#[derive(Clone, Debug)]
struct Row {
    user: Option<i64>,
    city: Option<String>,
    tags: Option<Vec<i64>>,
    words: Option<Vec<String>>,
    age: Option<f64>,
    size: Option<i64>,
    price: Option<f64>,
    click: i64,
    buy: Option<i64>,
    weight: f64,
    user_group: String,
    time: i64,
}

fn row() -> impl Strategy<Value = Row> {
    let word = || "[a-z \"ü\n]{1,5}";
    // Spaces around the values of a list in a cell are no part of them.
    let item = || "[a-z\"ü]([a-z \"ü\n]{0,3}[a-z\"ü])?";
    let number = || prop_oneof![(-1e6..1e6f64), (0..50i32).prop_map(f64::from)];
    (
        (
            prop::option::of(any::<i64>()),
            prop::option::of(word()),
            prop::option::of(prop::collection::vec(any::<i64>(), 0..4)),
            prop::option::of(prop::collection::vec(item(), 0..4)),
            prop::option::of(number()),
            prop::option::of(-1000..1000i64),
        ),
        (
            prop::option::of(number()),
            0..2i64,
            prop::option::of(0..2i64),
            0.0..9.0f64,
            prop_oneof![
                any::<i64>().prop_map(|i| i.to_string()),
                "[a-z]{1,4}".prop_map(String::from)
            ],
            any::<i64>(),
        ),
    )
        .prop_map(
            |(
                (user, city, tags, words, age, size),
                (price, click, buy, weight, user_group, time),
            )| {
                Row {
                    user,
                    city,
                    tags,
                    words,
                    age,
                    size,
                    price,
                    click,
                    buy,
                    weight,
                    user_group,
                    time,
                }
            },
        )
}

fn text(rows: &[Row]) -> String {
    fn cell<T: ToString>(value: &Option<T>) -> String {
        value
            .as_ref()
            .map_or(String::new(), |v| format!("\"{}\"", v.to_string().replace('"', "\"\"")))
    }
    fn list<T: ToString>(values: &Option<Vec<T>>) -> String {
        cell(&values.as_ref().map(|v| v.iter().map(T::to_string).collect::<Vec<_>>().join("|")))
    }
    let header = "user,city,tags,words,age,size,price,click,buy,weight,user_group,time\n";
    let line = |r: &Row| {
        let cells = [
            cell(&r.user),
            cell(&r.city),
            list(&r.tags),
            list(&r.words),
            cell(&r.age),
            cell(&r.size),
            cell(&r.price),
            r.click.to_string(),
            cell(&r.buy),
            r.weight.to_string(),
            r.user_group.clone(),
            r.time.to_string(),
        ];
        cells.join(",") + "\n"
    };
    header.to_owned() + &rows.iter().map(line).collect::<String>()
}

/// Writes rows as JSON lines. A missing value is null in some rows, and its key is absent in
/// others.
fn json(rows: &[Row]) -> String {
    let line = |(i, r): (usize, &Row)| {
        let value = serde_json::json!({
            "weight": r.weight, "user": r.user, "city": r.city, "tags": r.tags, "words": r.words,
            "unused": {"a": [1, {"b": null}]}, "age": r.age, "size": r.size, "price": r.price,
            "click": r.click == 1, "buy": r.buy, "user_group": r.user_group, "time": r.time,
        });
        let serde_json::Value::Object(mut object) = value else { unreachable!() };
        if i > 0 && i % 2 == 0 {
            object.retain(|_, value| !value.is_null());
        }
        serde_json::Value::Object(object).to_string() + "\n"
    };
    rows.iter().enumerate().map(line).collect()
}

fn columns(rows: &[Row]) -> Vec<(&'static str, ArrayRef)> {
    let mut words =
        arrow_array::builder::ListBuilder::new(arrow_array::builder::StringBuilder::new());
    for row in rows {
        words.append_option(row.words.as_ref().map(|w| w.iter().map(Some)));
    }
    let ints = |value: &dyn Fn(&Row) -> Option<i64>| -> ArrayRef {
        Arc::new(rows.iter().map(value).collect::<Int64Array>())
    };
    let floats = |value: &dyn Fn(&Row) -> Option<f64>| -> ArrayRef {
        Arc::new(rows.iter().map(value).collect::<Float64Array>())
    };
    let tags = rows
        .iter()
        .map(|r| r.tags.as_ref().map(|t| t.iter().copied().map(Some).collect::<Vec<_>>()));
    vec![
        // The order of the columns differs from the order in the text.
        ("time", ints(&|r| Some(r.time))),
        (
            "user_group",
            Arc::new(rows.iter().map(|r| Some(r.user_group.clone())).collect::<StringArray>()),
        ),
        ("user", ints(&|r| r.user)),
        ("city", Arc::new(rows.iter().map(|r| r.city.clone()).collect::<StringArray>())),
        ("tags", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(tags))),
        ("words", Arc::new(words.finish())),
        ("age", floats(&|r| r.age)),
        ("size", ints(&|r| r.size)),
        ("price", floats(&|r| r.price)),
        ("click", ints(&|r| Some(r.click))),
        ("buy", ints(&|r| r.buy)),
        ("weight", floats(&|r| Some(r.weight))),
    ]
}

/// Returns the columns of the same rows in other Arrow encodings.
fn encoded(rows: &[Row]) -> Vec<(&'static str, ArrayRef)> {
    let mut words = LargeListBuilder::new(StringDictionaryBuilder::<Int8Type>::new());
    let mut tags = LargeListBuilder::new(Int64Builder::new());
    let mut city = StringDictionaryBuilder::<UInt16Type>::new();
    for row in rows {
        words.append_option(row.words.as_ref().map(|w| w.iter().map(Some)));
        tags.append_option(row.tags.as_ref().map(|t| t.iter().copied().map(Some)));
        city.append_option(row.city.as_ref());
    }
    let size: DictionaryArray<Int32Type> = {
        let sizes = Int64Array::from_iter_values(-1000..1000);
        let entries: Int32Array = rows.iter().map(|r| r.size.map(|s| s as i32 + 1000)).collect();
        DictionaryArray::new(entries, Arc::new(sizes))
    };
    let mut columns = columns(rows);
    for (name, array) in &mut columns {
        *array = match *name {
            "user_group" => {
                Arc::new(rows.iter().map(|r| Some(&r.user_group)).collect::<StringViewArray>())
            }
            "city" => Arc::new(city.finish()),
            "tags" => Arc::new(tags.finish()),
            "words" => Arc::new(words.finish()),
            "size" => Arc::new(size.clone()),
            "click" => Arc::new(rows.iter().map(|r| Some(r.click == 1)).collect::<BooleanArray>()),
            "buy" if rows.iter().all(|r| r.buy.is_none()) => Arc::new(NullArray::new(rows.len())),
            _ => continue,
        };
    }
    columns
}

const FILES: [&str; 5] = ["a.csv", "a.parquet", "a.jsonl.gz", "a.arrow", "b.feather"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn every_format_makes_the_same_batches(
        rows in prop::collection::vec(row(), 1..60),
        group in 1usize..40,
        dictionary in any::<bool>(),
    ) {
        // The statistics need a value in every column.
        let mut rows = rows;
        rows[0].size = Some(3);
        rows[0].price = Some(4.5);
        let folder = Folder::new();
        folder.write("a.csv", text(&rows));
        write_ipc(&folder.path("a.arrow"), columns(&rows), group, None);
        let compression = [None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)][group % 3];
        // A writer stores each dictionary once, so there is only one record batch.
        write_ipc(&folder.path("b.feather"), encoded(&rows), rows.len(), compression);
        folder.write_gzip("a.jsonl.gz", json(&rows).as_bytes());
        write_parquet(&folder.path("a.parquet"), columns(&rows), group, dictionary);
        let order = BatchOrder { seed: 3, shuffle: true, batch_rows: 16, drop_last: false };
        let mut results = Vec::new();
        for name in FILES {
            let dataset = folder.open(&[name], &job()).unwrap();
            let pool = workers(2);
            let statistics = zillion_reader::statistics(&dataset, &pool).unwrap();
            prop_assert!(statistics != no_statistics());
            let dataset = dataset.with_statistics(statistics.clone());
            let plain = BatchOrder { shuffle: false, ..order };
            results.push((statistics, read(&dataset, plain, Cursor::default(), 2).unwrap()));
        }
        let first = &results[0];
        for (name, other) in FILES.iter().zip(&results) {
            prop_assert_eq!(&first.0, &other.0, "{}", name);
            prop_assert_eq!(&first.1, &other.1, "{}", name);
        }
        if group >= rows.len() {
            // Each file is one unit, so the shuffled order is the same too.
            let shuffled = |name: &str, statistics: &Statistics| {
                let dataset = folder.open(&[name], &job()).unwrap().with_statistics(statistics.clone());
                read(&dataset, order, Cursor::default(), 1).unwrap()
            };
            for name in &FILES[1..] {
                prop_assert_eq!(shuffled(FILES[0], &first.0), shuffled(name, &first.0), "{}", name);
            }
        }
    }
}
