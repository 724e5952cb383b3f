//! Tests of batches of whole groups, over files, row groups and windows.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array};
use zillion_feature::random::combine;
use zillion_feature::{Cursor, Schema};
use zillion_reader::{BatchOrder, Dataset};

use crate::fixture::{Folder, read, schema, workers};

fn job() -> Schema {
    schema("[features.user]\nkind='id'\n[labels.label]\n[columns]\ngroup='request'")
}

/// Writes groups of 1 to 6 rows to a CSV file and a Parquet file with small row groups. A group
/// goes over the end of the first file. Returns the dataset and the number of rows.
fn dataset(seed: u64, window: usize, more: &str) -> (Folder, Dataset, usize) {
    let folder = Folder::with(&format!("shuffle_window = {window}\n{more}"));
    let requests: Vec<i64> = (0..60)
        .flat_map(|group| {
            let rows = 1 + combine(seed, group as u64) % 6;
            std::iter::repeat_n(1000 - group, rows as usize)
        })
        .collect();
    let count = requests.len();
    let cut = (1..count).find(|&at| at > count / 3 && requests[at] == requests[at - 1]).unwrap();
    let row = |(at, request): (usize, &i64)| format!("{at},{},{request}\n", at % 2);
    let text: String = requests[..cut].iter().enumerate().map(row).collect();
    folder.write("a.csv", format!("user,label,request\n{text}"));
    let column = |value: &dyn Fn(usize) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((cut..count).map(value)))
    };
    folder.write_parquet(
        "b.parquet",
        vec![
            ("user", column(&|at| at as i64)),
            ("label", column(&|at| at as i64 % 2)),
            ("request", column(&|at| requests[at])),
        ],
        11,
    );
    let dataset = folder.open(&["a.csv", "b.parquet"], &job()).unwrap().with_whole_groups();
    (folder, dataset, count)
}

/// Returns the users and the groups of each batch, with the cursor after it.
fn batches(
    dataset: &Dataset,
    order: BatchOrder,
    from: Cursor,
    threads: usize,
) -> Vec<(Vec<u64>, Vec<u64>, Cursor)> {
    let stream = dataset.batches(order, from, workers(threads)).unwrap();
    stream
        .map(|batch| {
            let (batch, cursor) = batch.unwrap();
            let users = batch.sparse[0].keys.iter().map(|key| key.unmix()).collect();
            (users, batch.group.unwrap(), cursor)
        })
        .collect()
}

#[test]
fn groups_stay_whole_over_files_windows_and_cursors() {
    for (seed, window, batch_rows, shuffle) in [
        (1, 20, 8, true),
        (2, 7, 6, true),
        (3, 1000, 16, true),
        (4, 13, 6, false),
        (5, 9, 64, true),
    ] {
        let (_folder, dataset, count) = dataset(seed, window, "");
        let order = BatchOrder { seed, shuffle, batch_rows, drop_last: false };
        let all = batches(&dataset, order, Cursor::default(), 2);
        let mut users: Vec<u64> = all.iter().flat_map(|(users, ..)| users.clone()).collect();
        let is_sorted = users.is_sorted();
        assert!(shuffle || is_sorted);
        // Small windows hold few groups, so that their order may be that of the files.
        assert!(!shuffle || window < 13 || !is_sorted, "{seed}");
        users.sort_unstable();
        assert_eq!(users, (0..count as u64).collect::<Vec<_>>());
        let mut seen = std::collections::HashSet::new();
        for (at, (users, groups, cursor)) in all.iter().enumerate() {
            assert!(users.len() <= batch_rows);
            for group in groups.chunk_by(|a, b| a == b) {
                assert!(seen.insert(group[0]), "a group is in two batches or runs");
            }
            // The rows of a group keep their order.
            for (pair, keys) in users.windows(2).zip(groups.windows(2)) {
                assert!(keys[0] != keys[1] || pair[1] == pair[0] + 1);
            }
            if at + 1 < all.len() {
                assert!(users.len() + 6 > batch_rows, "a batch is as full as groups allow");
            }
            // A resumed pass has the same batches, for any number of threads.
            assert_eq!(batches(&dataset, order, *cursor, 1), all[at + 1..]);
        }
        assert_eq!(batches(&dataset, order, Cursor::default(), 3), all);
    }
}

#[test]
fn epochs_shuffle_groups_and_left_out_rows_keep_them_whole() {
    let (_folder, whole, _) = dataset(6, 100, "");
    let order = BatchOrder { seed: 1, shuffle: true, batch_rows: 12, drop_last: false };
    let epoch = |epoch| batches(&whole, order, Cursor { epoch, row: 0 }, 2);
    assert_ne!(epoch(0)[1].0, epoch(1)[1].0);
    let (folder, sampled, count) = dataset(6, 30, "sample = 0.7");
    let sampled = sampled.thinned(&folder.config, 9).unwrap();
    let all = batches(&sampled, order, Cursor::default(), 2);
    let rows: usize = all.iter().map(|(users, ..)| users.len()).sum();
    assert!(rows < count && rows > count / 2);
    let mut seen = std::collections::HashSet::new();
    for (at, (_, groups, cursor)) in all.iter().enumerate() {
        assert!(groups.chunk_by(|a, b| a == b).all(|group| seen.insert(group[0])));
        assert_eq!(batches(&sampled, order, *cursor, 2), all[at + 1..]);
    }
}

#[test]
fn groups_that_come_twice_or_do_not_fit_are_refused() {
    let folder = Folder::with("");
    let rows = "1,0,5\n2,1,5\n3,0,6\n4,1,5\n";
    folder.write("a.csv", format!("user,label,request\n{rows}"));
    let dataset = folder.open(&["a.csv"], &job()).unwrap();
    let order = BatchOrder { seed: 1, shuffle: true, batch_rows: 4, drop_last: false };
    assert!(read(&dataset, order, Cursor::default(), 1).is_ok(), "only whole groups are checked");
    let whole = dataset.with_whole_groups();
    for shuffle in [true, false] {
        let order = BatchOrder { shuffle, ..order };
        let error = read(&whole, order, Cursor::default(), 1).unwrap_err().to_string();
        assert!(error.contains("row 4 of the training data"), "{error}");
        assert!(error.contains("the group `5`"), "{error}");
    }
    folder.write("b.csv", "user,label,request\n1,0,5\n2,1,5\n3,0,5\n4,1,6\n");
    let whole = folder.open(&["b.csv"], &job()).unwrap().with_whole_groups();
    let order = BatchOrder { batch_rows: 2, ..order };
    let error = read(&whole, order, Cursor::default(), 1).unwrap_err().to_string();
    assert!(error.contains("the group `5`") && error.contains("more than 2 rows"), "{error}");
}
