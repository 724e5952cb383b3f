//! The copying of rows in key order, in the form that layers store.

use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::index::Entry;
use crate::table::Table;

/// The number of keys between the prefetch of a bucket and its use.
const AHEAD: usize = 16;

/// Copies of the rows of a run of keys, in key order.
#[derive(Debug, Default)]
pub(crate) struct RowRun {
    /// The weights of the rows, one row after another, without padding. They are in f32 for every
    /// number type of the table. A narrow row has fewer weights than a full row.
    weights: Vec<f32>,
    /// The keys in ascending order. Each key has the end of its row's weights in `weights` and the
    /// row's uses, or `None` if the key has no row.
    rows: Vec<(FeatureKey, Option<(usize, Uses)>)>,
}

/// The uses of a row in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uses {
    /// The number of pushes.
    pub(crate) count: u32,
    /// The step or the event time of the last push.
    pub(crate) last: u32,
}

impl RowRun {
    /// Returns the keys, each with the weights and the uses of its row, or with `None` if it has no
    /// row. A narrow row has only the weights of its own floats.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FeatureKey, Option<(&[f32], Uses)>)> {
        let mut start = 0;
        self.rows.iter().map(move |&(key, row)| {
            let row = row.map(|(end, uses)| {
                let weights = &self.weights[start..end];
                start = end;
                (weights, uses)
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

    /// Returns the rows of some keys of this shard. The keys must be in ascending order.
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
        let mut weights = Vec::with_capacity(entries.len() * self.shape.width);
        let mut found = Vec::with_capacity(entries.len());
        self.for_each_row(entries, |_, stored| {
            let start = weights.len();
            weights.resize(start + stored.weights.len(), 0.0);
            stored.weights.widen(&mut weights[start..]);
            let uses = Uses { count: stored.meta.count, last: stored.meta.last_step };
            found.push((weights.len(), uses));
        })?;
        let mut found = found.into_iter();
        let row = |&(key, entry): &(FeatureKey, Entry)| {
            (key, if entry.is_none() { None } else { found.next() })
        };
        Ok(RowRun { rows: entries.iter().map(row).collect(), weights })
    }
}
