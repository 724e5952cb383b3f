//! The keys with which both sets of a history begin, and the comparison of their rows.

use zillion_device::Workers;
use zillion_embedding::TableSet;
use zillion_feature::{FeatureKey, RowBuffer, TableId};
use zillion_rows::TableSpec;

pub(crate) fn bits(rows: &[f32]) -> Vec<u32> {
    rows.iter().map(|x| x.to_bits()).collect()
}

pub(crate) fn prefill(set: &mut TableSet, workers: &Workers, specs: &[TableSpec], vocabulary: u64) {
    let mut keys: Vec<FeatureKey> = (0..vocabulary).map(FeatureKey::from_u64).collect();
    keys.sort_unstable();
    for (index, _) in specs.iter().enumerate().filter(|(_, spec)| spec.dense) {
        set.prefill(workers, TableId(index as u16), &keys).unwrap();
    }
}

pub(crate) fn assert_same(a: &RowBuffer, b: &RowBuffer, what: &str) {
    for (a, b) in a.tables.iter().zip(&b.tables) {
        assert_eq!((bits(&a.values), &a.counts), (bits(&b.values), &b.counts), "{what}");
    }
}
