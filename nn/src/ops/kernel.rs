//! The types and loops of kernels: strided rows, tiles, and loops over elements.

use std::ops::Range;

use super::list_column::ListColumn;
use super::packed_weight::Packed;
use crate::inputs::Inputs;

/// Runs a block inside a function compiled for the widest registers of the machine.
macro_rules! simd {
    ($body:block) => {
        zillion_device::simd::vectorised(
            #[inline(always)]
            || $body,
        )
    };
}
pub(crate) use simd;

/// Strided rows that a kernel reads. If a single row is broadcast, the stride is 0, so every index
/// gives the same row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) cols: usize,
}

/// Strided rows that a kernel writes.
#[derive(Debug)]
pub(crate) struct ViewMut<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) stride: usize,
    pub(crate) cols: usize,
}

impl<'a> View<'a> {
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.stride..][..self.cols]
    }

    /// Returns the first element of row `i`. In an `[r, 1]` matrix, this is the value of the row.
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> f32 {
        self.data[i * self.stride]
    }
}

impl ViewMut<'_> {
    #[inline(always)]
    pub(crate) fn row(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.stride..][..self.cols]
    }
}

/// The seed of the random numbers of one training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepSeed {
    /// The seed of the job.
    pub seed: u64,
    /// The number of the step.
    pub step: u64,
}

/// The rows that a kernel works on: rows of the batch, the values of their lists in one column, or
/// all rows of a constant matrix.
#[derive(Clone, Debug)]
pub(crate) struct Tile<'a> {
    pub(crate) inputs: &'a Inputs<'a>,
    pub(crate) lists: &'a [ListColumn],
    /// The packed weight of a product; `None` if the weight is not packed.
    pub(crate) packed: Option<Packed<'a>>,
    /// The rows of the batch in the tile. Some kernels work on rows and on the values of their
    /// lists, so they need both ranges.
    pub(crate) batch: Range<usize>,
    /// The index in the batch of the tile's first row or, for values, the index in the column of
    /// the tile's first value.
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
    /// The number of rows of the whole batch or, for values, the number of values of the whole
    /// column.
    pub(crate) total_rows: usize,
    pub(crate) seed: StepSeed,
}

/// Computes `out[i] = f(a[i])` over rows.
#[inline(always)]
pub(crate) fn map1(rows: usize, a: View<'_>, out: &mut ViewMut<'_>, f: impl Fn(f32) -> f32) {
    #[inline(always)]
    fn line(a: &[f32], out: &mut [f32], f: &impl Fn(f32) -> f32) {
        for (o, &a) in out.iter_mut().zip(a) {
            *o = f(a);
        }
    }
    if a.stride == a.cols && out.stride == out.cols && a.cols == out.cols {
        let n = rows * a.cols;
        line(&a.data[..n], &mut out.data[..n], &f);
    } else {
        for i in 0..rows {
            line(a.row(i), out.row(i), &f);
        }
    }
}

/// Computes `out[i] = f(a[i], b[i])` over rows. If `b` has one column, the column is broadcast.
#[inline(always)]
pub(crate) fn map2(
    rows: usize,
    a: View<'_>,
    b: View<'_>,
    out: &mut ViewMut<'_>,
    f: impl Fn(f32, f32) -> f32,
) {
    #[inline(always)]
    fn line(a: &[f32], b: &[f32], out: &mut [f32], f: &impl Fn(f32, f32) -> f32) {
        for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *o = f(a, b);
        }
    }
    #[inline(always)]
    fn line_by(a: &[f32], b: f32, out: &mut [f32], f: &impl Fn(f32, f32) -> f32) {
        for (o, &a) in out.iter_mut().zip(a) {
            *o = f(a, b);
        }
    }
    if out.cols > 1 && b.cols == 1 && a.cols > 1 {
        for i in 0..rows {
            line_by(a.row(i), b.at(i), out.row(i), &f);
        }
    } else if out.cols > 1 && a.cols == 1 {
        // Only the arguments of the closure are exchanged, and not the operands.
        for i in 0..rows {
            let a = a.at(i);
            if b.cols == 1 {
                out.row(i).fill(f(a, b.at(i)));
            } else {
                line_by(b.row(i), a, out.row(i), &|b, a| f(a, b));
            }
        }
    } else if a.stride == a.cols && b.stride == b.cols && out.stride == out.cols {
        let n = rows * out.cols;
        line(&a.data[..n], &b.data[..n], &mut out.data[..n], &f);
    } else {
        for i in 0..rows {
            line(a.row(i), b.row(i), out.row(i), &f);
        }
    }
}

/// Computes `to += factor · from` element by element.
#[inline(always)]
pub(crate) fn add_scaled(to: &mut [f32], from: &[f32], factor: f32) {
    for (t, &f) in to.iter_mut().zip(from) {
        *t += factor * f;
    }
}

/// Computes `to += from` element by element.
#[inline(always)]
pub(crate) fn add(to: &mut [f32], from: &[f32]) {
    for (t, &f) in to.iter_mut().zip(from) {
        *t += f;
    }
}

/// Returns the sum of `f` over the pairs of elements of two rows. It is computed with sixteen
/// interleaved partial sums. This order can be vectorised and is the same on every machine.
#[inline(always)]
pub(crate) fn sum_by(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (a_blocks, a_rest) = a.as_chunks::<16>();
    let (b_blocks, b_rest) = b.as_chunks::<16>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += f(a, b);
        }
    }
    for ((lane, &a), &b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += f(a, b);
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// Returns the dot product of two rows.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    sum_by(a, b, |a, b| a * b)
}
