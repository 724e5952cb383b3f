//! Rows copied out in key order, as layers have them.

use zillion_feature::FeatureKey;

use super::spill::is_cold;
use super::{Table, UNKNOWN};
use crate::error::Result;
use crate::spill::Thawed;

/// Keys whose buckets, and then rows, are asked for before they are looked at.
const AHEAD: usize = 16;

/// A run of rows in key order.
#[derive(Debug, Default)]
pub(crate) struct RowRun {
    width: usize,
    keys: Vec<FeatureKey>,
    /// In f32, whatever the table's type, and without padding; zeros where a key has no row.
    weights: Vec<f32>,
    /// `None` where a key has no row.
    counts: Vec<Option<u32>>,
}

impl RowRun {
    /// The keys, and the weights and pushes of those that have a row.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FeatureKey, Option<(&[f32], u32)>)> {
        let weights = self.weights.chunks_exact(self.width);
        let rows = weights.zip(&self.counts).map(|(w, count)| count.map(|count| (w, count)));
        self.keys.iter().copied().zip(rows)
    }
}

impl Table {
    /// All rows of one slot.
    pub(crate) fn slot_run(&self, slot: usize) -> Result<RowRun> {
        let mut entries: Vec<(FeatureKey, u32)> = self.index.slot_entries(slot).collect();
        entries.sort_unstable();
        self.run_of(&entries)
    }

    /// The rows of some keys of this shard, in ascending order.
    pub(crate) fn key_run(&self, keys: &[u64]) -> Result<RowRun> {
        let mut entries = Vec::with_capacity(keys.len());
        for (i, &key) in keys.iter().enumerate() {
            if let Some(&key) = keys.get(i + AHEAD) {
                self.index.prefetch(FeatureKey(key));
            }
            let key = FeatureKey(key);
            entries.push((key, self.index.get(key).unwrap_or(UNKNOWN)));
        }
        self.run_of(&entries)
    }

    fn run_of(&self, entries: &[(FeatureKey, u32)]) -> Result<RowRun> {
        let width = self.shape.width;
        let mut run = RowRun {
            width,
            keys: Vec::with_capacity(entries.len()),
            weights: Vec::with_capacity(entries.len() * width),
            counts: Vec::with_capacity(entries.len()),
        };
        let cold = self.cold_rows(entries)?;
        let mut thawed = Thawed::default();
        for (i, &(key, row)) in entries.iter().enumerate() {
            if let Some(&(_, row)) = entries.get(i + AHEAD) {
                self.weights.prefetch(row);
                self.companion.prefetch(row);
            }
            run.keys.push(key);
            if row == UNKNOWN {
                run.weights.resize(run.weights.len() + width, 0.0);
                run.counts.push(None);
            } else if is_cold(row) {
                self.thaw(&cold, key, row, &mut thawed)?;
                run.weights.extend_from_slice(&thawed.weights(&self.shape).to_floats());
                run.counts.push(Some(self.shape.meta(&thawed.companion).count));
            } else {
                let start = run.weights.len();
                run.weights.resize(start + width, 0.0);
                self.weights.stored(row, width).widen(&mut run.weights[start..]);
                run.counts.push(Some(self.shape.meta(self.companion.row(row)).count));
            }
        }
        Ok(run)
    }
}
