//! Tests of shrinking. They compare the choice of the rows that stay with a sort of all rows, and
//! compare the written rows with the old rows.

use zillion_feature::FeatureKey;

use super::*;
use crate::TableSet;
use crate::testing::fixtures::*;
use crate::view::RowView;
use zillion_rows::conformance::plan_of;
use zillion_rows::{Admission, Eviction, OptimizerSpec, PinnedId, TableSpec};

fn spec(at_least: u32) -> TableSpec {
    let admission = match at_least {
        1 => Admission::All,
        at_least => Admission::Count { at_least },
    };
    let adagrad = OptimizerSpec::Adagrad { lr: 0.1, initial_accumulator: 0.0, eps: 1e-8 };
    TableSpec { admission, ..table("ids", false, vec![segment("v", 3, adagrad, 0.0)]) }
}

/// Returns a table of some hundred rows with many equal counts, and its checkpoint with small
/// parts.
fn trained(spec: &TableSpec) -> (TableSet, tempfile::TempDir, Vec<TableParts>) {
    let workers = workers(2);
    let mut set = TableSet::new(vec![spec.clone()], shards(3)).unwrap();
    for step in 1..=30u64 {
        let keys = (0..300u64).filter(|id| id % step == 0).map(|id| key(id + 7 * (step % 3)));
        let mut keys: Vec<FeatureKey> = keys.collect();
        keys.dedup();
        let plan = plan_of(&[keys]);
        let gradients = gradients(&set, &plan, step);
        set.push(&workers, &plan, &gradients, update(step, 1.0)).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    (set, folder, parts)
}

#[test]
fn what_stays_is_what_a_sort_would_keep() {
    let spec = spec(1);
    let (_, folder, parts) = trained(&spec);
    for threads in [1, 3] {
        let workers = workers(threads);
        let view = TableView::open(&workers, folder.path(), spec.clone(), &parts).unwrap();
        assert!(parts[0].parts.len() > 4);
        let all = view.top(&workers, Order::Count, usize::MAX);
        for by in [Order::Count, Order::Norm, Order::Recent] {
            for rows in [0, 1, 2, 17, 100, 299, 300, view.rows() - 1, view.rows(), u64::MAX] {
                let keep = Keep::First { rows, by };
                let shrink = view.plan_shrink(&workers, keep, 30).unwrap();
                let mut sorted = all.clone();
                sorted.sort_by_key(|row| (std::cmp::Reverse(rank(row, by)), row.key));
                sorted.truncate(usize::try_from(rows).unwrap_or(usize::MAX));
                let mut expected: Vec<FeatureKey> = sorted.iter().map(|r| r.key).collect();
                expected.sort_unstable();
                assert_eq!(kept(&view, &shrink), expected, "{rows} by {by:?}");
                assert_eq!(shrink.after.rows, rows.min(view.rows()));
            }
        }
        let survivors = |keep: Keep, stays: &dyn Fn(&RowView<'_>) -> bool| {
            let shrink = view.plan_shrink(&workers, keep, 30).unwrap();
            let stay = all.iter().filter(|row| stays(row)).map(|row| row.key);
            let mut expected: Vec<FeatureKey> = stay.collect();
            expected.sort_unstable();
            assert!(!expected.is_empty() && expected.len() < all.len(), "{keep:?}");
            assert_eq!(kept(&view, &shrink), expected, "{keep:?}");
        };
        let norm = all[all.len() / 2].norm();
        survivors(Keep::Norm(norm), &|row| row.norm() >= norm);
        survivors(Keep::Count(3), &|row| row.count >= 3);
        survivors(Keep::Seen(5), &|row| row.last_step >= 25);
    }
}

#[test]
fn pinned_rows_stay_by_every_rule() {
    let (_, folder, parts) = trained(&spec(1));
    let workers = workers(2);
    let all = TableView::open(&workers, folder.path(), spec(1), &parts).unwrap();
    // The pinned ids are the rows that the rules would remove first, and an id that has no row.
    let mut ranked = all.top(&workers, Order::Count, usize::MAX);
    ranked.sort_by_key(|row| (row.count, row.last_step, row.key));
    let rarest: Vec<PinnedId> = (0..307i64)
        .map(PinnedId::Number)
        .filter(|id| ranked[..9].iter().any(|row| row.key == id.key()))
        .chain([PinnedId::Number(1 << 40)])
        .collect();
    assert_eq!(rarest.len(), 10);
    let eviction = Eviction::Unseen { steps: 1000 };
    let pinning = TableSpec { pinned: rarest, eviction, ..spec(1) };
    let view = TableView::open(&workers, folder.path(), pinning, &parts).unwrap();
    let of = |keep: Keep| kept(&view, &view.plan_shrink(&workers, keep, 30).unwrap());
    let rules = [
        Keep::Count(u32::MAX),
        Keep::Seen(0),
        Keep::Norm(f32::MAX),
        Keep::First { rows: 9, by: Order::Count },
        Keep::First { rows: 9, by: Order::Norm },
        Keep::First { rows: 9, by: Order::Recent },
    ];
    let mut pinned: Vec<FeatureKey> = ranked[..9].iter().map(|row| row.key).collect();
    pinned.sort_unstable();
    for keep in rules {
        let stay = of(keep);
        // None of the other rows stays, except that `Seen` keeps the rows pushed in the last step.
        let late = |key: &FeatureKey| view.get(*key).unwrap().last_step == 30;
        let expected = |key: &&FeatureKey| match keep {
            Keep::Seen(_) => pinned.contains(key) || late(key),
            _ => pinned.contains(key),
        };
        assert!(pinned.iter().all(|key| stay.contains(key)), "{keep:?}");
        assert!(stay.iter().filter(|key| !expected(key)).count() == 0, "{keep:?}");
    }
    // The pinned rows count among the rows that are asked for.
    for by in [Order::Count, Order::Norm, Order::Recent] {
        ranked.sort_by_key(|row| {
            (!pinned.contains(&row.key), std::cmp::Reverse(rank(row, by)), row.key)
        });
        for rows in [10, 20, 150] {
            let mut expected: Vec<FeatureKey> = ranked[..rows].iter().map(|row| row.key).collect();
            expected.sort_unstable();
            assert_eq!(of(Keep::First { rows: rows as u64, by }), expected, "{rows} by {by:?}");
        }
    }
    let error = view.plan_shrink(&workers, Keep::First { rows: 8, by: Order::Norm }, 30);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("9 of its rows are pinned"), "{error}");
}

fn kept(view: &TableView, shrink: &Shrink) -> Vec<FeatureKey> {
    let mut keys = Vec::new();
    for part in 0..view.parts.len() {
        shrink.for_each(view, part, |row| keys.push(view.parts[part].key(row)));
    }
    keys
}

#[test]
fn what_is_written_trains_on_and_waits_on() {
    let spec = spec(3);
    let (_, folder, parts) = trained(&spec);
    let workers = workers(2);
    let view = TableView::open(&workers, folder.path(), spec.clone(), &parts).unwrap();
    let mut written = Vec::new();
    for keep in [Keep::Count(2), Keep::Seen(5)] {
        let shrink = view.plan_shrink(&workers, keep, 30).unwrap();
        assert!(shrink.after.rows < shrink.before.rows && shrink.after.rows > 0);
        let out = tempfile::tempdir().unwrap();
        let files = Files::new();
        let own = view.write_shrunk(&workers, out.path(), &files, &shrink, &parts[0]).unwrap();
        assert_eq!((own.rows, own.dirty_epoch), (shrink.after.rows, parts[0].dirty_epoch));
        let waiting = own.candidates.as_ref().unwrap().rows;
        assert_eq!(waiting, shrink.after.candidates);
        let all_wait = waiting == shrink.before.candidates;
        assert_eq!(all_wait, keep == Keep::Count(2), "{waiting}");
        let listed = [own];
        let small = TableView::open(&workers, out.path(), spec.clone(), &listed).unwrap();
        for row in view.top(&workers, Order::Count, usize::MAX) {
            let stays = small.get(row.key).is_some();
            let wanted = match keep {
                Keep::Seen(_) => row.last_step >= 25,
                _ => row.count >= 2,
            };
            assert_eq!(stays, wanted);
            assert!(!stays || small.get(row.key) == Some(row), "a row changed");
        }
        // The written table trains on, on another number of shards.
        let mut set = TableSet::new(vec![spec.clone()], shards(5)).unwrap();
        set.restore(&workers, out.path(), &listed).unwrap();
        assert_eq!(set.statistics()[0].rows, shrink.after.rows);
        plain_step(&mut set, &workers, 31, 300);
        written.push(std::fs::read(out.path().join(&listed[0].parts[0].file)).unwrap());
        // Writing again gives the same bytes.
        let again = tempfile::tempdir().unwrap();
        let files = Files::new();
        let twice = view.write_shrunk(&workers, again.path(), &files, &shrink, &parts[0]).unwrap();
        assert_eq!(twice, listed[0]);
    }
    assert_ne!(written[0], written[1]);
}

#[test]
fn a_dense_table_is_refused() {
    let workers = workers(1);
    let sgd = OptimizerSpec::Sgd { lr: 0.1 };
    let spec = table("vocabulary", true, vec![segment("v", 2, sgd, 0.0)]);
    let set = TableSet::new(vec![spec.clone()], shards(1)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    let view = TableView::open(&workers, folder.path(), spec, &parts).unwrap();
    let said = view.plan_shrink(&workers, Keep::Count(2), 1).unwrap_err().to_string();
    assert!(said.contains("`vocabulary`") && said.contains("dense = false"), "{said}");
}
