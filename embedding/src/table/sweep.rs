//! The rules that change every row, and the sums over rows. Both go through the slots in order, and
//! through the keys of a slot in order. So the order is the same for every number of shards.

use zillion_device::simd::vectorised;
use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::eviction::permits::Permits;
use crate::optimizer::{Gradient, Shaping, sum_of_squares, with_kernel};
use crate::shape::{SegmentShape, TableShape, TableStep};
use crate::table::Table;
use crate::table::dense::Staged;
use crate::table::push::Times;
use crate::table::push::{apply_rule, is_finite, touch};
use crate::table::slabs::RowSlabs;
use zillion_rows::row::Meta;

/// The number of rows that are swept together.
const SWEEP: u32 = 64;

/// The rows, gradients and buffers of a sweep.
struct Swept<'a> {
    shape: &'a TableShape,
    staged: &'a Staged,
    step: &'a TableStep,
    slabs: &'a mut RowSlabs,
    scratch: &'a mut Vec<f32>,
}

impl Swept<'_> {
    /// Applies rules to a block of rows. If `is_swept` is `true`, these are the rules of the
    /// segments with whole-table rules, else the rules of the other segments. `keys` are the keys
    /// by row number, which are needed if weights are rounded. Returns the number of weights that
    /// were beyond the largest number of their type.
    #[inline(never)]
    fn apply(&mut self, rows: &[u32], keys: &[FeatureKey], is_swept: bool) -> u64 {
        let Self { shape, staged, step, slabs: RowSlabs { weights, companion, .. }, scratch } =
            self;
        let mut saturated = 0;
        vectorised(
            #[inline(always)]
            || {
                for &row in rows {
                    let (raw, companion) = (staged.gradients.row(row), companion.row_mut(row));
                    let is_touched = staged.is_touched[row as usize];
                    saturated += weights.change(
                        row,
                        scratch,
                        shape.width,
                        #[inline(always)]
                        || step.rounding.row(keys[row as usize].0),
                        #[inline(always)]
                        |weights| {
                            let rules = shape.segments.iter().zip(&step.kernels);
                            for (segment, kernel) in rules {
                                if segment.is_swept != is_swept {
                                    continue;
                                }
                                let pulled = segment.l2_is_whole || is_touched;
                                let l2 = if pulled { segment.l2 } else { 0.0 };
                                let shaping = Shaping { l2, scale: step.scale };
                                with_kernel!(kernel, k => {
                                    apply_rule(k, segment, shaping, weights, companion, raw);
                                });
                            }
                        },
                    );
                }
            },
        );
        saturated
    }
}

impl Table {
    /// Applies the staged gradients and the whole-table rules to every row, and then drops the
    /// staged gradients. A skipped step moves no row; its keys count, and its rows are listed as
    /// changed, as in any other step.
    pub(crate) fn sweep(&mut self, step: &TableStep) -> Result<()> {
        let shape = self.shape.clone();
        self.save_everything();
        let Some(dense) = &mut self.dense else { return Ok(()) };
        if let Some(changes) = &mut self.changes {
            changes.note_everything();
        }
        let rows = dense.rows();
        if !shape.spec.dtype.is_f32() {
            dense.list_keys(&self.index);
        }
        let (staged, keys) = dense.staging(shape.stride())?;
        let Self { slabs, scratch, counters, .. } = self;
        let touched: &[u32] = &staged.touched;
        let dropped = staged.dropped.len() as u64;
        counters.refused += staged.refused;
        match step.is_skipped {
            true => counters.nonfinite += dropped + staged.staged,
            false => {
                counters.nonfinite += dropped;
                counters.pushed += staged.staged;
            }
        }
        let mut swept = Swept { shape: &shape, staged, step, slabs, scratch };
        let mut block = [0; SWEEP as usize];
        for start in (0..rows).step_by(SWEEP as usize) {
            let length = SWEEP.min(rows - start) as usize;
            for (i, row) in block[..length].iter_mut().enumerate() {
                *row = start + i as u32;
            }
            let block = &block[..length];
            if !step.is_skipped {
                counters.saturated += swept.apply(block, keys, true);
            }
            for &row in block {
                let companion = swept.slabs.companion.row_mut(row);
                let meta = Meta { dirty_epoch: step.epoch, ..shape.meta(companion) };
                shape.set_meta(companion, meta);
            }
        }
        if !step.is_skipped && shape.segments.iter().any(|segment| !segment.is_swept) {
            for block in touched.chunks(SWEEP as usize) {
                counters.saturated += swept.apply(block, keys, false);
            }
        }
        let counted = staged.dropped.iter().filter(|&&row| !staged.is_touched[row as usize]);
        for &row in staged.touched.iter().chain(counted) {
            touch(&shape, slabs.companion.row_mut(row), step);
        }
        staged.clear();
        Ok(())
    }

    /// Returns one sum of squares for each slot of this shard, with the slot. The sum is over the
    /// gradients that a sweep would apply at scale 1, for all rows. These gradients are the staged
    /// gradients plus the gradients of the regulariser.
    pub(crate) fn staged_squares(&self) -> Vec<(usize, f64)> {
        let Some(dense) = &self.dense else { return Vec::new() };
        let staged = dense.staged.as_ref();
        let mut scratch = Vec::new();
        let mut square = |row: u32| {
            let weights = self.slabs.weights.floats(row, &mut scratch);
            let is_touched = staged.is_some_and(|s| s.is_touched[row as usize]);
            let squares = |segment: &SegmentShape| {
                let pulled = segment.l2_is_whole || is_touched;
                let l2 = if pulled { segment.l2 } else { 0.0 };
                let raw = staged.filter(|_| is_touched).map(|s| s.gradients.row(row));
                segment_square(raw, weights, segment, l2)
            };
            self.shape.segments.iter().map(squares).sum::<f64>()
        };
        dense.slots().map(|slot| (slot, dense.slot_rows(slot).map(&mut square).sum())).collect()
    }

    /// Returns the sum of squares of the gradients for some keys of one slot. These gradients are
    /// `gradients` plus the gradients of the regulariser, without those that the push will drop.
    /// The table must have no whole-table rules.
    pub(crate) fn run_squares(
        &self,
        keys: &[FeatureKey],
        gradients: &[f32],
        occurrences: Times<'_>,
        permits: &Permits,
        step: u32,
    ) -> f64 {
        if self.narrow.is_some() {
            return self.run_squares_of_widths(keys, gradients, occurrences, permits, step);
        }
        let (stride, width) = (self.shape.stride(), self.shape.width);
        let has_l2 = self.shape.segments.iter().any(|s| s.l2 != 0.0);
        let (mut initial, mut scratch) = (Vec::new(), Vec::new());
        let mut sum = 0.0;
        // The regulariser needs the weights; rules that can refuse a key need to know whether it
        // has a row. All keys of a slot are in the same group.
        let is_limited = permits.is_limited(occurrences.first);
        let refuses = self.dense.is_some() || self.candidates.is_some() || is_limited;
        let asks = has_l2 || refuses;
        for (i, (&key, raw)) in keys.iter().zip(gradients.chunks_exact(stride)).enumerate() {
            if !is_finite(raw, width) {
                continue;
            }
            let row = if asks { self.index.get(key) } else { None };
            let weights = match row {
                Some(entry) => self.slabs.weights.floats(entry.row(), &mut scratch),
                None if self.dense.is_some() => continue,
                None if self.waits(key, || occurrences.of(i), step) => continue,
                None if !permits.has(occurrences.first + i) => continue,
                None if has_l2 => self.initial_row(key, &mut initial),
                None => raw,
            };
            let squares = |s: &SegmentShape| segment_square(Some(raw), weights, s, s.l2);
            sum += self.shape.segments.iter().map(squares).sum::<f64>();
        }
        sum
    }

    /// Returns one loss of the regulariser for each slot of this shard, with the slot. The loss is
    /// the sum over all rows and over the segments whose regulariser applies to every row.
    pub(crate) fn whole_regulariser(&self) -> Vec<(usize, f64)> {
        let Some(dense) = &self.dense else { return Vec::new() };
        let mut scratch = Vec::new();
        let mut loss = |row: u32| {
            let weights = self.slabs.weights.floats(row, &mut scratch);
            let whole = self.shape.segments.iter().filter(|s| s.l2_is_whole);
            whole.map(|s| regulariser(weights, s)).sum::<f64>()
        };
        dense.slots().map(|slot| (slot, dense.slot_rows(slot).map(&mut loss).sum())).collect()
    }

    /// Returns the loss of the regulariser over a run of keys of one slot. The loss is the sum over
    /// the segments whose regulariser applies only to touched rows. A key that waits for its row
    /// has no weights and adds nothing.
    pub(crate) fn run_regulariser(&self, keys: &[FeatureKey]) -> f64 {
        let touched = || self.shape.segments.iter().filter(|s| !s.l2_is_whole && s.l2 != 0.0);
        if touched().next().is_none() {
            return 0.0;
        }
        if self.narrow.is_some() {
            return self.run_regulariser_of_widths(keys);
        }
        let (mut initial, mut scratch) = (Vec::new(), Vec::new());
        let mut sum = 0.0;
        for &key in keys {
            let weights = match self.index.get(key) {
                None if self.dense.is_some() || self.candidates.is_some() => continue,
                None => self.initial_row(key, &mut initial),
                Some(entry) => self.slabs.weights.floats(entry.row(), &mut scratch),
            };
            sum += touched().map(|s| regulariser(weights, s)).sum::<f64>();
        }
        sum
    }

    fn initial_row<'a>(&self, key: FeatureKey, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.resize(self.shape.stride(), 0.0);
        self.shape.fill_initial(key, scratch);
        scratch
    }
}

/// Returns the sum of squares of `raw + l2 * w` over a segment, or of `l2 * w` if `raw` is `None`.
pub(crate) fn segment_square(
    raw: Option<&[f32]>,
    weights: &[f32],
    segment: &SegmentShape,
    l2: f32,
) -> f64 {
    let weights = &weights[segment.weights.clone()];
    let shaping = Shaping { l2, scale: 1.0 };
    match raw {
        Some(raw) => {
            let raw = &raw[segment.weights.clone()];
            squares(
                raw.len(),
                #[inline(always)]
                |i| shaping.of(raw[i], weights[i]),
            )
        }
        None if l2 == 0.0 => 0.0,
        None => squares(
            weights.len(),
            #[inline(always)]
            |i| shaping.of(0.0, weights[i]),
        ),
    }
}

/// Returns the sum of `f(i)^2` over `0..n`, computed in vectorised code.
#[inline(always)]
fn squares(n: usize, f: impl Fn(usize) -> f32) -> f64 {
    vectorised(
        #[inline(always)]
        || sum_of_squares(n, f),
    )
}

/// Returns the loss of the regulariser for one segment of a row, `(l2 / 2) * |w|^2`.
pub(crate) fn regulariser(weights: &[f32], segment: &SegmentShape) -> f64 {
    let weights = &weights[segment.weights.clone()];
    let squares = squares(
        weights.len(),
        #[inline(always)]
        |i| weights[i],
    );
    0.5 * f64::from(segment.l2) * squares
}
