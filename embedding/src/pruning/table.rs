//! The passes over the rows of one shard's part of a table that pruning needs.

use zillion_feature::FeatureKey;

use super::{Counted, magnitude};
use crate::index::Entry;
use crate::shape::TableShape;
use crate::table::Table;
use crate::table::slabs::RowSlabs;
use zillion_rows::row::Meta;

impl Table {
    /// Adds the weights of one segment to the bins of a pass.
    pub(crate) fn count_magnitudes(&self, segment: usize, counted: Counted, bins: &mut [u64]) {
        let place = self.shape.segments[segment].weights.clone();
        self.for_each_weights(|weights| {
            for &weight in &weights[place.clone()] {
                if let Some(bin) = counted.bin_of(weight) {
                    bins[bin] += 1;
                }
            }
        });
    }

    /// Returns the number of weights that are zero.
    pub(crate) fn count_zeros(&self) -> u64 {
        let width = self.shape.width;
        let mut zeros = 0;
        self.for_each_weights(|weights| {
            zeros += weights[..width].iter().filter(|&&weight| weight == 0.0).count() as u64;
        });
        zeros
    }

    fn for_each_weights(&self, mut f: impl FnMut(&[f32])) {
        let mut scratch = Vec::new();
        for slot in self.index.slots() {
            for (_, entry) in self.index.slot_entries(slot) {
                f(self.slabs.weights.floats(entry.row(), &mut scratch));
            }
        }
    }

    /// Sets each weight whose magnitude is not above the limit of its segment to zero. A segment
    /// without a limit does not change. Rows that change are marked with `generation` and listed as
    /// changed, and an open snapshot keeps their images.
    pub(crate) fn prune(&mut self, limits: &[Option<u32>], generation: u32) {
        let shape = self.shape.clone();
        for slot in self.index.slots() {
            let entries: Vec<(FeatureKey, Entry)> = self.index.slot_entries(slot).collect();
            for (key, entry) in entries {
                self.prune_row(&shape, (key, entry.row()), limits, generation);
            }
        }
    }

    fn prune_row(
        &mut self,
        shape: &TableShape,
        (key, row): (FeatureKey, u32),
        limits: &[Option<u32>],
        generation: u32,
    ) {
        let Self { slabs, scratch, snapshot, changes, .. } = self;
        let RowSlabs { weights, companion, .. } = slabs;
        let places = || shape.segments.iter().zip(limits);
        // A weight of `-0.0` is pruned too, so that its bits are zero.
        let is_pruned =
            |weight: f32, limit: u32| magnitude(weight) <= limit && weight.to_bits() != 0;
        let floats = weights.floats(row, scratch);
        let changed = places().any(|(segment, limit)| {
            let own = &floats[segment.weights.clone()];
            limit.is_some_and(|limit| own.iter().any(|&weight| is_pruned(weight, limit)))
        });
        if !changed {
            return;
        }
        let companion = companion.row_mut(row);
        if let Some(snapshot) = snapshot {
            snapshot.save(false, shape, key, weights.words(row), companion);
        }
        // Zeros and unchanged weights are numbers of every type, so nothing is rounded.
        let mut pruned = weights.floats(row, scratch).to_vec();
        for (segment, limit) in places() {
            let Some(limit) = *limit else { continue };
            for weight in &mut pruned[segment.weights.clone()] {
                if is_pruned(*weight, limit) {
                    *weight = 0.0;
                }
            }
        }
        weights.fill(row, scratch, |out| out.copy_from_slice(&pruned[..out.len()]));
        let meta = shape.meta(companion);
        if let Some(changes) = changes
            && meta.dirty_epoch != generation
        {
            changes.note(key);
        }
        shape.set_meta(companion, Meta { dirty_epoch: generation, ..meta });
    }
}
