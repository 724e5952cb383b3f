//! Tests that results do not depend on the number of shards and threads.

use zillion_feature::RowBuffer;

use crate::TableSet;
use crate::testing::LiveRows;
use crate::testing::fixtures::*;
use zillion_rows::RowSource;
use zillion_rows::conformance;

const IDS: u64 = 300;

/// Runs a history on `n` shards. Returns the norms of the clipped steps, the bytes of the final
/// checkpoint, and the bits of the regulariser's loss.
fn run(n: usize, threads: usize) -> (Vec<u64>, Vec<Vec<u8>>, u64) {
    let workers = workers(threads);
    let mut set = filled(&workers, n, IDS * 2 / 3);
    let mut norms = Vec::new();
    for step in 1..=6 {
        norms.push(clipped_step(&mut set, &workers, step, IDS).to_bits());
    }
    for step in 7..=9 {
        plain_step(&mut set, &workers, step, IDS);
    }
    let plan = step_plan(3, set.layouts().len(), IDS, 60);
    let loss = set.regulariser_loss(&workers, &plan).unwrap().to_bits();
    let folder = tempfile::tempdir().unwrap();
    let (_, bytes) = checkpoint(&set, &workers, folder.path());
    (norms, bytes, loss)
}

#[test]
fn norms_losses_and_checkpoints_have_the_same_bits_for_all_shards_and_threads() {
    let expected = run(1, 1);
    assert!(expected.1.len() > 20, "{} parts", expected.1.len());
    for (n, threads) in [(1, 2), (3, 1), (3, 2), (8, 1), (8, 2), (4096, 2)] {
        assert!(run(n, threads) == expected, "{n} shards, {threads} threads");
    }
}

#[test]
fn training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() {
    let workers = workers(2);
    let step = |set: &mut TableSet, step: u64| {
        // The steps alternate between the clipped and the plain protocol.
        if step.is_multiple_of(2) {
            clipped_step(set, &workers, step, IDS);
        } else {
            plain_step(set, &workers, step, IDS);
        }
    };
    let mut first = filled(&workers, 3, 200);
    (1..=5).for_each(|t| step(&mut first, t));
    first.advance_dirty_epoch();
    let mut whole = filled(&workers, 8, 200);
    (1..=5).for_each(|t| step(&mut whole, t));
    whole.advance_dirty_epoch();
    (6..=12).for_each(|t| step(&mut whole, t));
    let folder = tempfile::tempdir().unwrap();
    let (parts, _) = checkpoint(&first, &workers, folder.path());
    for n in [1, 5, 8] {
        let mut second = TableSet::new(everything(), shards(n)).unwrap();
        second.restore(&workers, folder.path(), &parts).unwrap();
        assert_eq!(second.dirty_epoch(), 2);
        (6..=12).for_each(|t| step(&mut second, t));
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        assert!(
            checkpoint(&second, &workers, a.path()) == checkpoint(&whole, &workers, b.path()),
            "restored on {n} shards"
        );
    }
}

#[test]
fn a_vocabulary_that_comes_in_two_pieces_is_the_same_as_in_one() {
    let workers = workers(1);
    let build = |pieces: &[Vec<u64>]| {
        let mut set = TableSet::new(everything(), shards(3)).unwrap();
        for piece in pieces {
            let keys = sorted_keys(piece.iter().copied());
            for table in [2, 3, 4] {
                set.prefill(&workers, zillion_feature::TableId(table), &keys).unwrap();
            }
        }
        for step in 1..=3 {
            clipped_step(&mut set, &workers, step, 100);
        }
        let folder = tempfile::tempdir().unwrap();
        checkpoint(&set, &workers, folder.path()).1
    };
    let whole = build(&[(0..100).collect()]);
    assert!(whole == build(&[(0..50).collect(), (30..100).collect(), (0..100).collect()]));
    assert!(whole == build(&[vec![7], vec![], (0..100).rev().collect()]));
}

#[test]
fn a_vocabulary_may_grow_between_steps() {
    let workers = workers(2);
    let run = |n: usize, at_first: u64| {
        let mut set = filled(&workers, n, at_first);
        clipped_step(&mut set, &workers, 1, 60);
        for table in [2, 3, 4] {
            let id = zillion_feature::TableId(table);
            let added = set.prefill(&workers, id, &sorted_keys(20..60)).unwrap();
            assert_eq!(added, 60 - at_first.max(20));
        }
        clipped_step(&mut set, &workers, 2, 60);
        let folder = tempfile::tempdir().unwrap();
        checkpoint(&set, &workers, folder.path())
    };
    assert!(run(1, 40) == run(3, 40));
    assert!(run(1, 0) == run(3, 0));
}

#[test]
fn parts_say_how_often_when_and_in_which_epoch_a_row_moved() {
    let workers = workers(1);
    let sgd = zillion_rows::OptimizerSpec::Sgd { lr: 0.1 };
    let specs = vec![
        table("dynamic", false, vec![segment("v", 2, sgd, 0.0)]),
        table("swept", true, vec![segment("v", 2, sgd, 0.1)]),
    ];
    let mut set = TableSet::new(specs, shards(3)).unwrap();
    let ids = [1, 2, 3];
    set.prefill(&workers, zillion_feature::TableId(1), &sorted_keys(ids)).unwrap();
    for (step, pushed) in [(3, vec![1, 2]), (4, vec![2]), (9, vec![3])] {
        if step == 9 {
            set.advance_dirty_epoch();
        }
        let keys: Vec<_> = pushed.into_iter().map(key).collect();
        let plan = conformance::plan_of(&vec![keys; 2]);
        let gradients = gradients(&set, &plan, step);
        set.push(&workers, &plan, &gradients, update(step, 1.0)).unwrap();
        set.sweep(&workers, update(step, 1.0)).unwrap();
    }
    let meta = |table: usize| -> Vec<(u32, u32, u32)> {
        let mut found = std::collections::BTreeMap::new();
        for shard in &set.shards {
            for slot in shard.slots() {
                shard.tables[table]
                    .for_each_in_slot(slot, |k, row| {
                        found.insert(k, (row.meta.count, row.meta.last_step, row.meta.dirty_epoch));
                    })
                    .unwrap();
            }
        }
        ids.iter().map(|&id| found[&key(id)]).collect()
    };
    assert_eq!(meta(0), [(1, 3, 1), (2, 4, 1), (1, 9, 2)]);
    // A sweep moves every row, so all rows belong to the next delta.
    assert_eq!(meta(1), [(1, 3, 2), (2, 4, 2), (1, 9, 2)]);
}

#[test]
fn live_tables_are_a_row_source() {
    let workers = workers(2);
    for n in [1, 3] {
        let mut set = filled(&workers, n, 50);
        (1..=3).for_each(|t| plain_step(&mut set, &workers, t, 60));
        let (expected, absent) = contents(&mut set, &workers);
        let counters: Vec<_> = set.statistics().iter().map(|t| t.counters).collect();
        let default = defaults();
        conformance::check(&mut LiveRows::new(&mut set, &workers), &expected, &absent, &default)
            .unwrap();
        let after: Vec<_> = set.statistics().iter().map(|t| t.counters).collect();
        assert_eq!(counters, after, "evaluation is not counted as training");
    }
}

/// Returns the rows of a set for the ids below 60, and some keys of each table that have no row.
/// Each row is read in a separate plan.
pub(crate) fn contents(
    set: &mut TableSet,
    workers: &zillion_device::Workers,
) -> (conformance::ExpectedRows, Vec<Vec<zillion_feature::FeatureKey>>) {
    let mut expected = Vec::new();
    let mut absent = Vec::new();
    for table in 0..set.layouts().len() {
        let width = set.layouts()[table].width();
        let mut rows = std::collections::BTreeMap::new();
        let mut missing = vec![key(1 << 40)];
        for id in 0..60 {
            let mut keys = vec![Vec::new(); table + 1];
            keys[table].push(key(id));
            let mut buffer = RowBuffer::default();
            let mut live = LiveRows::new(set, workers);
            let report = live.lookup(&conformance::plan_of(&keys), &mut buffer).unwrap();
            if report.total_missing() == 0 {
                rows.insert(key(id), buffer.tables[table].row(0)[..width].to_vec());
            } else {
                missing.push(key(id));
            }
        }
        expected.push(rows);
        absent.push(missing);
    }
    (expected, absent)
}

/// Returns a function that computes the row that a read returns for an unknown key of a table of
/// [`everything`].
pub(crate) fn defaults()
-> impl Fn(zillion_feature::TableId, zillion_feature::FeatureKey) -> Vec<f32> {
    let shapes: Vec<_> =
        everything().into_iter().map(|s| crate::shape::TableShape::new(s).unwrap()).collect();
    move |table, key| {
        let shape = &shapes[table.index()];
        let mut row = vec![f32::NAN; shape.stride()];
        shape.fill_unknown(key, &mut row);
        row.truncate(shape.width);
        row
    }
}
