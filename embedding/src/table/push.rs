//! Writing rows: the lookup, the creation of unknown keys and the optimizer in one pass.

use std::ops::Range;

use zillion_device::simd::vectorised;
use zillion_device::slab::Slab;
use zillion_feature::{FeatureKey, Use};

use super::uses::note_uses;
use super::weights::{FloatRows, Lent};
use super::{BLOCK, DROPPED, Table, UNKNOWN, in_blocks};
use crate::error::Result;
use crate::index::AtHome;
use crate::optimizer::{Kernel, RowKernel, RowwiseAdagradKernel, Shaping, with_kernel};
use crate::shape::{Meta, SegmentShape, TableShape, TableStep, floats_mut};

/// What the stages of a push share.
struct Push<'a> {
    table: &'a mut Table,
    /// Row numbers of two blocks.
    rows: [[u32; BLOCK]; 2],
}

impl Table {
    /// Whether a key without a row gets one now; counted.
    #[inline(always)]
    fn admit(&mut self, key: FeatureKey, times: impl FnOnce() -> u32, step: u32) -> bool {
        let Some(candidates) = &mut self.candidates else { return true };
        let admitted = candidates.admit(key, times(), step);
        self.counters.lapsed += candidates.take_lapsed();
        self.counters.admitted += u64::from(admitted);
        self.counters.waiting += u64::from(!admitted);
        admitted
    }

    /// Applies the gradients of `keys` (`keys.len()` strides), in the order of the keys. Unknown keys
    /// are created when they are admitted, or refused where the vocabulary is fixed; rows with a number that
    /// is not finite are dropped. All of it is counted. `occurrences` is of the keys, where admission counts
    /// them.
    pub(crate) fn push(
        &mut self,
        keys: &[FeatureKey],
        gradients: &[f32],
        occurrences: Times<'_>,
        step: &TableStep,
    ) -> Result<()> {
        let shape = self.shape.clone();
        let stride = shape.stride();
        let grows = self.narrow.is_some();
        let mut push = Push { table: self, rows: [[UNKNOWN; BLOCK]; 2] };
        in_blocks(
            &mut push,
            keys.len(),
            |push, block| {
                keys[block.clone()].iter().for_each(|&key| push.table.index.prefetch(key));
                if let Some(candidates) = &push.table.candidates {
                    keys[block].iter().for_each(|&key| candidates.prefetch(key));
                }
            },
            |push, block, half| {
                let gradients = &gradients[block.start * stride..block.end * stride];
                let rows = &mut push.rows[half];
                match grows {
                    false => {
                        push.table.resolve::<false>(keys, block, gradients, occurrences, step, rows)
                    }
                    true => {
                        push.table.resolve::<true>(keys, block, gradients, occurrences, step, rows)
                    }
                }
            },
            |push, block, half| {
                let gradients = &gradients[block.start * stride..block.end * stride];
                if push.table.narrow.is_some() {
                    let (keys, rows) = (&keys[block.clone()], &mut push.rows[half]);
                    let uses = (occurrences, block.clone());
                    push.table.push_narrow(&shape, keys, gradients, uses, rows, step);
                }
                let rows = &push.rows[half][..block.len()];
                let Table { weights, companion, changes, scratch, counters, snapshot, .. } =
                    &mut *push.table;
                if let Some(snapshot) = snapshot {
                    snapshot.save(&shape, weights, companion, &keys[block.clone()], rows);
                }
                let mut lent = weights.lend(rows, stride, scratch);
                for (segment, kernel) in shape.segments.iter().zip(&step.kernels) {
                    let shaping = Shaping { l2: segment.l2, scale: step.scale };
                    let raw = |i: usize, _row: u32| &gradients[i * stride..(i + 1) * stride];
                    apply_kernel(kernel, &mut lent, companion, rows, segment, raw, |_| shaping);
                }
                let key = |i: usize| keys[block.start + i];
                counters.saturated +=
                    weights.take_back(rows, shape.width, stride, scratch, step.rounding, key);
                if let Some(changes) = changes {
                    changes.note_pushed(&shape, companion, &keys[block.clone()], rows);
                }
                if let (Some(statistics), Some(uses)) = (&shape.spec.statistics, occurrences.uses) {
                    note_uses(&shape, statistics, companion, rows, &uses[block], step.step);
                }
                touch(&shape, companion, rows, step);
            },
        )?;
        self.grow_due()
    }

    /// Finds or makes the rows of a block and asks for their lines. `GROWS`: rows may be narrow.
    fn resolve<const GROWS: bool>(
        &mut self,
        keys: &[FeatureKey],
        block: Range<usize>,
        gradients: &[f32],
        occurrences: Times<'_>,
        step: &TableStep,
        rows: &mut [u32; BLOCK],
    ) -> Result<()> {
        let finite = finite_rows(gradients, self.shape.stride(), self.shape.width);
        let first = block.start;
        let keys = &keys[block];
        let mut elsewhere = 0u32;
        for (i, (row, &key)) in rows.iter_mut().zip(keys).enumerate() {
            *row = DROPPED;
            if finite & (1 << i) == 0 {
                self.counters.nonfinite += 1;
                continue;
            }
            match self.index.get_at_home(key) {
                AtHome::Row(number) => *row = self.found::<GROWS>(number),
                // Made, or looked for further on, when the others are on their way.
                AtHome::Absent | AtHome::Beyond => elsewhere |= 1 << i,
            }
        }
        while elsewhere != 0 {
            let i = elsewhere.trailing_zeros() as usize;
            elsewhere &= elsewhere - 1;
            let key = keys[i];
            let number = match self.index.get(key) {
                Some(number) => number,
                None if self.dense.is_some() => {
                    self.counters.refused += 1;
                    continue;
                }
                None if !step.room.has(occurrences.first + first + i)
                    && self.crowded_out(key, || occurrences.of(first + i), step.step) =>
                {
                    continue;
                }
                None if !self.admit(key, || occurrences.of(first + i), step.step) => continue,
                None => self.create(key, step.epoch)?,
            };
            rows[i] = self.found::<GROWS>(number);
        }
        Ok(())
    }

    /// Counts a row that a gradient goes to, and asks for its lines.
    #[inline(always)]
    fn found<const GROWS: bool>(&mut self, row: u32) -> u32 {
        self.counters.pushed += 1;
        if GROWS {
            self.prefetch_either(row);
        } else {
            self.weights.prefetch_mut(row);
            self.companion.prefetch_mut(row);
        }
        row
    }
}

/// How often each key of a run occurs in the batch, and what it was used for there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times<'a> {
    /// Position of the run's first key in the plan.
    pub(crate) first: usize,
    /// One offset a key and one more; may be empty where nobody asks.
    pub(crate) offsets: &'a [u32],
    /// One a key, where the table keeps statistics of use.
    pub(crate) uses: Option<&'a [Use]>,
}

impl Times<'_> {
    #[inline(always)]
    pub(super) fn of(self, key: usize) -> u32 {
        self.offsets[key + 1] - self.offsets[key]
    }
}

/// One bit a row of `values`, set where all of the first `width` floats are finite. At most 64 rows; those behind the
/// last one are set or not.
pub(super) fn finite_rows(values: &[f32], stride: usize, width: usize) -> u64 {
    // Nearly always all of them are, padding included, which one look over the block tells.
    if all_are_finite(values) {
        return u64::MAX;
    }
    let rows = values.chunks_exact(stride).enumerate();
    rows.map(|(i, row)| u64::from(row[..width].iter().all(|x| x.is_finite())) << i).sum()
}

fn all_are_finite(values: &[f32]) -> bool {
    vectorised(
        #[inline(always)]
        || {
            // The largest bit pattern tells: those of infinities and NaNs are above all others.
            let mut largest = 0;
            for x in values {
                largest = (x.to_bits() & (u32::MAX >> 1)).max(largest);
            }
            largest < f32::INFINITY.to_bits()
        },
    )
}

/// Runs one segment's rule over some rows. `raw(i, row)` is the gradient row of `rows[i]`, and
/// `shaping(i)` its scale and regulariser.
#[inline(always)]
pub(super) fn apply_kernel<'g>(
    kernel: &Kernel,
    weights: &mut Lent<'_>,
    companion: &mut Slab<u32>,
    rows: &[u32],
    segment: &SegmentShape,
    raw: impl Fn(usize, u32) -> &'g [f32],
    shaping: impl Fn(usize) -> Shaping,
) {
    match weights {
        Lent::InPlace(weights) => with_kernel!(
            kernel, k => apply_rows(k, *weights, companion, rows, segment, raw, shaping)
        ),
        Lent::Widened(weights) => with_kernel!(
            kernel, k => apply_rows(k, weights, companion, rows, segment, raw, shaping)
        ),
    }
}

#[inline(always)]
fn apply_rows<'g, K: RowKernel>(
    kernel: &K,
    weights: &mut impl FloatRows,
    companion: &mut Slab<u32>,
    rows: &[u32],
    segment: &SegmentShape,
    raw: impl Fn(usize, u32) -> &'g [f32],
    shaping: impl Fn(usize) -> Shaping,
) {
    if let Some(kernel) = kernel.rowwise() {
        return apply_rowwise(kernel, weights, companion, rows, segment, raw, shaping);
    }
    vectorised(
        #[inline(always)]
        || {
            for (i, &row) in rows.iter().enumerate() {
                if row == DROPPED {
                    continue;
                }
                let weights = &mut weights.row_mut(i, row)[segment.weights.clone()];
                let state = floats_mut(&mut companion.row_mut(row)[segment.state.clone()]);
                kernel.row(weights, state, &raw(i, row)[segment.weights.clone()], shaping(i));
            }
        },
    );
}

/// [`apply_rows`] of a rule whose step sizes are computed for a block of rows at a time.
#[inline(always)]
fn apply_rowwise<'g>(
    kernel: &RowwiseAdagradKernel,
    weights: &mut impl FloatRows,
    companion: &mut Slab<u32>,
    rows: &[u32],
    segment: &SegmentShape,
    raw: impl Fn(usize, u32) -> &'g [f32],
    shaping: impl Fn(usize) -> Shaping,
) {
    let (floats, state) = (segment.weights.clone(), segment.state.start);
    vectorised(
        #[inline(always)]
        || {
            for first in (0..rows.len()).step_by(BLOCK) {
                let block = &rows[first..rows.len().min(first + BLOCK)];
                let (mut sums, mut squares) = ([0.0; BLOCK], [0.0; BLOCK]);
                for (at, &row) in block.iter().enumerate().filter(|(_, row)| **row != DROPPED) {
                    let i = first + at;
                    let weights = &weights.row_mut(i, row)[floats.clone()];
                    sums[at] = f32::from_bits(companion.row(row)[state]);
                    squares[at] = kernel.squares(weights, &raw(i, row)[floats.clone()], shaping(i));
                }
                let steps = kernel.steps(&mut sums, squares, floats.len());
                for (at, &row) in block.iter().enumerate().filter(|(_, row)| **row != DROPPED) {
                    let i = first + at;
                    companion.row_mut(row)[state] = sums[at].to_bits();
                    let weights = &mut weights.row_mut(i, row)[floats.clone()];
                    kernel.advance(weights, &raw(i, row)[floats.clone()], steps[at], shaping(i));
                }
            }
        },
    );
}

/// Notes a push in the metadata of the rows.
pub(super) fn touch(shape: &TableShape, companion: &mut Slab<u32>, rows: &[u32], step: &TableStep) {
    for &row in rows.iter().filter(|&&row| row != DROPPED) {
        let companion = companion.row_mut(row);
        let count = shape.meta(companion).count.saturating_add(1);
        let meta = Meta { count, last_step: step.step, dirty_epoch: step.epoch };
        shape.set_meta(companion, meta);
    }
}
