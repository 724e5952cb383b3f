//! Tests of the order of rows: it is a permutation, reading can resume at any position, and the
//! number of threads changes nothing.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array};
use proptest::prelude::*;
use zillion_feature::{Cursor, FeatureKey, Schema};
use zillion_reader::{BatchOrder, Dataset};

use crate::fixture::{Folder, read, rows, schema, workers};

fn job() -> Schema {
    schema("[features.user]\nkind='id'\n[features.tags]\nkind='ids'\n[labels.label]")
}

/// Writes numbered rows to several files and opens them. Each entry of `files` tells whether the
/// file is Parquet (otherwise CSV), and its number of rows. Also returns the number of all rows.
fn dataset(files: &[(bool, usize)], group: usize, window: usize) -> (Folder, Dataset, usize) {
    let folder = Folder::with(&format!("shuffle_window = {window}"));
    let mut names = Vec::new();
    let mut next = 0;
    for (index, &(parquet, count)) in files.iter().enumerate() {
        let range = next..next + count as i64;
        next = range.end;
        if parquet {
            let user: ArrayRef = Arc::new(Int64Array::from_iter_values(range.clone()));
            let tags = Arc::new(arrow_array::ListArray::from_iter_primitive::<
                arrow_array::types::Int64Type,
                _,
                _,
            >(
                range.clone().map(|i| Some((0..i % 3).map(Some).collect::<Vec<_>>())),
            ));
            let label: ArrayRef = Arc::new(Int64Array::from_iter_values(range.map(|i| i % 2)));
            names.push(format!("{index}.parquet"));
            folder.write_parquet(
                &names[index],
                vec![("user", user), ("tags", tags), ("label", label)],
                group,
            );
        } else {
            let row = |i: i64| {
                let tags: Vec<String> = (0..i % 3).map(|t| t.to_string()).collect();
                format!("{i},{},{}\n", tags.join("|"), i % 2)
            };
            names.push(format!("{index}.csv"));
            folder.write(
                &names[index],
                format!("user,tags,label\n{}", range.map(row).collect::<String>()),
            );
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let dataset = folder.open(&names, &job()).unwrap();
    (folder, dataset, next as usize)
}

fn users(dataset: &Dataset, order: BatchOrder, from: Cursor) -> Vec<u64> {
    let batches = read(dataset, order, from, 1).unwrap();
    batches.iter().flat_map(|(b, _)| b.sparse[0].keys.iter().map(|k| k.unmix())).collect()
}

fn files() -> impl Strategy<Value = Vec<(bool, usize)>> {
    prop::collection::vec((any::<bool>(), 1usize..60), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn an_epoch_is_a_permutation_that_resumes_anywhere(
        files in files(),
        group in 1usize..40,
        window in 1usize..90,
        batch_rows in 1usize..50,
        epoch in 0u64..3,
        shuffle in any::<bool>(),
        at in any::<prop::sample::Index>(),
        row in any::<prop::sample::Index>(),
    ) {
        let (_folder, dataset, count) = dataset(&files, group, window);
        let order = BatchOrder { seed: 5, shuffle, batch_rows, drop_last: false };
        let whole = read(&dataset, order, Cursor { epoch, row: 0 }, 1).unwrap();
        let mut seen = users(&dataset, order, Cursor { epoch, row: 0 });
        if !shuffle {
            prop_assert!(seen.is_sorted());
        }
        let in_order = seen.clone();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..count as u64).collect::<Vec<_>>());
        // All batches but the last are full, and the cursors count the rows.
        let mut total = 0;
        for (i, (batch, cursor)) in whole.iter().enumerate() {
            total += batch.rows;
            prop_assert!(batch.rows == batch_rows || i + 1 == whole.len());
            prop_assert_eq!(*cursor, Cursor { epoch, row: total as u64 });
        }
        // Reading resumes at the cursor after a batch. The remaining batches are the same.
        let at = at.index(whole.len());
        let rest = read(&dataset, order, whole[at].1, 1).unwrap();
        prop_assert_eq!(rest.as_slice(), &whole[at + 1..]);
        // Reading resumes at any row. The remaining rows are the same.
        let row = row.index(count + 1);
        let rest = users(&dataset, order, Cursor { epoch, row: row as u64 });
        prop_assert_eq!(rest.as_slice(), &in_order[row..]);
        let beyond = read(&dataset, order, Cursor { epoch, row: count as u64 + 1 }, 1).unwrap_err();
        let wanted = format!("row {} is beyond the end of the data, which has {count} rows", count + 1);
        prop_assert!(beyond.to_string().starts_with(&wanted), "{}", beyond);
    }

    #[test]
    fn threads_change_nothing(
        files in files(),
        group in 1usize..40,
        window in 1usize..90,
        threads in 2usize..5,
        row in 0u64..20,
    ) {
        let (_folder, dataset, count) = dataset(&files, group, window);
        let from = Cursor { epoch: 1, row: row.min(count as u64) };
        for shuffle in [false, true] {
            let order = BatchOrder { seed: 5, shuffle, batch_rows: 11, drop_last: false };
            prop_assert_eq!(
                read(&dataset, order, from, 1).unwrap(),
                read(&dataset, order, from, threads).unwrap()
            );
        }
    }
}

#[test]
fn large_row_groups_are_decoded_side_by_side_to_the_same_batches() {
    let features: String = (0..13).map(|i| format!("[features.f{i}]\nkind='id'\n")).collect();
    let job = schema(&format!("{features}[labels.label]"));
    let folder = Folder::with("shuffle_window = 30000");
    let names: Vec<String> = (0..13).map(|i| format!("f{i}")).collect();
    let mut columns: Vec<(&str, ArrayRef)> = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let values = (0..100_000).map(|row| row * 31 + i as i64);
        columns.push((name, Arc::new(Int64Array::from_iter_values(values))));
    }
    columns.push(("label", Arc::new(Int64Array::from_iter_values((0..100_000).map(|i| i % 2)))));
    folder.write_parquet("a.parquet", columns, 70_000);
    let dataset = folder.open(&["a.parquet"], &job).unwrap();
    assert_eq!(dataset.rows(), Some(100_000));
    for shuffle in [false, true] {
        let order = BatchOrder { seed: 1, shuffle, batch_rows: 4096, drop_last: false };
        for row in [0, 50_000, 99_999] {
            let from = Cursor { epoch: 0, row };
            let one = read(&dataset, order, from, 1).unwrap();
            assert!(one == read(&dataset, order, from, 4).unwrap(), "{shuffle} {row}");
            for (batch, _) in &one {
                let first = &batch.sparse[0].keys;
                for (i, column) in batch.sparse.iter().enumerate() {
                    let shifted = |k: &FeatureKey| FeatureKey::from_u64(k.unmix() + i as u64);
                    assert!(
                        column.keys.iter().eq(first.iter().map(shifted).collect::<Vec<_>>().iter())
                    );
                }
            }
        }
    }
}

#[test]
fn epochs_and_seeds_give_different_orders_and_windows_mix_units() {
    let (_folder, dataset, count) = dataset(&[(true, 300), (false, 300)], 50, 600);
    let order = |seed| BatchOrder { seed, shuffle: true, batch_rows: 64, drop_last: false };
    let epoch = |seed, epoch| users(&dataset, order(seed), Cursor { epoch, row: 0 });
    assert_eq!(epoch(1, 0), epoch(1, 0));
    assert_ne!(epoch(1, 0), epoch(1, 1));
    assert_ne!(epoch(1, 0), epoch(2, 0));
    // If one window covers all rows, the first half contains rows of both files.
    let half = &epoch(1, 0)[..count / 2];
    assert!((100..200).contains(&half.iter().filter(|&&u| u < 300).count()));
}

#[test]
fn the_last_partial_batch_can_be_left_out() {
    let (_folder, dataset, _) = dataset(&[(true, 25)], 10, 100);
    let order = BatchOrder { seed: 1, shuffle: false, batch_rows: 10, drop_last: true };
    let batches = read(&dataset, order, Cursor::default(), 1).unwrap();
    assert_eq!(batches.iter().map(|(b, _)| b.rows).collect::<Vec<_>>(), [10, 10]);
    let kept =
        read(&dataset, BatchOrder { drop_last: false, ..order }, Cursor::default(), 1).unwrap();
    assert_eq!(rows(&kept)[..20], rows(&batches)[..]);
    assert_eq!(kept[2].0.rows, 5);
}

#[test]
fn a_stream_can_be_dropped_at_any_moment_and_moved_to_another_thread() {
    let (_folder, dataset, _) = dataset(&[(true, 5000), (false, 5000)], 500, 700);
    let order = BatchOrder { seed: 1, shuffle: true, batch_rows: 100, drop_last: false };
    for taken in 0..30 {
        // The stream holds the last reference to the pool.
        let mut stream = dataset.batches(order, Cursor::default(), workers(3)).unwrap();
        let first = stream.by_ref().take(taken).count();
        assert_eq!(first, taken);
        let pool = workers(2);
        let task = pool.spawn(move || (stream.next().map(|item| item.unwrap().0.rows), stream));
        let (rows, stream) = task.join();
        assert_eq!(rows, Some(100));
        assert_eq!(stream.cursor().row, 100 * (taken as u64 + 1));
    }
}
