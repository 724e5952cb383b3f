//! Tests of tables that spill. For every size of memory, they must have the same bytes as tables
//! that do not spill. Damaged files and failing disks must give errors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use zillion_device::durable::Fault;
use zillion_device::{Failpoint, Files, Workers};
use zillion_feature::{FeatureKey, RowBuffer, TableId};

use crate::testing::fixtures::*;
use crate::{Error, SpillHome, SpillStatistics, TableSet};
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::Unthrottled;
use zillion_rows::{Admission, Dtype, Eviction, OptimizerSpec, TableSpec};

/// The memory of a shard in bytes. It is the initial size of its slabs and a little more, for some
/// dozens of rows.
const SHARD_MEMORY: u64 = 9 << 10;

fn specs() -> Vec<TableSpec> {
    let rowwise = OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.1, eps: 1e-8 };
    let ftrl = OptimizerSpec::Ftrl { lr: 0.1, beta: 1.0, l1: 0.001, l2: 0.01, l21: 0.0 };
    let wide = vec![segment("vector", 16, rowwise, 0.01), segment("linear", 1, ftrl, 0.0)];
    let lazy = vec![segment("v", 5, OptimizerSpec::adam(0.01), 0.0)];
    let counted = TableSpec {
        admission: Admission::Count { at_least: 2 },
        ..table("counted", false, vec![segment("v", 40, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)])
    };
    let lazy = TableSpec { dtype: Dtype::Bf16, ..table("lazy", false, lazy) };
    vec![table("wide", false, wide), lazy, counted]
}

fn spilling(n: usize, home: &SpillHome, memory: u64) -> TableSet {
    let mut set = TableSet::new(specs(), shards(n)).unwrap();
    for table in 0..3 {
        set.spill(TableId(table), memory * n as u64, home).unwrap();
    }
    set
}

fn spilled(set: &TableSet, table: usize) -> SpillStatistics {
    set.statistics()[table].spill.unwrap()
}

#[derive(Clone, Debug)]
enum Action {
    /// A step with these keys. The first flag says whether the gradients are clipped. The second
    /// flag says whether the plan is announced before the step.
    Step(Vec<u64>, bool, bool),
    /// A lookup of these keys for evaluation.
    Lookup(Vec<u64>),
    /// A calculation of the regulariser's loss over these keys.
    Loss(Vec<u64>),
    /// An announcement of a plan with these keys, which is then not looked up.
    Announce(Vec<u64>),
    /// The end of an epoch, after a delta has been written.
    Delta,
    /// A checkpoint and a restart from it on this number of shards.
    Restart(usize),
}

fn ids() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![3 => 0u64..1000, 1 => 0u64..50], 0..250)
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        10 => (ids(), any::<bool>(), any::<bool>()).prop_map(|(k, c, a)| Action::Step(k, c, a)),
        2 => ids().prop_map(Action::Lookup),
        1 => ids().prop_map(Action::Loss),
        1 => ids().prop_map(Action::Announce),
        2 => Just(Action::Delta),
        1 => (1usize..9).prop_map(Action::Restart),
    ]
}

fn any_key(id: u64) -> FeatureKey {
    match id {
        0 => FeatureKey(0),
        1 => FeatureKey(u64::MAX),
        2..30 => FeatureKey(9 << 52 | id),
        _ => key(id),
    }
}

fn plan(ids: &[u64]) -> zillion_feature::LookupPlan {
    plan_of(&vec![ids.iter().map(|&id| any_key(id)).collect(); 3])
}

fn bits(rows: &RowBuffer) -> Vec<(Vec<u32>, Option<Vec<u32>>)> {
    let table = |t: &zillion_feature::TableRows| {
        (t.values.iter().map(|x| x.to_bits()).collect(), t.counts.clone())
    };
    rows.tables.iter().map(table).collect()
}

/// Runs a training step. Returns the bits of all values that the set returned.
fn step(set: &mut TableSet, workers: &Workers, ids: &[u64], t: u64, clipped: bool) -> Vec<u64> {
    let plan = plan(ids);
    let mut rows = RowBuffer::default();
    set.pull(workers, &plan, true, &mut rows).unwrap();
    let raw = gradients(set, &plan, t);
    let mut said: Vec<u64> = Vec::new();
    for (values, counts) in bits(&rows) {
        said.extend(values.iter().chain(counts.iter().flatten()).map(|&x| u64::from(x)));
    }
    if clipped {
        set.stage(workers, &plan, &raw).unwrap();
        said.push(
            set.grad_sq_norm(workers, &plan, &raw, zillion_feature::Step(t)).unwrap().to_bits(),
        );
        set.apply(workers, &plan, &raw, update(t, 0.5)).unwrap();
    } else {
        set.push(workers, &plan, &raw, update(t, 1.0)).unwrap();
    }
    set.sweep(workers, update(t, 1.0)).unwrap();
    said
}

/// Returns all files below a folder, in the order of their names.
fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_owned();
                    found.push((name, std::fs::read(&path).unwrap()));
                }
            }
        }
    }
    found.sort();
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_spills_is_what_does_not(
        n in 1usize..5,
        threads in 1usize..3,
        memory in SHARD_MEMORY..6 * SHARD_MEMORY,
        actions in prop::collection::vec(action(), 1..40),
    ) {
        let workers = workers(threads);
        let folder = tempfile::tempdir().unwrap();
        let home = SpillHome::open(&Files::new(), folder.path()).unwrap();
        let mut plain = TableSet::new(specs(), shards(3)).unwrap();
        let mut tight = spilling(n, &home, memory);
        plain.track_changes(&workers, 3).unwrap();
        tight.track_changes(&workers, 3).unwrap();
        let mut t = 0;
        for action in &actions {
            match action {
                Action::Step(ids, clipped, is_announced) => {
                    t += 1;
                    if *is_announced {
                        tight.look_ahead(&workers, &[&plan(ids)]).unwrap();
                    }
                    let said = step(&mut tight, &workers, ids, t, *clipped);
                    prop_assert_eq!(said, step(&mut plain, &workers, ids, t, *clipped));
                    for s in tight.statistics() {
                        let spill = s.spill.unwrap();
                        prop_assert!(spill.hot_rows <= spill.budget_rows);
                        prop_assert_eq!(spill.hot_rows + spill.cold_rows, s.rows);
                    }
                }
                Action::Lookup(ids) => {
                    let (mut a, mut b) = (RowBuffer::default(), RowBuffer::default());
                    let plan = plan(ids);
                    let found = tight.lookup(&workers, &plan, &mut a).unwrap();
                    prop_assert_eq!(found, plain.lookup(&workers, &plan, &mut b).unwrap());
                    prop_assert_eq!(bits(&a), bits(&b));
                }
                Action::Loss(ids) => {
                    let a = tight.regulariser_loss(&workers, &plan(ids)).unwrap();
                    let b = plain.regulariser_loss(&workers, &plan(ids)).unwrap();
                    prop_assert_eq!(a.to_bits(), b.to_bits());
                }
                Action::Announce(ids) => {
                    tight.look_ahead(&workers, &[&plan(ids), &plan(&ids[ids.len() / 2..])]).unwrap();
                }
                Action::Delta => {
                    let since = plain.advance_dirty_epoch() - 1;
                    tight.advance_dirty_epoch();
                    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
                    let write = |set: &TableSet, to: &Path| {
                        set.write_delta(&workers, since, &Files::new(), to, &mut Unthrottled).unwrap()
                    };
                    prop_assert_eq!(write(&tight, a.path()), write(&plain, b.path()));
                    prop_assert!(files_below(a.path()) == files_below(b.path()), "deltas differ");
                }
                Action::Restart(shards) => {
                    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
                    let (parts, files) = checkpoint(&tight, &workers, a.path());
                    let (same, expected) = checkpoint(&plain, &workers, b.path());
                    prop_assert_eq!(&parts, &same);
                    prop_assert!(files == expected, "checkpoints differ");
                    tight = spilling(*shards, &home, memory);
                    tight.restore(&workers, a.path(), &parts).unwrap();
                    tight.track_changes(&workers, 3).unwrap();
                    plain.restore(&workers, b.path(), &same).unwrap();
                }
            }
        }
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        tight.write_base(&workers, &Files::new(), a.path(), &mut Unthrottled).unwrap();
        plain.write_base(&workers, &Files::new(), b.path(), &mut Unthrottled).unwrap();
        prop_assert!(files_below(a.path()) == files_below(b.path()), "bases differ");
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        prop_assert!(
            checkpoint(&tight, &workers, a.path()) == checkpoint(&plain, &workers, b.path()),
            "checkpoints differ"
        );
        drop(tight);
        let left = std::fs::read_dir(home.path()).unwrap().count();
        prop_assert_eq!(left, 1, "only the lock is left");
    }
}

/// Runs steps. Each step has `count` ids, all of them below `ids`.
fn churn(set: &mut TableSet, workers: &Workers, steps: std::ops::Range<u64>, ids: u64, count: u64) {
    for t in steps {
        let plan = step_plan(t, 3, ids, count);
        let raw = gradients(set, &plan, t);
        let mut rows = RowBuffer::default();
        set.pull(workers, &plan, false, &mut rows).unwrap();
        set.push(workers, &plan, &raw, update(t, 1.0)).unwrap();
    }
}

#[test]
fn the_file_stays_bounded_while_rows_come_and_go() {
    let workers = workers(2);
    let folder = tempfile::tempdir().unwrap();
    let home = SpillHome::open(&Files::new(), folder.path()).unwrap();
    let mut set = spilling(1, &home, 3 * SHARD_MEMORY);
    churn(&mut set, &workers, 1..40, 20_000, 2_000);
    let mut worst = 0.0f64;
    for round in 0..100 {
        churn(&mut set, &workers, 40 + round * 5..45 + round * 5, 20_000, 300);
        let spill = spilled(&set, 0);
        // The file may have two more segments: the one that is filled and the one that is emptied.
        let records = spill.live_bytes + 2 * 16 * 4096;
        worst = worst.max(spill.disk_bytes as f64 / records as f64);
    }
    let spill = spilled(&set, 0);
    assert!(spill.compacted > 0 && spill.cold_rows > 15_000, "{spill:?}");
    assert!(worst < 2.5, "the file is {worst} times its rows");
    let size = std::fs::metadata(home.path().join("wide-0.log")).unwrap().len();
    assert!(size <= spill.disk_bytes, "{size} bytes of {}", spill.disk_bytes);
}

#[test]
fn what_is_announced_is_read_before_it_is_needed() {
    let workers = workers(1);
    let folder = tempfile::tempdir().unwrap();
    let home = SpillHome::open(&Files::new(), folder.path()).unwrap();
    let mut set = spilling(2, &home, SHARD_MEMORY);
    churn(&mut set, &workers, 1..30, 2_000, 400);
    let before = spilled(&set, 0);
    let plans: Vec<_> = (30..34).map(|t| step_plan(t, 3, 2_000, 60)).collect();
    set.look_ahead(&workers, &plans.iter().collect::<Vec<_>>()).unwrap();
    let begun = spilled(&set, 0);
    for (t, plan) in (30..).zip(&plans) {
        let mut rows = RowBuffer::default();
        set.pull(&workers, plan, false, &mut rows).unwrap();
        let raw = gradients(&set, plan, t);
        set.push(&workers, plan, &raw, update(t, 1.0)).unwrap();
    }
    let after = spilled(&set, 0);
    let (brought, ahead) = (after.brought_in - before.brought_in, after.ahead - before.ahead);
    assert!(brought > 150, "{brought}");
    // Rows that were spilled again between two of the plans, or had not reached the file, are not
    // read ahead.
    assert!(ahead * 4 > brought * 3, "{ahead} of {brought}");
    assert!(begun.buffer_bytes > 0);
}

#[test]
fn a_scan_does_not_wash_out_what_is_asked_for_often() {
    let workers = workers(1);
    let folder = tempfile::tempdir().unwrap();
    let home = SpillHome::open(&Files::new(), folder.path()).unwrap();
    let mut set = spilling(1, &home, 32 * SHARD_MEMORY);
    let budget = spilled(&set, 0).budget_rows;
    let popular: Vec<u64> = (0..budget / 2).map(|i| 1_000_000 + i).collect();
    let mut t = 0;
    let mut visit = |set: &mut TableSet, ids: &[u64]| {
        t += 1;
        step(set, &workers, ids, t, false);
    };
    for _ in 0..5 {
        popular.chunks(200).for_each(|ids| visit(&mut set, ids));
    }
    // The scan reads each row once, and it has four times the number of rows that the memory holds.
    let scan: Vec<u64> = (0..budget * 4).map(|i| 5_000_000 + i).collect();
    scan.chunks(200).for_each(|ids| visit(&mut set, ids));
    let before = spilled(&set, 0).brought_in;
    popular.chunks(200).for_each(|ids| visit(&mut set, ids));
    let missed = spilled(&set, 0).brought_in - before;
    assert!(missed * 10 < popular.len() as u64, "{missed} of {} were gone", popular.len());
}

#[test]
fn a_damaged_file_is_an_error_that_names_the_place() {
    let workers = workers(2);
    for damage in 0..12u64 {
        let folder = tempfile::tempdir().unwrap();
        let home = SpillHome::open(&Files::new(), folder.path()).unwrap();
        let mut set = spilling(1, &home, SHARD_MEMORY);
        churn(&mut set, &workers, 1..30, 2_000, 400);
        let path = home.path().join("wide-0.log");
        let mut bytes = std::fs::read(&path).unwrap();
        let is_cut = damage % 4 == 0;
        let at = (zillion_feature::random::mix64(damage) % bytes.len() as u64) as usize;
        if is_cut {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(at as u64 / 2).unwrap();
        } else {
            // One bit of every page is changed, so that a live row is damaged.
            for page in bytes.chunks_mut(4096) {
                page[at % 4000] ^= 1 << (damage % 8);
            }
            std::fs::write(&path, &bytes).unwrap();
        }
        let to = tempfile::tempdir().unwrap();
        let error =
            write_snapshot(&mut set, &workers, to.path(), &Files::new()).unwrap_err().to_string();
        assert!(error.contains("wide-0.log"), "{error}");
        assert!(error.contains("byte"), "{error}");
        let outcome = (0..2_000u64).step_by(50).try_for_each(|first| {
            let ids: Vec<FeatureKey> = (first..first + 50).map(key).collect();
            let mut rows = RowBuffer::default();
            set.pull(&workers, &plan_of(&[ids, vec![], vec![]]), false, &mut rows)
        });
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("wide-0.log") && error.contains("byte"), "{error}");
    }
}

#[test]
fn a_disk_that_fails_loses_no_row() {
    let workers = workers(1);
    for fault in [Fault::Enospc, Fault::Eio] {
        for at in (5..120).step_by(9) {
            let folder = tempfile::tempdir().unwrap();
            let failpoint = Arc::new(Failpoint::new(at, fault));
            let files = Files::with_failpoints(failpoint.clone());
            let home = SpillHome::open(&files, folder.path()).unwrap();
            let mut tight = TableSet::new(specs(), shards(1)).unwrap();
            let made = (0..3).try_for_each(|t| tight.spill(TableId(t), SHARD_MEMORY, &home));
            if let Err(e) = made {
                assert!(e.to_string().contains("spill-0"), "{e}");
                continue;
            }
            let mut plain = TableSet::new(specs(), shards(2)).unwrap();
            let mut failures = 0;
            for t in 1..25 {
                let plan = step_plan(t, 3, 1_000, 100);
                let raw = gradients(&plain, &plan, t);
                plain.push(&workers, &plan, &raw, update(t, 1.0)).unwrap();
                let mut rows = RowBuffer::default();
                // A pull that fails has changed nothing, so it is repeated.
                while let Err(e) = tight.pull(&workers, &plan, false, &mut rows) {
                    assert!(e.to_string().contains(".log"), "{e}");
                    failures += 1;
                    assert!(failures < 3);
                }
                // The rows have been updated before freeing memory can fail, so the step is
                // complete in any case.
                if let Err(e) = tight.push(&workers, &plan, &raw, update(t, 1.0)) {
                    assert!(e.to_string().contains(".log"), "{e}");
                    failures += 1;
                }
            }
            assert_eq!(failures > 0, failpoint.operations() >= at, "operation {at}");
            let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            assert!(
                checkpoint(&tight, &workers, a.path()) == checkpoint(&plain, &workers, b.path()),
                "operation {at} failed"
            );
        }
    }
}

#[test]
fn what_cannot_spill_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let home = SpillHome::open(&Files::new(), folder.path()).unwrap();
    let sgd = || vec![segment("v", 4, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)];
    let evicting =
        TableSpec { eviction: Eviction::Unseen { steps: 9 }, ..table("old", false, sgd()) };
    let all = vec![table("fixed", true, sgd()), evicting, table("ids", false, sgd())];
    let mut set = TableSet::new(all, shards(8)).unwrap();
    let mut refused = |table: u16, memory: u64| {
        let error = set.spill(TableId(table), memory, &home).unwrap_err();
        assert!(matches!(error, Error::Spec { .. }) || table > 2, "{error}");
        error.to_string()
    };
    assert!(refused(0, 1 << 30).contains("`run.spill.fixed`"));
    assert!(refused(1, 1 << 30).contains("`run.spill.old`"));
    assert!(refused(2, 1 << 10).contains("`run.spill.ids`"));
    assert!(refused(3, 1 << 30).contains("3 tables"));
    assert!(!set.spills());
}
