//! Tests of the lists of changes, and of the layers that are written from them. The layers are
//! compared with a `BTreeMap`, and between different numbers of shards and threads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use zillion_device::{Files, Workers};
use zillion_feature::{FeatureKey, TableId};

use crate::TableSet;
use crate::testing::fixtures::*;
use zillion_rows::conformance::plan_of;
use zillion_rows::layer::{
    Found, Layer, LayerManifest, Unthrottled, difference, layer_of_checkpoint, merge_layers,
    verify_layer,
};
use zillion_rows::{Eviction, OptimizerSpec, TableSpec};

/// The rows by key, each with the bits of its weights and its number of pushes.
pub(crate) type Rows = BTreeMap<u64, (Vec<u32>, u32)>;

fn evicting(steps: u64) -> TableSpec {
    let sgd = OptimizerSpec::Sgd { lr: 0.25 };
    let segments = vec![segment("v", 5, sgd, 0.0), segment("linear", 1, sgd, 0.0)];
    let eviction = Eviction::Unseen { steps };
    TableSpec { eviction, hot_keys: 8, ..table("ids", false, segments) }
}

/// Pushes gradients for these keys, and ends the step.
fn step(set: &mut TableSet, workers: &Workers, number: u64, keys: Vec<FeatureKey>) {
    let plan = plan_of(&vec![keys; set.layouts().len()]);
    let raw = gradients(set, &plan, number);
    set.push(workers, &plan, &raw, update(number, 1.0)).unwrap();
    set.sweep(workers, update(number, 1.0)).unwrap();
}

pub(crate) fn live(set: &TableSet, table: usize) -> Rows {
    let mut rows = Rows::new();
    for shard in &set.shards {
        for slot in shard.slots() {
            shard.tables[table]
                .for_each_in_slot(slot, |key, stored| {
                    let bits = stored.weights.to_floats().iter().map(|w| w.to_bits()).collect();
                    rows.insert(key.0, (bits, stored.meta.count));
                })
                .unwrap();
        }
    }
    rows
}

fn stored(layer: &Layer, table: usize) -> Rows {
    let row = |(key, found): (FeatureKey, Found<'_>)| match found {
        Found::Row(row) => {
            Some((key.0, (row.weights.iter().map(|w| w.to_bits()).collect(), row.count)))
        }
        Found::Tombstone => None,
    };
    layer.iter(table).filter_map(row).collect()
}

fn open(set: &TableSet, folder: &Path, manifest: &LayerManifest) -> Layer {
    verify_layer(folder, manifest, set.layouts(), &mut Unthrottled).unwrap();
    Layer::open(folder, manifest, set.layouts()).unwrap()
}

fn base(set: &TableSet, workers: &Workers, folder: &Path) -> LayerManifest {
    set.write_base(workers, &Files::new(), folder, &mut Unthrottled).unwrap()
}

fn delta(set: &TableSet, workers: &Workers, since: u32, folder: &Path) -> Option<LayerManifest> {
    set.write_delta(workers, since, &Files::new(), folder, &mut Unthrottled).unwrap()
}

fn keys_of(layer: &Layer, table: usize) -> BTreeSet<u64> {
    layer.iter(table).map(|(key, _)| key.0).collect()
}

fn listed(set: &TableSet) -> u64 {
    let tables = set.shards.iter().flat_map(|shard| &shard.tables);
    tables.filter_map(|table| table.changes.as_ref()).map(|changes| changes.listed()).sum()
}

/// One action of a history: a step with its keys, or the end of an epoch.
#[derive(Clone, Debug)]
enum Act {
    Step(Vec<FeatureKey>),
    End,
}

fn act() -> impl Strategy<Value = Act> {
    let key = prop_oneof![
        Just(FeatureKey(0)),
        Just(FeatureKey(u64::MAX)),
        (0u64..40).prop_map(key),
        (0u64..10).prop_map(|low| FeatureKey(9 << 52 | low)),
    ];
    prop_oneof![
        4 => prop::collection::vec(key, 0..30).prop_map(Act::Step),
        1 => Just(Act::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Checks that a delta has exactly the keys that were pushed or evicted since its epoch, for
    /// every epoch in the lists. The state at the end of this epoch, changed by the delta, must be
    /// the present state. The difference of the two states must be the same delta.
    #[test]
    fn deltas_are_what_happened_since(
        n in 1usize..6,
        steps in 1u64..6,
        before in prop::collection::vec(act(), 0..4),
        acts in prop::collection::vec(act(), 1..30),
    ) {
        let workers = workers(2);
        let folder = tempfile::tempdir().unwrap();
        let mut set = TableSet::new(vec![evicting(steps)], shards(n)).unwrap();
        let mut number = 0;
        for act in before {
            if let Act::Step(keys) = act {
                number += 1;
                step(&mut set, &workers, number, keys);
            }
        }
        set.track_changes(&workers, 3).unwrap();
        // The state at the end of each epoch, and the keys that have changed since.
        let mut ends: Vec<(u32, LayerManifest, BTreeSet<u64>)> = Vec::new();
        for act in acts.into_iter().chain([Act::End]) {
            let was = live(&set, 0);
            match act {
                Act::Step(keys) => {
                    number += 1;
                    step(&mut set, &workers, number, keys.clone());
                    let now = live(&set, 0);
                    let gone = was.keys().filter(|key| !now.contains_key(key)).copied();
                    let touched: BTreeSet<u64> = keys.iter().map(|k| k.0).chain(gone).collect();
                    ends.iter_mut().for_each(|(_, _, changed)| changed.extend(&touched));
                }
                Act::End => {
                    let all = base(&set, &workers, folder.path());
                    let now = open(&set, folder.path(), &all);
                    prop_assert_eq!(stored(&now, 0), live(&set, 0));
                    for (back, (since, was, changed)) in ends.iter().rev().enumerate() {
                        let delta = delta(&set, &workers, *since, folder.path());
                        prop_assert_eq!(delta.is_some(), back <= 3, "{} epochs back", back);
                        let Some(delta) = delta else { continue };
                        let was = open(&set, folder.path(), was);
                        let delta = open(&set, folder.path(), &delta);
                        prop_assert_eq!(&keys_of(&delta, 0), changed);
                        let compared = difference(
                            &Files::new(), folder.path(), set.layouts(), &[&was], &now, &mut Unthrottled,
                        ).unwrap();
                        let compared = open(&set, folder.path(), &compared);
                        prop_assert!(keys_of(&compared, 0).is_subset(changed));
                        for delta in [&delta, &compared] {
                            let merged = merge_layers(
                                &Files::new(), folder.path(), set.layouts(), &[&was, delta], true, &mut Unthrottled,
                            ).unwrap();
                            prop_assert_eq!(stored(&open(&set, folder.path(), &merged), 0), live(&set, 0));
                        }
                    }
                    let ended = set.advance_dirty_epoch();
                    ends.push((ended, all, BTreeSet::new()));
                }
            }
        }
    }
}

/// Returns the manifests of all deltas and bases that a history of all tables writes, and the
/// manifest of the base that is made from the checkpoint of the tables.
fn published(n: usize, threads: usize) -> Vec<LayerManifest> {
    let workers = workers(threads);
    let mut specs = everything();
    specs.push(evicting(2));
    specs.iter_mut().for_each(|spec| spec.hot_keys = 8);
    let mut set = TableSet::new(specs.clone(), shards(n)).unwrap();
    for table in [2, 3, 4] {
        set.prefill(&workers, TableId(table), &sorted_keys(0..200)).unwrap();
    }
    set.track_changes(&workers, 8).unwrap();
    let mut since = set.advance_dirty_epoch();
    let folder = tempfile::tempdir().unwrap();
    let mut manifests = vec![base(&set, &workers, folder.path())];
    for number in 1..=6 {
        plain_step(&mut set, &workers, number, 300);
        if number == 4 {
            set.prefill(&workers, TableId(4), &sorted_keys(150..250)).unwrap();
        }
        if number % 2 == 0 {
            manifests.extend(delta(&set, &workers, since, folder.path()));
            since = set.advance_dirty_epoch();
        }
    }
    manifests.push(base(&set, &workers, folder.path()));
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    let of_checkpoint = layer_of_checkpoint(
        &workers,
        folder.path(),
        &specs,
        &parts,
        &Files::new(),
        folder.path(),
        &mut Unthrottled,
    );
    manifests.push(of_checkpoint.unwrap());
    // Names are hashes, so files with equal manifests have equal bytes.
    let opened: Vec<Layer> = manifests.iter().map(|m| open(&set, folder.path(), m)).collect();
    for table in 0..specs.len() {
        assert_eq!(stored(&opened[4], table), live(&set, table));
        let chain: Vec<&Layer> = opened[..4].iter().collect();
        let merged = merge_layers(
            &Files::new(),
            folder.path(),
            set.layouts(),
            &chain,
            true,
            &mut Unthrottled,
        );
        let merged = open(&set, folder.path(), &merged.unwrap());
        assert_eq!(stored(&merged, table), live(&set, table));
    }
    manifests
}

#[test]
fn layers_have_the_same_bytes_for_all_shards_and_threads() {
    let expected = published(1, 1);
    assert_eq!(expected.len(), 6);
    assert_eq!(expected[4], expected[5], "a checkpoint's base is that of the live tables");
    let tombstones: u64 =
        expected[1..4].iter().map(|m| m.tables[everything().len()].tombstones).sum();
    assert!(tombstones > 20, "{tombstones} rows left");
    // Layers list their hot keys, whose order is a part of these bytes.
    assert!(expected.iter().all(|manifest| manifest.hot.len() == 1));
    // A table is whole if a rule moves all its rows; otherwise only pushed and added rows are
    // expected.
    assert_eq!(expected[1].tables[2].rows, 200);
    assert!(expected[1].tables[4].rows < 120 && expected[2].tables[4].rows >= 50);
    for (n, threads) in [(1, 2), (3, 1), (3, 2), (8, 2), (4096, 2)] {
        assert!(published(n, threads) == expected, "{n} shards, {threads} threads");
    }
}

#[test]
fn a_swept_table_that_did_not_move_is_no_part_of_a_delta() {
    let (workers, folder) = (workers(1), tempfile::tempdir().unwrap());
    let mut set = filled(&workers, 3, 50);
    set.track_changes(&workers, 1).unwrap();
    let first = set.advance_dirty_epoch();
    let rows = |set: &TableSet, since| delta(set, &workers, since, folder.path()).unwrap().rows();
    assert_eq!(rows(&set, first), 0);
    // A key that is added to the vocabulary later is the only change, so that the rows of a delta
    // do not depend on the shards or servers that hold the other keys.
    set.prefill(&workers, TableId(2), &sorted_keys(0..51)).unwrap();
    assert_eq!(rows(&set, first), 1);
    let second = set.advance_dirty_epoch();
    assert_eq!((rows(&set, first), rows(&set, second)), (1, 0));
}

#[test]
fn what_is_not_known_is_not_written() {
    let (workers, folder) = (workers(1), tempfile::tempdir().unwrap());
    let mut set = TableSet::new(vec![evicting(9)], shards(3)).unwrap();
    step(&mut set, &workers, 1, vec![key(1)]);
    assert_eq!(delta(&set, &workers, 0, folder.path()), None, "changes are not tracked");
    set.track_changes(&workers, 5).unwrap();
    assert!(!set.knows_changes_since(0));
    let error = set.write_delta(&workers, 1, &Files::new(), folder.path(), &mut Unthrottled);
    assert_eq!(
        error.unwrap_err().to_string(),
        "epoch 1 has not ended (the current epoch is 1); ask for the changes since an earlier epoch"
    );
    assert_eq!(set.advance_dirty_epoch(), 1);
    assert_eq!(delta(&set, &workers, 1, folder.path()).unwrap().rows(), 0);
    assert_eq!(delta(&set, &workers, 0, folder.path()), None);
    step(&mut set, &workers, 2, vec![key(1), key(2)]);
    assert_eq!(delta(&set, &workers, 1, folder.path()).unwrap().rows(), 2);
}

/// Checks that the next push of a row is listed even if the row already has the number of the
/// current epoch. This happens if the row was changed in the epoch in which tracking began or in
/// which a checkpoint was taken.
#[test]
fn rows_of_the_epoch_that_tracking_begins_in_are_not_missed() {
    let (workers, folder) = (workers(1), tempfile::tempdir().unwrap());
    let mut set = TableSet::new(vec![evicting(9)], shards(3)).unwrap();
    step(&mut set, &workers, 1, vec![key(1), key(2)]);
    let (parts, _) = checkpoint(&set, &workers, folder.path());
    let mut other = TableSet::new(vec![evicting(9)], shards(2)).unwrap();
    for epochs in [1, 5] {
        other.track_changes(&workers, epochs).unwrap();
    }
    step(&mut other, &workers, 1, vec![key(7)]);
    other.advance_dirty_epoch();
    other.restore(&workers, folder.path(), &parts).unwrap();
    set.track_changes(&workers, 5).unwrap();
    for set in [&mut set, &mut other] {
        assert!(!set.knows_changes_since(0), "what was evicted before is not known");
        step(set, &workers, 2, vec![key(1)]);
        let ended = set.advance_dirty_epoch();
        assert_eq!(ended, 1);
        step(set, &workers, 3, vec![key(2)]);
        step(set, &workers, 4, vec![key(2)]);
        let written = delta(set, &workers, ended, folder.path()).unwrap();
        assert_eq!(keys_of(&open(set, folder.path(), &written), 0), [key(2).0].into());
        // The list has rows 1 and 2 of the first epoch, listed when tracking began, and row 2 of
        // the second.
        assert_eq!(listed(set), 3);
    }
}

#[test]
fn lists_hold_no_more_keys_than_the_table_has_rows() {
    let workers = workers(2);
    let history = |n: usize| {
        let mut set = TableSet::new(vec![evicting(100)], shards(n)).unwrap();
        set.track_changes_with(&workers, 4, 30).unwrap();
        let mut reach = Vec::new();
        // Each epoch has 20 keys, in a table that grows to 50 rows.
        for (number, first) in (1..).zip([0, 10, 20, 30, 0, 10]) {
            set.advance_dirty_epoch();
            step(&mut set, &workers, number, (first..first + 20).map(key).collect());
            let rows = set.rows(TableId(0)).max(30);
            assert!(listed(&set) <= rows, "{} keys of {rows} rows", listed(&set));
            let since = (0..set.dirty_epoch()).find(|&since| set.knows_changes_since(since));
            reach.push(set.dirty_epoch() - since.unwrap());
        }
        // The list of an epoch with more keys than the table has rows, because rows are evicted, is
        // dropped.
        set.advance_dirty_epoch();
        for number in 7..=400 {
            step(&mut set, &workers, number, vec![key(1000 + number)]);
            assert!(listed(&set) <= set.rows(TableId(0)).max(30));
        }
        assert!(!set.knows_changes_since(set.dirty_epoch() - 1));
        let ended = set.advance_dirty_epoch();
        assert!(set.knows_changes_since(ended));
        step(&mut set, &workers, 401, vec![key(1)]);
        let folder = tempfile::tempdir().unwrap();
        let written = delta(&set, &workers, ended, folder.path()).unwrap();
        assert!(keys_of(&open(&set, folder.path(), &written), 0).contains(&key(1).0));
        (reach, written)
    };
    let (reach, written) = history(1);
    // Tables of 30 and 40 rows have room for the keys of one epoch and of two epochs.
    assert_eq!(reach, [1, 1, 2, 2, 2, 2]);
    for n in [2, 5] {
        assert_eq!(history(n), (reach.clone(), written.clone()), "{n} shards");
    }
}

#[test]
fn lists_are_memory_and_nothing_without_tracking() {
    let workers = workers(1);
    let mut set = TableSet::new(vec![evicting(100)], shards(3)).unwrap();
    let keys = || (0..500).map(key).collect::<Vec<_>>();
    step(&mut set, &workers, 1, keys());
    assert_eq!(set.statistics()[0].change_bytes, 0);
    let before = set.statistics()[0].total_bytes();
    set.track_changes(&workers, 2).unwrap();
    let statistics = &set.statistics()[0];
    assert!(statistics.change_bytes >= 500 * 8, "{} bytes", statistics.change_bytes);
    assert_eq!(statistics.total_bytes(), before + statistics.change_bytes);
    // With the same keys in every epoch, each epoch has a list, and no more lists are kept than was
    // asked for.
    for number in 2..=6 {
        set.advance_dirty_epoch();
        step(&mut set, &workers, number, keys());
        step(&mut set, &workers, number + 10, keys());
    }
    assert_eq!(listed(&set), 3 * 500);
    set.advance_dirty_epoch();
    let bytes = set.statistics()[0].change_bytes;
    assert!((2 * 500 * 8..2 * 500 * 8 + 1024).contains(&bytes), "{bytes} bytes");
}
