//! Tests of reading in pieces, which must give the same rows as separate reads of each key.

use zillion_feature::{FeatureKey, RowBuffer, TableId};

use crate::TableSet;
use crate::testing::fixtures::*;
use zillion_rows::conformance::plan_of;
use zillion_rows::{OptimizerSpec, TableSpec};

/// The number of keys of each table. One table has more keys than a piece, even in a single shard.
/// The other tables have few keys or none, so a thread takes several tables together.
const KEYS: [u64; 5] = [40, 9000, 0, 1, 300];

fn specs() -> Vec<TableSpec> {
    let rowwise = OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.1, eps: 1e-8 };
    let of = |at: usize| table(&format!("t{at}"), false, vec![segment("v", 4 + at, rowwise, 0.0)]);
    (0..KEYS.len()).map(of).collect()
}

#[test]
fn pieces_of_a_plan_are_what_each_key_reads_alone() {
    for (n, threads) in [(1, 1), (1, 3), (8, 2)] {
        let workers = workers(threads);
        let mut set = TableSet::new(specs(), shards(n)).unwrap();
        let all: Vec<_> = KEYS.iter().map(|&keys| sorted_keys(0..keys)).collect();
        // Every third key is pushed, some of them more often than others.
        let known = |every: usize| -> Vec<Vec<FeatureKey>> {
            all.iter().map(|keys| keys.iter().copied().step_by(every).collect()).collect()
        };
        for (step, every) in [(1, 3), (2, 6)] {
            let plan = plan_of(&known(every));
            let gradients = gradients(&set, &plan, step);
            set.push(&workers, &plan, &gradients, update(step, 1.0)).unwrap();
        }
        let plan = plan_of(&all);
        let (mut pulled, mut looked_up) = (RowBuffer::default(), RowBuffer::default());
        let before = set.statistics();
        set.pull(&workers, &plan, true, &mut pulled).unwrap();
        let report = set.lookup(&workers, &plan, &mut looked_up).unwrap();
        for (at, planned) in plan.tables.iter().enumerate() {
            let missing = (planned.keys.len() - planned.keys.len().div_ceil(3)) as u64;
            let now = &set.statistics()[at].counters;
            assert_eq!(now.pulled - before[at].counters.pulled, planned.keys.len() as u64);
            assert_eq!(now.missing - before[at].counters.missing, missing, "table {at}");
            assert_eq!(report.missing[at], missing, "table {at}");
            let (rows, stride) = (&pulled.tables[at], pulled.tables[at].stride);
            assert_eq!(rows.values, looked_up.tables[at].values, "both read the same");
            for (i, &key) in planned.keys.iter().enumerate() {
                let mut tables = vec![Vec::new(); 5];
                tables[at].push(key);
                let mut alone = RowBuffer::default();
                if i % 7 == 0 {
                    set.pull(&workers, &plan_of(&tables), true, &mut alone).unwrap();
                    assert_eq!(alone.tables[at].values, rows.values[i * stride..][..stride]);
                }
                let pushes = u32::from(i % 3 == 0) + u32::from(i % 6 == 0);
                assert_eq!(rows.counts.as_ref().unwrap()[i], pushes, "table {at}, key {i}");
            }
        }
        assert_eq!(set.rows(TableId(1)), KEYS[1].div_ceil(3), "reading makes no row");
    }
}

/// Checks that the push of a plan uses the index entries that its pull has found in pieces.
#[test]
fn a_push_behind_a_pull_in_pieces_does_what_one_does_that_looks_for_itself() {
    let [mut pulled, mut pushed] = [(); 2].map(|()| TableSet::new(specs(), shards(8)).unwrap());
    let workers = workers(3);
    let mut rows = RowBuffer::default();
    for step in 1..4 {
        // Every step has keys with a row and keys without one.
        let ids = |keys: &u64| sorted_keys((0..*keys).filter(|id| id % 4 < step));
        let plan = plan_of(&KEYS.iter().map(ids).collect::<Vec<_>>());
        pulled.pull(&workers, &plan, false, &mut rows).unwrap();
        // The gradients depend on the key, so that a row at a wrong place would be noticed.
        let gradients = gradients(&pushed, &plan, step);
        for set in [&mut pulled, &mut pushed] {
            set.push(&workers, &plan, &gradients, update(step, 1.0)).unwrap();
        }
    }
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [a, b] = [(&pulled, &folders[0]), (&pushed, &folders[1])]
        .map(|(set, folder)| checkpoint(set, &workers, folder.path()));
    assert!(a == b);
}

/// Checks that the rows of a table are read twice if a plan names the table twice.
#[test]
fn a_table_twice_in_a_plan_is_read_twice() {
    let mut set = TableSet::new(specs(), shards(8)).unwrap();
    let mut plan = plan_of(&KEYS.map(|keys| sorted_keys(0..keys)));
    let workers = workers(2);
    let gradients = gradients(&set, &plan, 1);
    set.push(&workers, &plan, &gradients, update(1, 1.0)).unwrap();
    let again = plan.tables[1].clone();
    plan.tables.push(again);
    let mut rows = RowBuffer::default();
    set.pull(&workers, &plan, false, &mut rows).unwrap();
    assert_eq!(rows.tables[1].values, rows.tables[5].values);
    assert!(rows.tables[1].values.iter().any(|&value| value != 0.0));
}

#[test]
fn a_plan_without_keys_reads_nothing() {
    let mut set = TableSet::new(everything(), shards(3)).unwrap();
    let plan = plan_of(&vec![Vec::new(); everything().len()]);
    let mut rows = RowBuffer::default();
    set.pull(&workers(2), &plan, true, &mut rows).unwrap();
    let report = set.lookup(&workers(2), &plan, &mut rows).unwrap();
    assert!(rows.tables.iter().all(|table| table.values.is_empty()));
    assert!(report.missing.iter().all(|&missing| missing == 0));
}
