//! Writing narrow rows: the same rules on what they have of a gradient.

use std::ops::Range;

use zillion_feature::FeatureKey;

use super::super::push::{apply_kernel, touch};
use super::super::uses::note_uses;
use super::super::{BLOCK, DROPPED, Table, Times};
use super::{NARROW, Narrow, is_narrow};
use crate::narrow::NarrowShape;
use crate::optimizer::Shaping;
use crate::shape::{TableShape, TableStep};

impl Table {
    /// Asks for the lines of a row of either width that a push will write.
    #[inline(always)]
    pub(in crate::table) fn prefetch_either(&self, row: u32) {
        match &self.narrow {
            Some(narrow) if is_narrow(row) => {
                narrow.weights.prefetch_mut(row & !NARROW);
                narrow.companion.prefetch_mut(row & !NARROW);
            }
            _ => {
                self.weights.prefetch_mut(row);
                self.companion.prefetch_mut(row);
            }
        }
    }

    /// Applies a block's gradients to its narrow rows, and leaves the full ones in `rows`. `keys` and `gradients` are
    /// the block's. Rows that have been pushed often enough grow when all blocks are done.
    pub(in crate::table) fn push_narrow(
        &mut self,
        shape: &TableShape,
        keys: &[FeatureKey],
        gradients: &[f32],
        (occurrences, block): (Times<'_>, Range<usize>),
        rows: &mut [u32; BLOCK],
        step: &TableStep,
    ) {
        let Self { narrow: Some(narrow), changes, counters, snapshot, .. } = self else { return };
        let Some(NarrowShape { at, shape: small, .. }) = shape.narrow.as_deref() else { return };
        let mut own = [DROPPED; BLOCK];
        let mut found = 0;
        for (own, row) in own.iter_mut().zip(rows).take(keys.len()) {
            if is_narrow(*row) {
                *own = *row & !NARROW;
                *row = DROPPED;
                found += 1;
            }
        }
        if found == 0 {
            return;
        }
        counters.narrow_gradients += found;
        let Narrow { weights, companion, scratch, gradients: gathered, due, .. } = &mut **narrow;
        let (rows, stride) = (&own[..keys.len()], small.stride());
        if let Some(snapshot) = snapshot {
            snapshot.save_narrow(small, weights, companion, keys, rows);
        }
        gather(shape, gradients, rows, gathered);
        let mut lent = weights.lend(rows, stride, scratch);
        for (segment, kernel) in small.segments.iter().zip(&step.narrow) {
            let shaping = Shaping { l2: segment.l2, scale: step.scale };
            let raw = |i: usize, _row: u32| &gathered[i * stride..(i + 1) * stride];
            apply_kernel(kernel, &mut lent, companion, rows, segment, raw, |_| shaping);
        }
        counters.saturated +=
            weights.take_back(rows, small.width, stride, scratch, step.rounding, |i| keys[i]);
        if let Some(changes) = changes {
            changes.note_pushed(small, companion, keys, rows);
        }
        if let (Some(statistics), Some(uses)) = (&small.spec.statistics, occurrences.uses) {
            note_uses(small, statistics, companion, rows, &uses[block], step.step);
        }
        touch(small, companion, rows, step);
        for (&key, &row) in keys.iter().zip(rows).filter(|(_, row)| **row != DROPPED) {
            if small.meta(companion.row(row)).count >= *at {
                due.push(key);
            }
        }
    }
}

/// What the narrow rows of a block have of its gradients, at their stride.
fn gather(shape: &TableShape, gradients: &[f32], rows: &[u32], gathered: &mut Vec<f32>) {
    let Some(narrow) = shape.narrow.as_deref() else { return };
    let stride = narrow.shape.stride();
    gathered.resize(rows.len() * stride, 0.0);
    let pairs = gradients.chunks_exact(shape.stride()).zip(gathered.chunks_exact_mut(stride));
    for ((full, own), _) in pairs.zip(rows).filter(|(_, row)| **row != DROPPED) {
        narrow.gather(full, own);
    }
}
