//! Copies of rows in key order, as layers store them.

use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::index::Entry;
use crate::spill::Thawed;
use crate::table::Table;

/// The number of keys by which prefetches of buckets, and then of rows, run ahead.
const AHEAD: usize = 16;

/// A run of rows in key order.
#[derive(Debug, Default)]
pub(crate) struct RowRun {
    keys: Vec<FeatureKey>,
    /// The weights of the rows in f32, whatever the number type of the table, without padding. A
    /// narrow row has fewer weights than a full one.
    weights: Vec<f32>,
    /// The end of each row's weights and the row's count; `None` if a key has no row.
    rows: Vec<Option<(usize, u32)>>,
}

impl RowRun {
    /// Returns the keys, each with the weights and the count of its row if it has one. A narrow row
    /// has only its own weights.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FeatureKey, Option<(&[f32], u32)>)> {
        let mut start = 0;
        self.keys.iter().zip(&self.rows).map(move |(&key, row)| {
            let row = row.map(|(end, count)| {
                let weights = &self.weights[start..end];
                start = end;
                (weights, count)
            });
            (key, row)
        })
    }
}

impl Table {
    /// Returns all rows of one slot.
    pub(crate) fn slot_run(&self, slot: usize) -> Result<RowRun> {
        let mut entries: Vec<(FeatureKey, Entry)> = self.index.slot_entries(slot).collect();
        entries.sort_unstable();
        self.run_of(&entries)
    }

    /// Returns the rows of some keys of this shard; the keys must be in ascending order.
    pub(crate) fn key_run(&self, keys: &[u64]) -> Result<RowRun> {
        let mut entries = Vec::with_capacity(keys.len());
        for (i, &key) in keys.iter().enumerate() {
            if let Some(&key) = keys.get(i + AHEAD) {
                self.index.prefetch(FeatureKey(key));
            }
            let key = FeatureKey(key);
            entries.push((key, self.index.get(key).unwrap_or(Entry::NONE)));
        }
        self.run_of(&entries)
    }

    fn run_of(&self, entries: &[(FeatureKey, Entry)]) -> Result<RowRun> {
        let width = self.shape.width;
        let mut run = RowRun {
            keys: Vec::with_capacity(entries.len()),
            weights: Vec::with_capacity(entries.len() * width),
            rows: Vec::with_capacity(entries.len()),
        };
        let cold = self.cold_rows(entries)?;
        let mut thawed = Thawed::default();
        for (i, &(key, entry)) in entries.iter().enumerate() {
            if let Some(&(_, soon)) = entries.get(i + AHEAD) {
                self.prefetch_weights(soon);
                self.prefetch_companion(soon);
            }
            run.keys.push(key);
            if entry.is_none() {
                run.rows.push(None);
            } else if self.is_cold(entry) {
                self.thaw(&cold, key, entry, &mut thawed)?;
                run.weights.extend_from_slice(&thawed.weights(&self.shape).to_floats());
                let count = self.shape.meta(&thawed.companion).count;
                run.rows.push(Some((run.weights.len(), count)));
            } else {
                let (start, weights) = (run.weights.len(), self.weights_of(entry));
                run.weights.resize(start + weights.len(), 0.0);
                weights.widen(&mut run.weights[start..]);
                run.rows.push(Some((run.weights.len(), self.meta_of(entry).count)));
            }
        }
        Ok(run)
    }
}
