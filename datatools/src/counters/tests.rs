//! Tests of counters against a slow and simple computation, which looks at all earlier rows for
//! each row.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, TimestampMillisecondArray};
use proptest::prelude::*;
use zillion_device::Files;
use zillion_feature::{DateOrder, FeatureKey, TimeUnit};
use zillion_reader::{DataConfig, Result};

use super::recent::{Recent, Spans};
use super::{Counted, CounterSpec, Counts, Span, add_counters};
use crate::condition::Condition;
use crate::parquet_files::{properties, write_parquet};
use crate::rewrite::{RowFiles, one_worker, read_back};

#[derive(Clone, Copy, Debug)]
struct Row {
    ids: [Option<u64>; 2],
    time: i64,
    label: Option<bool>,
}

/// Returns the counts of one id in one window for the row with the number `at`.
fn slow(rows: &[Row], at: usize, column: usize, window: Option<u64>, lag: u64) -> Option<Counts> {
    let id = rows[at].ids[column]?;
    let end = i128::from(rows[at].time) - i128::from(lag);
    let start = window.map_or(i128::MIN, |length| end - i128::from(length));
    let mut counts = Counts::default();
    for row in rows {
        let is_inside = (start..end).contains(&i128::from(row.time));
        if let (true, true, Some(label)) = (is_inside, row.ids[column] == Some(id), row.label) {
            counts.rows += 1;
            counts.positives += u32::from(label);
        }
    }
    Some(counts)
}

fn count_all(rows: &[Row], spans: &Spans) -> (Vec<Vec<Option<Counts>>>, Vec<f64>, u64) {
    let mut recent = Recent::new(2, spans.clone());
    let (mut counts, mut bases) = (Vec::new(), Vec::new());
    for row in rows {
        recent.advance(row.time);
        bases.push(recent.base_rate());
        let keys = row.ids.iter().map(|id| id.map(FeatureKey::from_u64));
        counts.push(recent.count(keys, row.time, row.label));
    }
    (counts, bases, recent.held_rows())
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let id = || prop::option::weighted(0.9, 0u64..3);
    let label = prop::option::weighted(0.9, any::<bool>());
    // Many rows have the same time.
    let row = ([id(), id()], 0i64..3, label);
    prop::collection::vec(row, 0..60).prop_map(|rows| {
        let mut now = -5;
        let row = |(ids, step, label)| {
            now += step;
            Row { ids, time: now, label }
        };
        rows.into_iter().map(row).collect()
    })
}

proptest! {
    #[test]
    fn counts_are_those_of_earlier_rows(
        rows in rows(),
        windows in prop::collection::vec(prop::option::weighted(0.8, 0u64..9), 1..4),
        lag in 0u64..5,
    ) {
        let spans = Spans { windows: windows.clone(), lag };
        let (counts, _, held) = count_all(&rows, &spans);
        for (at, counts) in counts.iter().enumerate() {
            let columns = (0..2).flat_map(|column| windows.iter().map(move |w| (column, *w)));
            let wanted: Vec<_> =
                columns.map(|(column, window)| slow(&rows, at, column, window, lag)).collect();
            prop_assert_eq!(counts, &wanted);
        }
        // Only the rows of the longest window, the lag and the present time are held.
        let longest = windows.iter().flatten().max().copied().unwrap_or(0) + lag;
        let newest = rows.last().map_or(0, |row| row.time);
        let is_needed = |row: &&Row| newest - row.time <= longest as i64 && row.label.is_some();
        prop_assert_eq!(held, rows.iter().filter(is_needed).count() as u64);
    }

    #[test]
    fn no_row_sees_its_own_or_a_later_label(
        rows in rows(),
        at in any::<prop::sample::Index>(),
        lag in 0u64..3,
    ) {
        prop_assume!(!rows.is_empty());
        let at = at.index(rows.len());
        let spans = Spans { windows: vec![None, Some(4)], lag };
        let (before, bases, _) = count_all(&rows, &spans);
        let mut changed = rows.clone();
        // The labels of the row, of all rows with its time and of all later rows are turned.
        for row in changed.iter_mut().filter(|row| row.time >= rows[at].time) {
            row.label = row.label.map(|label| !label);
        }
        let (after, other_bases, _) = count_all(&changed, &spans);
        for row in (0..rows.len()).filter(|&row| rows[row].time <= rows[at].time) {
            prop_assert_eq!(&before[row], &after[row]);
            prop_assert_eq!(bases[row].to_bits(), other_bases[row].to_bits());
        }
    }
}

#[test]
fn ends_of_time_do_not_overflow() {
    let row = |time| Row { ids: [Some(1), None], time, label: Some(true) };
    let rows = [row(i64::MIN), row(0), row(i64::MAX)];
    let spans = Spans { windows: vec![Some(u64::MAX), None, Some(1)], lag: 0 };
    let (counts, ..) = count_all(&rows, &spans);
    let last: Vec<u32> = counts[2].iter().flatten().map(|counts| counts.rows).collect();
    assert_eq!(last, [2, 2, 0]);
}

fn write(path: &Path, rows: &[(Option<i64>, i64, Option<i64>)]) {
    write_with(path, rows, |times| Arc::new(TimestampMillisecondArray::from(times)));
}

fn write_with(
    path: &Path,
    rows: &[(Option<i64>, i64, Option<i64>)],
    times: impl Fn(Vec<Option<i64>>) -> ArrayRef,
) {
    let whole = |values: Vec<Option<i64>>| -> ArrayRef { Arc::new(Int64Array::from(values)) };
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("at", times(rows.iter().map(|row| row.0).collect())),
        ("item", whole(rows.iter().map(|row| Some(row.1)).collect())),
        ("click", whole(rows.iter().map(|row| row.2).collect())),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut batches = vec![vec![batch.clone()]];
    let next = || Ok(batches.pop().unwrap_or_default());
    write_parquet(path, batch.schema(), properties(), &Files::new(), next).unwrap();
}

fn run(folder: &Path, names: &[&str], change: impl FnOnce(&mut CounterSpec)) -> Result<Counted> {
    let rows = RowFiles {
        config: DataConfig::default(),
        sources: names.iter().map(|name| folder.join(name)).collect(),
        columns: Vec::new(),
        max_bad_rows: 0,
        out: folder.join("out"),
        overwrite: true,
    };
    let mut spec = CounterSpec {
        by: vec!["item".to_owned()],
        time: "at".to_owned(),
        time_unit: None,
        date_order: None,
        positive: Condition::is_one("click"),
        windows: vec![Span::Clock(1, 's'), Span::All],
        lag: Span::Ticks(0),
        smoothing: 2.0,
        max_memory: 1 << 20,
        sort: false,
    };
    change(&mut spec);
    add_counters(&spec, &rows, &one_worker(), &Files::new(), &mut |_| ())
}

#[test]
fn counters_go_on_from_file_to_file() {
    let folder = tempfile::tempdir().unwrap();
    let some = |time, item, click| (Some(time), item, Some(click));
    write(
        &folder.path().join("a.parquet"),
        &[some(0, 7, 1), some(0, 7, 0), some(500, 7, 0), (None, 7, Some(1)), (Some(900), 7, None)],
    );
    write(&folder.path().join("b.parquet"), &[some(1200, 7, 1), some(1200, 8, 1)]);
    let done = run(folder.path(), &["a.parquet", "b.parquet"], |_| ()).unwrap();
    assert_eq!(
        done.columns,
        [
            "item_rows_1s",
            "item_positives_1s",
            "item_rate_1s",
            "item_rows_all",
            "item_positives_all",
            "item_rate_all"
        ]
    );
    assert_eq!((done.without_time, done.without_label, done.ids.as_slice()), (1, 1, &[2][..]));
    let [a, b] = [0, 1].map(|file: usize| read_back(&done.files[file].path));
    let whole = |batch: &RecordBatch, name: &str| -> Vec<Option<i64>> {
        batch[name].as_primitive::<Int64Type>().iter().collect()
    };
    assert_eq!(whole(&a, "item_rows_all"), [Some(0), Some(0), Some(2), None, Some(3)]);
    assert_eq!(whole(&a, "item_positives_1s"), [Some(0), Some(0), Some(1), None, Some(1)]);
    // The rows at 0 have left the window of a second. The row without a label is not counted.
    assert_eq!(whole(&b, "item_rows_1s"), [Some(1), Some(0)]);
    assert_eq!(whole(&b, "item_rows_all"), [Some(3), Some(0)]);
    let rates = b["item_rate_all"].as_primitive::<Float32Type>();
    // The base rate is (1 + 0.5) / (3 + 1).
    assert_eq!(rates.values(), &[((1.0 + 2.0 * 0.375) / 5.0) as f32, 0.375]);
}

#[test]
fn rows_in_any_order_are_sorted_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    // The label of each row is its number in the order of time, so that rows are recognised.
    let row = |i: i64| (Some(i / 3 * 400), i % 4, Some(i));
    let rows: Vec<_> = (0..60).map(row).collect();
    write(&folder.path().join("sorted.parquet"), &rows);
    let mut mixed: Vec<_> = (0..60).map(|i| row(i * 17 % 60)).collect();
    mixed.insert(30, (None, 1, Some(1000)));
    write(&folder.path().join("a.parquet"), &mixed[..25]);
    write(&folder.path().join("b.parquet"), &mixed[25..]);
    let read = |done: &Counted| {
        let mut found = Vec::new();
        for file in &done.files {
            let batch = read_back(&file.path);
            let clicks = batch["click"].as_primitive::<Int64Type>();
            for row in 0..batch.num_rows() {
                let columns = done
                    .columns
                    .iter()
                    .map(|name| format!("{:?}", batch[name.as_str()].slice(row, 1)));
                found.push((clicks.value(row), columns.collect::<Vec<_>>()));
            }
        }
        found.sort();
        found
    };
    let positive = |spec: &mut CounterSpec| spec.positive = "click >= 30".parse().unwrap();
    let sorted = read(&run(folder.path(), &["sorted.parquet"], positive).unwrap());
    let error = run(folder.path(), &["a.parquet", "b.parquet"], positive).unwrap_err().to_string();
    assert!(error.contains("(`sort`)"), "{error}");
    let both = |spec: &mut CounterSpec| {
        positive(spec);
        spec.sort = true;
    };
    let done = run(folder.path(), &["a.parquet", "b.parquet"], both).unwrap();
    let mut found = read(&done);
    let without_time = found.pop().unwrap();
    assert_eq!((without_time.0, done.without_time, done.ids.as_slice()), (1000, 1, &[4][..]));
    assert_eq!(found, sorted);
    let small = |spec: &mut CounterSpec| {
        positive(spec);
        (spec.sort, spec.max_memory) = (true, 2000);
    };
    let error = run(folder.path(), &["a.parquet"], small).unwrap_err().to_string();
    assert!(error.contains("for all rows, which are sorted"), "{error}");
}

#[test]
fn wrong_settings_and_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<_> = (0..40).map(|i| (Some(i / 2), i, Some(i % 2))).collect();
    write(&folder.path().join("a.parquet"), &rows);
    write(&folder.path().join("b.parquet"), &[(Some(3), 1, Some(1))]);
    let refused = |names: &[&str], change: &dyn Fn(&mut CounterSpec)| {
        let error = run(folder.path(), names, change).unwrap_err().to_string();
        let _removed = std::fs::remove_dir_all(folder.path().join("out"));
        error
    };
    for (error, problem) in [
        (refused(&["a.parquet", "b.parquet"], &|_| ()), "row 1 of"),
        (refused(&["a.parquet"], &|spec| spec.max_memory = 1000), "40 distinct ids and 40 rows"),
        (refused(&["a.parquet"], &|spec| spec.smoothing = f64::NAN), "from 0 on"),
        (refused(&["a.parquet"], &|spec| spec.lag = Span::All), "no end"),
        (refused(&["a.parquet"], &|spec| spec.windows.clear()), "no window"),
        (refused(&["a.parquet"], &|spec| spec.by.push("item".to_owned())), "named twice"),
        (refused(&["a.parquet"], &|spec| spec.time = "time".to_owned()), "`time`"),
        (refused(&["a.parquet"], &|spec| spec.positive = Condition::is_one("clic")), "`click`"),
    ] {
        assert!(error.contains(problem), "{error}");
    }
    run(folder.path(), &["a.parquet"], |_| ()).unwrap();
    let error = run(folder.path(), &["out/a.parquet"], |_| ()).unwrap_err().to_string();
    assert!(error.contains("overwritten"), "{error}");
    std::fs::rename(folder.path().join("out/a.parquet"), folder.path().join("c.parquet")).unwrap();
    let error = run(folder.path(), &["c.parquet"], |_| ()).unwrap_err().to_string();
    assert!(error.contains("has a column `item_rows_1s`"), "{error}");
}

#[test]
fn times_and_labels_of_another_meaning_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let some = |time, item, click| (Some(time), item, Some(click));
    let numbers = |name: &str, rows: &[_]| {
        write_with(&folder.path().join(name), rows, |times| Arc::new(Int64Array::from(times)));
    };
    numbers("a.parquet", &[some(1_700_000_000, 7, 1), some(1_700_000_001, 7, 0)]);
    run(folder.path(), &["a.parquet"], |spec| spec.time_unit = Some(TimeUnit::Second)).unwrap();
    let milliseconds = |spec: &mut CounterSpec| spec.time_unit = Some(TimeUnit::Millisecond);
    let error = run(folder.path(), &["a.parquet"], milliseconds).unwrap_err().to_string();
    assert!(error.contains("1700000000, which is no time between 1980 and 2199 in"), "{error}");
    let order = |spec: &mut CounterSpec| {
        spec.windows = vec![Span::All];
        spec.date_order = Some(DateOrder::DayFirst);
    };
    let error = run(folder.path(), &["a.parquet"], order).unwrap_err().to_string();
    assert!(error.contains("has no order of day and month; leave the setting out"), "{error}");
    numbers("b.parquet", &[some(1, 7, 1), some(2, 7, 4)]);
    let all = |spec: &mut CounterSpec| spec.windows = vec![Span::All];
    let error = run(folder.path(), &["b.parquet"], all).unwrap_err().to_string();
    assert!(error.contains("as in click >= 4"), "{error}");
}
