//! Tests of snapshots that are written while training goes on. Their files must have the bytes of a
//! checkpoint at the moment when the snapshot began, and the snapshots must not change training.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use zillion_device::durable::Fault;
use zillion_device::{Failpoint, Files, Workers};
use zillion_feature::{FeatureKey, TableId};

use crate::TableSet;
use crate::testing::checkpoint_oracle;
use crate::testing::fixtures::*;
use zillion_rows::Candidate;
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::Unthrottled;
use zillion_rows::{Admission, Dtype, Eviction, OptimizerSpec, TableParts, TableSpec};

/// The largest number of rows of a part. It is so small that tables have several parts.
pub(crate) const LIMIT: u64 = 24;

/// Returns tables with every rule, and tables with waiting keys and evicted rows.
pub(crate) fn specs() -> Vec<TableSpec> {
    let sgd = OptimizerSpec::Sgd { lr: 0.25 };
    let rowwise = OptimizerSpec::RowwiseAdagrad { lr: 0.1, initial_accumulator: 0.5, eps: 1e-8 };
    let living = |name: &str, at_least, steps| TableSpec {
        admission: Admission::Count { at_least },
        eviction: Eviction::Unseen { steps },
        ..table(name, false, vec![segment("v", 5, rowwise, 0.0), segment("linear", 1, sgd, 0.1)])
    };
    let going = TableSpec {
        eviction: Eviction::Unseen { steps: 2 },
        dtype: Dtype::Bf16,
        ..table("going", false, vec![segment("v", 3, sgd, 0.0)])
    };
    let growing = growing(3, None, living("living_grows", 2, 3));
    let all = [living("living", 2, 3), living("rare", 4, 9), going, growing];
    everything().into_iter().chain(all).collect()
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// A step with these keys in every table. The flag says whether the gradients are clipped.
    Step(Vec<FeatureKey>, bool),
    /// A call that advances the snapshot by about this number of rows.
    Advance(usize),
    /// An addition of these keys to the vocabulary of the dense tables.
    Prefill(Vec<FeatureKey>),
    EndEpoch,
}

pub(crate) fn any_key() -> impl Strategy<Value = FeatureKey> {
    prop_oneof![
        Just(FeatureKey(0)),
        Just(FeatureKey(u64::MAX)),
        (0u64..50).prop_map(key),
        (0u64..20).prop_map(|low| FeatureKey(9 << 52 | low)),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (prop::collection::vec(any_key(), 0..30), any::<bool>())
            .prop_map(|(keys, clipped)| Act::Step(keys, clipped)),
        6 => prop_oneof![0usize..40, Just(300), Just(3000)].prop_map(Act::Advance),
        1 => prop::collection::btree_set(any_key(), 0..20)
            .prop_map(|keys| Act::Prefill(keys.into_iter().collect())),
        1 => Just(Act::EndEpoch),
    ]
}

/// Performs an action of the history, unless it concerns only the snapshot.
pub(crate) fn train(set: &mut TableSet, workers: &Workers, step: &mut u64, act: &Act) {
    match act {
        Act::Step(keys, clipped) => {
            *step += 1;
            let plan = plan_of(&vec![keys.clone(); set.layouts().len()]);
            let raw = gradients(set, &plan, *step);
            let now = update(*step, if *clipped { 0.5 } else { 1.0 });
            if *clipped {
                set.stage(workers, &plan, &raw).unwrap();
                set.apply(workers, &plan, &raw, now).unwrap();
            } else {
                set.push(workers, &plan, &raw, now).unwrap();
            }
            set.sweep(workers, now).unwrap();
        }
        Act::Prefill(keys) => {
            for (table, spec) in specs().iter().enumerate().filter(|(_, spec)| spec.dense) {
                set.prefill(workers, TableId(table as u16), keys).unwrap_or_else(|e| {
                    panic!("{}: {e}", spec.name);
                });
            }
        }
        Act::EndEpoch => drop(set.advance_dirty_epoch()),
        Act::Advance(_) => {}
    }
}

/// Returns every file of a checkpoint.
pub(crate) fn bytes(folder: &Path, parts: &[TableParts]) -> BTreeMap<String, Vec<u8>> {
    let candidates = parts.iter().filter_map(|t| t.candidates.as_ref()).flat_map(|c| &c.parts);
    let narrow = parts.iter().filter_map(|t| t.narrow.as_ref()).flat_map(|n| &n.parts);
    let files = parts.iter().flat_map(|t| &t.parts).chain(narrow).chain(candidates);
    files.map(|p| (p.file.clone(), std::fs::read(folder.join(&p.file)).unwrap())).collect()
}

pub(crate) fn stopped(
    set: &TableSet,
    workers: &Workers,
) -> (Vec<TableParts>, BTreeMap<String, Vec<u8>>) {
    let folder = tempfile::tempdir().unwrap();
    let parts = checkpoint_oracle(set, workers, folder.path(), &Files::new(), LIMIT).unwrap();
    let files = bytes(folder.path(), &parts);
    (parts, files)
}

pub(crate) type Rows = BTreeMap<(usize, u64), (Vec<u32>, Vec<u32>, [u32; 3])>;

/// Returns the content of a set. The rows have epochs in place of their generations.
pub(crate) fn contents(set: &TableSet) -> (Rows, BTreeMap<(usize, u64), Candidate>) {
    let (mut rows, mut candidates) = (Rows::new(), BTreeMap::new());
    for shard in &set.shards {
        for (table, slot) in (0..set.shapes.len()).flat_map(|t| shard.slots().map(move |s| (t, s)))
        {
            shard.tables[table]
                .for_each_in_slot(slot, |key, row| {
                    let row = set.generations.stored(row);
                    let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect();
                    let meta = [row.meta.count, row.meta.last_step, row.meta.dirty_epoch];
                    rows.insert(
                        (table, key.0),
                        (bits(&row.weights.to_floats()), bits(row.state), meta),
                    );
                })
                .unwrap();
            let waiting = shard.tables[table].counts().map(|counts| counts.in_slot(slot));
            let waiting = waiting.unwrap_or_default();
            candidates.extend(waiting.into_iter().map(|(key, c)| ((table, key.0), c)));
        }
    }
    (rows, candidates)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_snapshot_is_the_checkpoint_of_its_moment(
        n in prop::sample::select(vec![1usize, 3, 8]),
        other in prop::sample::select(vec![1usize, 3, 8]),
        threads in 1usize..3,
        tracked in any::<bool>(),
        histories in prop::collection::vec(
            (prop::collection::vec(act(), 0..8), prop::collection::vec(act(), 0..25)),
            1..3,
        ),
    ) {
        let workers = workers(threads);
        let mut set = TableSet::new(specs(), shards(n)).unwrap();
        let mut twin = TableSet::new(specs(), shards(other)).unwrap();
        if tracked {
            set.track_changes(&workers, 3).unwrap();
            twin.track_changes(&workers, 3).unwrap();
        }
        let (mut step, mut twin_step) = (0, 0);
        for (before, during) in histories {
            for act in before {
                train(&mut set, &workers, &mut step, &act);
                train(&mut twin, &workers, &mut twin_step, &act);
            }
            let folder = tempfile::tempdir().unwrap();
            let moment = contents(&set);
            let (expected, expected_bytes) = stopped(&twin, &workers);
            set.begin_snapshot_in_parts(&workers, folder.path(), &Files::new(), LIMIT, None).unwrap();
            for act in during {
                train(&mut set, &workers, &mut step, &act);
                train(&mut twin, &workers, &mut twin_step, &act);
                if let Act::Advance(rows) = act {
                    set.advance_snapshot(&workers, rows);
                }
                // The changes that wait to be published are tracked beside the snapshot.
                if tracked {
                    let since = set.dirty_epoch() - 1;
                    prop_assert_eq!(set.knows_changes_since(since), twin.knows_changes_since(since));
                }
            }
            let parts = set.finish_snapshot(&workers).unwrap();
            prop_assert_eq!(&parts, &expected);
            prop_assert!(bytes(folder.path(), &parts) == expected_bytes);
            prop_assert!(set.statistics().iter().all(|t| t.snapshot_bytes == 0));

            let mut restored = TableSet::new(specs(), shards(other)).unwrap();
            restored.restore(&workers, folder.path(), &parts).unwrap();
            prop_assert!(contents(&restored) == moment);
            // The snapshot has not changed training.
            prop_assert!(contents(&set) == contents(&twin));
        }
        prop_assert!(stopped(&set, &workers) == stopped(&twin, &workers));
    }
}

/// Runs steps and advances the snapshot until everything is written.
fn drive(set: &mut TableSet, workers: &Workers, step: &mut u64) {
    let mut rounds = 0;
    while !set.snapshot_is_ready() {
        train(set, workers, step, &Act::Step((0..20).map(|i| key(*step * 7 + i)).collect(), false));
        set.advance_snapshot(workers, 200);
        rounds += 1;
        assert!(rounds < 1_000_000, "the background gets nowhere");
    }
}

#[test]
fn steps_write_all_of_it_beside_training() {
    let workers = workers(2);
    let mut set = TableSet::new(specs(), shards(3)).unwrap();
    let mut step = 0;
    let history = |step: u64| Act::Step((0..60).map(|i| key(step * 31 + i)).collect(), false);
    (0..20).for_each(|i| train(&mut set, &workers, &mut step, &history(i)));
    let folder = tempfile::tempdir().unwrap();
    let (expected, expected_bytes) = stopped(&set, &workers);
    assert!(!set.snapshot_is_ready());
    set.begin_snapshot_in_parts(&workers, folder.path(), &Files::new(), LIMIT, None).unwrap();
    let again = set.begin_snapshot(&workers, folder.path(), &Files::new());
    assert!(again.unwrap_err().to_string().contains("finish it first"));
    train(&mut set, &workers, &mut step, &history(19));
    assert!(set.statistics().iter().any(|t| t.snapshot_bytes > 0), "images are counted");
    drive(&mut set, &workers, &mut step);
    // All images are freed before the snapshot is finished.
    assert!(set.statistics().iter().all(|t| t.snapshot_bytes == 0));
    let parts = set.finish_snapshot(&workers).unwrap();
    assert_eq!(parts, expected);
    assert!(bytes(folder.path(), &parts) == expected_bytes);
    assert!(set.finish_snapshot(&workers).unwrap_err().to_string().contains("begin one first"));
}

#[test]
fn a_disk_that_fails_anywhere_costs_the_checkpoint_and_nothing_else() {
    let workers = workers(2);
    let all = |i: u64| Act::Step((0..40).map(|k| key(i * 13 + k)).collect(), false);
    let run = |files: Files| {
        let (mut set, mut step) = (TableSet::new(specs(), shards(3)).unwrap(), 0);
        (0..6).for_each(|i| train(&mut set, &workers, &mut step, &all(i)));
        let folder = tempfile::tempdir().unwrap();
        let begun = set.begin_snapshot(&workers, folder.path(), &files);
        let mut outcome = begun.map(drop);
        for i in 6..12 {
            train(&mut set, &workers, &mut step, &all(i));
            set.advance_snapshot(&workers, 2000);
        }
        if outcome.is_ok() {
            outcome = set.finish_snapshot(&workers).map(drop);
        }
        // The next snapshot succeeds.
        let again = tempfile::tempdir().unwrap();
        set.begin_snapshot_in_parts(&workers, again.path(), &Files::new(), LIMIT, None).unwrap();
        let expected = stopped(&set, &workers);
        train(&mut set, &workers, &mut step, &all(3));
        let parts = set.finish_snapshot(&workers).unwrap();
        assert!((parts.clone(), bytes(again.path(), &parts)) == expected);
        (outcome, stopped(&set, &workers))
    };
    let counting = Arc::new(Failpoint::counting());
    let (outcome, undisturbed) = run(Files::with_failpoints(counting.clone()));
    outcome.unwrap();
    let operations = counting.operations();
    assert!(operations > 30, "{operations} operations");
    for at in (1..=operations).step_by(3) {
        let fault = if at % 2 == 0 { Fault::Enospc } else { Fault::Eio };
        let (outcome, trained) = run(Files::with_failpoints(Arc::new(Failpoint::new(at, fault))));
        assert!(outcome.is_err(), "operation {at}");
        assert!(trained == undisturbed, "operation {at}");
    }
}

#[test]
fn a_delta_can_be_written_while_a_snapshot_is_open() {
    let workers = workers(2);
    let step_of =
        |i: u64| Act::Step((0..25).map(|k| key(i * 9 + k)).collect(), i.is_multiple_of(3));
    let run = |with_snapshots: bool| {
        let (mut set, mut step) = (TableSet::new(specs(), shards(3)).unwrap(), 0);
        set.track_changes(&workers, 2).unwrap();
        (0..4).for_each(|i| train(&mut set, &workers, &mut step, &step_of(i)));
        let mut written = Vec::new();
        let mut since = set.advance_dirty_epoch();
        for round in 1..6 {
            let folder = tempfile::tempdir().unwrap();
            if with_snapshots {
                set.begin_snapshot(&workers, folder.path(), &Files::new()).unwrap();
            }
            (0..3).for_each(|i| train(&mut set, &workers, &mut step, &step_of(round * 3 + i)));
            set.advance_snapshot(&workers, 1000);
            for epoch in [since, since.saturating_sub(1)] {
                let layer = tempfile::tempdir().unwrap();
                let pace = &mut Unthrottled;
                let delta = set.write_delta(&workers, epoch, &Files::new(), layer.path(), pace);
                // The manifest has the hash of every file, so comparing manifests is enough.
                written.push(delta.unwrap());
            }
            since = set.advance_dirty_epoch();
            if with_snapshots {
                set.finish_snapshot(&workers).unwrap();
            }
        }
        assert!(written.iter().filter(|delta| delta.is_some()).count() > 6);
        (written, stopped(&set, &workers))
    };
    assert!(run(true) == run(false));
}

#[test]
fn restoring_gives_an_open_snapshot_up() {
    let workers = workers(2);
    let (mut set, mut step) = (TableSet::new(specs(), shards(3)).unwrap(), 0);
    let keys = |i: u64| Act::Step((0..25).map(|k| key(i * 9 + k)).collect(), false);
    (0..4).for_each(|i| train(&mut set, &workers, &mut step, &keys(i)));
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let parts = checkpoint_oracle(
        &set,
        &workers,
        folders[0].path(),
        &Files::new(),
        zillion_rows::MAX_PART_ROWS,
    )
    .unwrap();
    set.begin_snapshot(&workers, folders[1].path(), &Files::new()).unwrap();
    train(&mut set, &workers, &mut step, &keys(9));
    set.restore(&workers, folders[0].path(), &parts).unwrap();
    assert!(set.finish_snapshot(&workers).is_err());
    set.begin_snapshot(&workers, folders[2].path(), &Files::new()).unwrap();
    train(&mut set, &workers, &mut step, &keys(7));
    assert_eq!(set.finish_snapshot(&workers).unwrap(), parts);
    set.begin_snapshot(&workers, folders[1].path(), &Files::new()).unwrap();
    set.abandon_snapshot();
    assert!(!set.snapshot_is_ready());
    assert!(set.statistics().iter().all(|t| t.snapshot_bytes == 0));
}
