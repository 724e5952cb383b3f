//! Tests of pruning by magnitude. Tables are compared with a plain sort of their weights, between
//! different numbers of shards, and with the deltas and snapshots that follow.

use std::collections::BTreeMap;

use zillion_device::{Files, Workers};
use zillion_feature::TableId;

use crate::set::tests::changes::{Rows, live};
use crate::set::tests::snapshots::{LIMIT, bytes, stopped};
use crate::testing::fixtures::*;
use crate::{Pruned, TableSet};
use zillion_rows::layer::{Found, Layer, Unthrottled};
use zillion_rows::{Bounds, OptimizerSpec, SegmentSpec, TableSpec};

/// Returns the tables of [`everything`] that can be pruned, with rows that have learned.
fn trained(workers: &Workers, n: usize) -> TableSet {
    let mut set = filled(workers, n, 40);
    (1..=4).for_each(|step| plain_step(&mut set, workers, step, 60));
    set
}

fn prunable(set: &TableSet) -> Vec<usize> {
    let specs = set.specs().enumerate();
    specs.filter(|(_, spec)| spec.grow.is_none()).map(|(table, _)| table).collect()
}

/// Prunes rows by sorting the magnitudes of each segment.
fn prune_plainly(spec: &TableSpec, rows: &mut Rows, share: f64) {
    let mut start = 0;
    for SegmentSpec { dim, .. } in &spec.segments {
        let place = start..start + dim;
        start += dim;
        let magnitude = |bits: &u32| f32::from_bits(*bits).abs();
        let all = rows.values().flat_map(|(bits, _)| bits[place.clone()].iter().map(magnitude));
        let mut all: Vec<f32> = all.collect();
        all.sort_unstable_by(f32::total_cmp);
        let count = (share * all.len() as f64).ceil() as usize;
        let Some(&limit) = count.checked_sub(1).and_then(|last| all.get(last)) else { continue };
        for bits in rows.values_mut().flat_map(|(bits, _)| &mut bits[place.clone()]) {
            if f32::from_bits(*bits).abs() <= limit {
                *bits = 0;
            }
        }
    }
}

#[test]
fn pruning_is_a_sort_of_magnitudes_for_any_shards() {
    let workers = workers(3);
    for share in [0.0, 0.001, 0.3, 0.5, 0.9, 1.0] {
        for n in [1, 2, 5] {
            let mut set = trained(&workers, n);
            let specs: Vec<TableSpec> = set.specs().cloned().collect();
            for table in prunable(&set) {
                let mut wanted = live(&set, table);
                prune_plainly(&specs[table], &mut wanted, share);
                let pruned = set.prune(&workers, TableId(table as u16), share).unwrap();
                let place = format!("table {table}, share {share}, {n} shards");
                assert_eq!(live(&set, table), wanted, "{place}");
                let all = wanted.values().flat_map(|(bits, _)| bits);
                let zeros = all.clone().filter(|&&bits| f32::from_bits(bits) == 0.0).count();
                let (weights, zeros) = (all.count() as u64, zeros as u64);
                assert_eq!(pruned, Pruned { weights, zeros }, "{place}");
                assert!(zeros as f64 >= share * weights as f64, "{place}");
                // A second pruning finds nothing to do.
                set.prune(&workers, TableId(table as u16), share).unwrap();
                assert_eq!(live(&set, table), wanted, "{place}");
            }
        }
    }
}

#[test]
fn training_goes_on_alike_after_pruning() {
    let workers = workers(2);
    let train = |n: usize| {
        let mut set = trained(&workers, n);
        for step in 5..=9 {
            for table in prunable(&set) {
                set.prune(&workers, TableId(table as u16), 0.6).unwrap();
            }
            clipped_step(&mut set, &workers, step, 60);
        }
        (0..set.layouts().len()).map(|table| live(&set, table)).collect::<Vec<_>>()
    };
    assert_eq!(train(1), train(4));
}

#[test]
fn a_delta_has_the_pruned_rows_and_no_others() {
    let (workers, folder) = (workers(2), tempfile::tempdir().unwrap());
    let mut set = trained(&workers, 3);
    set.track_changes(&workers, 4).unwrap();
    for share in [0.1, 0.2, 0.7] {
        let before: Vec<Rows> = (0..set.layouts().len()).map(|table| live(&set, table)).collect();
        let since = set.advance_dirty_epoch();
        let tables = prunable(&set);
        for &table in &tables {
            set.prune(&workers, TableId(table as u16), share).unwrap();
        }
        let files = Files::new();
        let manifest = set.write_delta(&workers, since, &files, folder.path(), &mut Unthrottled);
        let manifest = manifest.unwrap().unwrap();
        let layer = Layer::open(folder.path(), &manifest, set.layouts()).unwrap();
        for (table, before) in before.iter().enumerate() {
            let rows = layer.iter(table).map(|(key, found)| match found {
                Found::Row(row) => {
                    (key.0, (row.weights.iter().map(|w| w.to_bits()).collect(), row.count))
                }
                Found::Tombstone => panic!("pruning removes no row"),
            });
            let delta: Rows = rows.collect();
            let now = live(&set, table);
            let changed = now.iter().filter(|&(key, row)| before.get(key) != Some(row));
            let changed: Rows = changed.map(|(key, row)| (*key, row.clone())).collect();
            assert_eq!(delta, changed, "table {table}, share {share}");
            assert_eq!(changed.is_empty(), !tables.contains(&table), "table {table}");
        }
    }
}

#[test]
fn a_snapshot_beside_pruning_is_of_its_moment() {
    let workers = workers(2);
    for steps in [0, 2] {
        let mut set = trained(&workers, 3);
        let wanted = stopped(&set, &workers);
        let folder = tempfile::tempdir().unwrap();
        let files = Files::new();
        set.begin_snapshot_in_parts(&workers, folder.path(), &files, LIMIT, None).unwrap();
        for step in 0..=steps {
            for table in prunable(&set) {
                set.prune(&workers, TableId(table as u16), 0.3 + step as f64 / 10.0).unwrap();
            }
            if step > 0 {
                plain_step(&mut set, &workers, 4 + step, 60);
            }
        }
        let parts = set.finish_snapshot(&workers).unwrap();
        let written = bytes(folder.path(), &parts);
        assert!((parts, written) == wanted, "{steps} steps");
    }
}

#[test]
fn a_frozen_table_is_not_pruned() {
    let workers = workers(1);
    let mut set = trained(&workers, 2);
    set.freeze(&[TableId(0)]).unwrap();
    let before = live(&set, 0);
    let pruned = set.prune(&workers, TableId(0), 0.5).unwrap();
    assert_eq!((live(&set, 0), pruned.zeros < pruned.weights / 2), (before, true));
}

#[test]
fn tables_that_cannot_be_pruned_are_refused_by_name() {
    let workers = workers(1);
    let sgd = OptimizerSpec::Sgd { lr: 0.1 };
    let above = SegmentSpec {
        bounds: Some(Bounds { low: 0.1, high: 1.0 }),
        initializer: zillion_rows::InitializerSpec::Constant { value: 0.5 },
        ..segment("v", 4, sgd, 0.0)
    };
    let specs = BTreeMap::from([
        ("growing", growing(3, Some(2), table("growing", false, vec![segment("v", 4, sgd, 0.0)]))),
        ("bounded", table("bounded", false, vec![above])),
        ("plain", table("plain", false, vec![segment("v", 4, sgd, 0.0)])),
    ]);
    for (name, words) in [("growing", "rows that grow"), ("bounded", "exclude zero")] {
        let mut set = TableSet::new(vec![specs[name].clone()], shards(1)).unwrap();
        let said = set.prune(&workers, TableId(0), 0.5).unwrap_err().to_string();
        assert!(said.contains(name) && said.contains(words), "{said}");
    }
    let mut set = TableSet::new(vec![specs["plain"].clone()], shards(1)).unwrap();
    for share in [-0.1, 1.1, f64::NAN] {
        let said = set.prune(&workers, TableId(0), share).unwrap_err().to_string();
        assert!(said.contains("from 0 to 1"), "{said}");
    }
    assert!(set.prune(&workers, TableId(1), 0.5).is_err());
    assert_eq!(set.prune(&workers, TableId(0), 0.5).unwrap(), Pruned::default());
}
