//! Tests that compare histories with a slow and simple computation, row by row.

use proptest::prelude::*;
use zillion_feature::FeatureKey;

use super::timeline::Timeline;

#[derive(Clone, Copy, Debug)]
struct Row {
    owner: Option<u64>,
    time: Option<i64>,
    item: Option<u32>,
}

/// Returns the items of all events that are older than the row by more than the lag, in the order
/// of time. Only the last `last` items are kept.
fn slow(rows: &[Row], of: Row, last: usize, lag: i64) -> Vec<u32> {
    let (Some(owner), Some(now)) = (of.owner, of.time) else { return Vec::new() };
    let mut before: Vec<(i64, usize, u32)> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        if let (Some(other), Some(time), Some(item)) = (row.owner, row.time, row.item)
            && other == owner
            && time < now - lag
        {
            before.push((time, index, item));
        }
    }
    before.sort_unstable();
    let skipped = before.len().saturating_sub(last);
    before[skipped..].iter().map(|&(.., item)| item).collect()
}

fn row() -> impl Strategy<Value = Row> {
    let maybe = prop::option::weighted::<std::ops::Range<u64>>;
    let time = prop::option::weighted(0.95, -8i64..8);
    (maybe(0.95, 0..3), time, prop::option::weighted(0.7, 0u32..1000))
        .prop_map(|(owner, time, item)| Row { owner, time, item })
}

proptest! {
    #[test]
    fn histories_hold_exactly_the_earlier_events(
        rows in prop::collection::vec(row(), 0..60),
        last in 1usize..6,
        lag in 0i64..5,
    ) {
        let mut timeline = Timeline::default();
        for row in &rows {
            timeline.push(row.owner.map(FeatureKey::from_u64), row.time, row.item);
        }
        let histories = timeline.histories(last, lag as u64);
        for (index, &row) in rows.iter().enumerate() {
            prop_assert_eq!(histories.of_row(index), slow(&rows, row, last, lag));
        }
    }
}

#[test]
fn the_ends_of_time_do_not_overflow() {
    let mut timeline = Timeline::default();
    let owner = Some(FeatureKey::from_u64(1));
    timeline.push(owner, Some(i64::MIN), Some(7));
    timeline.push(owner, Some(i64::MAX), Some(8));
    let histories = timeline.histories(9, u64::MAX);
    assert!(histories.of_row(0).is_empty() && histories.of_row(1).is_empty());
    assert_eq!(timeline.histories(9, u64::MAX - 1).of_row(1), [7]);
}

#[test]
fn a_condition_that_no_row_fulfils_is_refused() {
    use std::sync::Arc;

    use arrow_array::{Int64Array, RecordBatch};
    use arrow_schema::{DataType, Field, Schema};
    use zillion_device::Files;

    use super::{HistorySpec, add_histories};
    use crate::parquet_files::{properties, write_parquet};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let names = ["user", "item", "time", "label", "shown"];
    let fields = names.map(|name| Field::new(name, DataType::Int64, true));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let column = |values: [i64; 4]| Arc::new(Int64Array::from_iter_values(values)) as _;
    let columns = [[1, 1, 2, 2], [5, 6, 7, 8], [1, 2, 3, 4], [0, 1, 0, 1], [1, 0, 1, 0]];
    let batch = RecordBatch::try_new(schema.clone(), columns.map(column).to_vec()).unwrap();
    let mut batches = Some(vec![batch]);
    let next = || Ok(batches.take().unwrap_or_default());
    write_parquet(&path, schema, properties(), &Files::new(), next).unwrap();
    let run = |when: &[(&str, &str)]| {
        let spec = HistorySpec {
            by: "user".to_owned(),
            of: "item".to_owned(),
            time: "time".to_owned(),
            when: when.iter().map(|&(c, v)| (c.to_owned(), v.to_owned())).collect(),
            last: 5,
            lag: 0,
            name: "history".to_owned(),
            date_order: None,
            overwrite: false,
        };
        let input = [path.display().to_string()];
        add_histories(&spec, &input, &folder.path().join("out"), &Files::new())
    };
    let error = run(&[("shown", "1"), ("label", "2")]).unwrap_err().to_string();
    assert!(error.contains("no row of the files has the value `2` in column `label`"), "{error}");
    let error = run(&[("label", "1"), ("shown", "1")]).unwrap_err().to_string();
    assert!(error.contains("`label=1` and `shown=1` together"), "{error}");
    assert!(!folder.path().join("out").exists());
    assert_eq!(run(&[("label", "1"), ("shown", "0")]).unwrap()[0].rows, 4);
    let error = run(&[("label", "1")]).unwrap_err().to_string();
    assert!(error.contains("the file exists; remove it"), "{error}");
}
