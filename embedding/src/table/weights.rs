//! The weights of one shard's part of a table, in the table's type.
//!
//! What is in memory is matched here, once a block of rows. In f32 a rule moves rows where they lie. Rows of
//! 16 bits are widened into a scratch of a block, moved there, and written back by stochastic rounding; the
//! scratch stays in the nearest cache, so that what such a table saves in memory it saves in time as well.
//!
//! # Invariants
//! * The padding of a row is zeros, in every type.
//! * A row that is not moved keeps its bits: rounding leaves what has its type already.

use std::borrow::Cow;
use std::ops::Range;

use zillion_device::simd::vectorised;
use zillion_device::slab::{Slab, SlabBytes};
use zillion_feature::FeatureKey;

use super::{DROPPED, UNKNOWN};
use crate::dtype::{Bf16, Dtype, F16, Half, StepRounding, nearest, stochastic, widen};
use crate::error::Result;
use crate::narrow::NarrowShape;
use crate::shape::TableShape;

/// Rows by number.
#[derive(Debug)]
pub(super) enum WeightSlab {
    F32(Slab<f32>),
    F16(Slab<u16>),
    Bf16(Slab<u16>),
}

/// One row as it lies in memory or in a file, without padding.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowWeights<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Bf16(&'a [u16]),
}

/// Rows that a rule may move.
pub(super) enum Lent<'a> {
    /// Where they lie, by number.
    InPlace(&'a mut Slab<f32>),
    /// Widened, one after another.
    Widened(Widened<'a>),
}

/// A block's rows in f32.
pub(super) struct Widened<'a> {
    floats: &'a mut [f32],
    stride: usize,
}

/// Rows of f32 that a kernel goes over: by their place in the block, or by their number.
pub(super) trait FloatRows {
    fn row_mut(&mut self, place: usize, row: u32) -> &mut [f32];
}

impl FloatRows for Slab<f32> {
    #[inline(always)]
    fn row_mut(&mut self, _place: usize, row: u32) -> &mut [f32] {
        Slab::row_mut(self, row)
    }
}

impl FloatRows for Widened<'_> {
    #[inline(always)]
    fn row_mut(&mut self, place: usize, _row: u32) -> &mut [f32] {
        &mut self.floats[place * self.stride..(place + 1) * self.stride]
    }
}

/// The same expression for whichever slab there is.
macro_rules! each {
    ($weights:expr, $slab:ident => $then:expr) => {
        match $weights {
            WeightSlab::F32($slab) => $then,
            WeightSlab::F16($slab) | WeightSlab::Bf16($slab) => $then,
        }
    };
}

impl WeightSlab {
    pub(super) fn new(shape: &TableShape) -> Result<Self> {
        let stride = shape.spec.weight_bytes() / shape.spec.dtype.bytes();
        Ok(match shape.spec.dtype {
            Dtype::F32 => Self::F32(Slab::new(stride)?),
            Dtype::F16 => Self::F16(Slab::new(stride)?),
            Dtype::Bf16 => Self::Bf16(Slab::new(stride)?),
        })
    }

    pub(super) fn bytes(&self) -> SlabBytes {
        each!(self, slab => slab.bytes())
    }

    /// Live rows.
    pub(super) fn len(&self) -> usize {
        each!(self, slab => slab.len())
    }

    pub(super) fn alloc(&mut self) -> Result<u32> {
        Ok(each!(self, slab => slab.alloc())?)
    }

    pub(super) fn free(&mut self, row: u32) {
        each!(self, slab => slab.free(row));
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, row: u32) {
        each!(self, slab => slab.prefetch(row));
    }

    #[inline(always)]
    pub(super) fn prefetch_mut(&self, row: u32) {
        each!(self, slab => slab.prefetch_mut(row));
    }

    /// Writes a row that [`TableShape::fill_initial`] makes, or what else has the table's type.
    pub(super) fn fill(&mut self, row: u32, scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
        match self {
            Self::F32(slab) => fill(slab.row_mut(row)),
            Self::F16(slab) => fill_half::<F16>(slab.row_mut(row), scratch, fill),
            Self::Bf16(slab) => fill_half::<Bf16>(slab.row_mut(row), scratch, fill),
        }
    }

    /// Writes a row as a file has it, bit by bit.
    pub(super) fn restore(&mut self, row: u32, stored: RowWeights<'_>) {
        match (self, stored) {
            (Self::F32(slab), RowWeights::F32(w)) => {
                slab.row_mut(row)[..w.len()].copy_from_slice(w)
            }
            (Self::F16(slab), RowWeights::F16(w)) | (Self::Bf16(slab), RowWeights::Bf16(w)) => {
                slab.row_mut(row)[..w.len()].copy_from_slice(w);
            }
            // A part of another type was refused when it was opened.
            (weights, stored) => weights.fill(row, &mut Vec::new(), |out| {
                out.fill(0.0);
                stored.widen(&mut out[..stored.len()]);
            }),
        }
    }

    /// The words of a row, padding included.
    #[inline(always)]
    pub(super) fn words(&self, row: u32) -> &[u32] {
        match self {
            Self::F32(slab) => bytemuck::cast_slice(slab.row(row)),
            Self::F16(slab) | Self::Bf16(slab) => bytemuck::cast_slice(slab.row(row)),
        }
    }

    /// The same to write.
    pub(super) fn words_mut(&mut self, row: u32) -> &mut [u32] {
        match self {
            Self::F32(slab) => bytemuck::cast_slice_mut(slab.row_mut(row)),
            Self::F16(slab) | Self::Bf16(slab) => bytemuck::cast_slice_mut(slab.row_mut(row)),
        }
    }

    /// The row without padding.
    pub(super) fn stored(&self, row: u32, width: usize) -> RowWeights<'_> {
        match self {
            Self::F32(slab) => RowWeights::F32(&slab.row(row)[..width]),
            Self::F16(slab) => RowWeights::F16(&slab.row(row)[..width]),
            Self::Bf16(slab) => RowWeights::Bf16(&slab.row(row)[..width]),
        }
    }

    /// Writes the weights of a narrow row where they belong in a full one, bit by bit.
    pub(super) fn spread(&mut self, row: u32, narrow: RowWeights<'_>, shape: &NarrowShape) {
        match (self, narrow) {
            (Self::F32(slab), RowWeights::F32(own)) => shape.spread(own, slab.row_mut(row)),
            (Self::F16(slab), RowWeights::F16(own)) | (Self::Bf16(slab), RowWeights::Bf16(own)) => {
                shape.spread(own, slab.row_mut(row));
            }
            _ => unreachable!("a table has one type of weights"),
        }
    }

    /// The row in f32: where it lies, or widened.
    pub(super) fn floats<'a>(&'a self, row: u32, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Self::F32(slab) => slab.row(row),
            Self::F16(slab) => widened::<F16>(slab.row(row), scratch),
            Self::Bf16(slab) => widened::<Bf16>(slab.row(row), scratch),
        }
    }

    /// Copies one row over another.
    pub(super) fn copy_row(&mut self, from: u32, to: u32) {
        each!(self, slab => {
            let row = slab.row(from).to_vec();
            slab.row_mut(to).copy_from_slice(&row);
        });
    }

    /// Lends the rows of a block to its rules; `scratch` is theirs until [`WeightSlab::take_back`]. Rows that
    /// are dropped are not looked at.
    #[inline(always)]
    pub(super) fn lend<'a>(
        &'a mut self,
        rows: &[u32],
        stride: usize,
        scratch: &'a mut Vec<f32>,
    ) -> Lent<'a> {
        match self {
            Self::F32(slab) => Lent::InPlace(slab),
            Self::F16(slab) => Lent::Widened(widen_block::<F16>(slab, rows, stride, scratch)),
            Self::Bf16(slab) => Lent::Widened(widen_block::<Bf16>(slab, rows, stride, scratch)),
        }
    }

    /// Writes the rows of a block back where they were lent widened. `key` says whose row is at a place.
    /// Returns how many weights were beyond the largest number of the type.
    #[inline(always)]
    pub(super) fn take_back(
        &mut self,
        rows: &[u32],
        width: usize,
        stride: usize,
        scratch: &[f32],
        rounding: StepRounding,
        key: impl Fn(usize) -> FeatureKey,
    ) -> u64 {
        match self {
            Self::F32(_) => 0,
            Self::F16(s) => narrow::<F16>(s, rows, width, stride, scratch, rounding, key),
            Self::Bf16(s) => narrow::<Bf16>(s, rows, width, stride, scratch, rounding, key),
        }
    }
}

impl<'a> RowWeights<'a> {
    /// What [`WeightSlab::words`] of a row mean.
    pub(crate) fn of_words(words: &'a [u32], dtype: Dtype, width: usize) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(&bytemuck::cast_slice(words)[..width]),
            Dtype::F16 => Self::F16(&bytemuck::cast_slice(words)[..width]),
            Dtype::Bf16 => Self::Bf16(&bytemuck::cast_slice(words)[..width]),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(w) => w.len(),
            Self::F16(w) | Self::Bf16(w) => w.len(),
        }
    }

    /// Some of the weights.
    pub(crate) fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(w) => Self::F32(&w[range]),
            Self::F16(w) => Self::F16(&w[range]),
            Self::Bf16(w) => Self::Bf16(&w[range]),
        }
    }

    /// Writes the same numbers in f32.
    pub(crate) fn widen(self, out: &mut [f32]) {
        match self {
            Self::F32(w) => out.copy_from_slice(w),
            Self::F16(w) => widen_row::<F16>(w, out),
            Self::Bf16(w) => widen_row::<Bf16>(w, out),
        }
    }

    /// The same numbers in f32, copied where they are not.
    pub(crate) fn to_floats(self) -> Cow<'a, [f32]> {
        if let Self::F32(w) = self {
            return Cow::Borrowed(w);
        }
        let mut floats = vec![0.0; self.len()];
        self.widen(&mut floats);
        Cow::Owned(floats)
    }
}

/// Copies the rows of a block to a caller's rows of `stride` floats; those that are not known are left out.
pub(super) fn copy_halves<H: Half>(slab: &Slab<u16>, rows: &[u32], out: &mut [f32], stride: usize) {
    vectorised(
        #[inline(always)]
        || {
            for (target, &row) in out.chunks_exact_mut(stride).zip(rows) {
                if row != UNKNOWN {
                    widen::<H>(slab.row(row), target);
                }
            }
        },
    );
}

fn widen_row<H: Half>(row: &[u16], out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || widen::<H>(row, out),
    );
}

fn widened<'a, H: Half>(row: &[u16], scratch: &'a mut Vec<f32>) -> &'a [f32] {
    scratch.resize(row.len(), 0.0);
    widen_row::<H>(row, scratch);
    scratch
}

fn fill_half<H: Half>(row: &mut [u16], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
    // The padding to 16 bytes is longer where weights are shorter.
    if scratch.len() < row.len() {
        scratch.resize(row.len(), 0.0);
    }
    let scratch = &mut scratch[..row.len()];
    fill(scratch);
    vectorised(
        #[inline(always)]
        || nearest::<H>(scratch, row),
    );
}

#[inline(always)]
fn widen_block<'a, H: Half>(
    slab: &Slab<u16>,
    rows: &[u32],
    stride: usize,
    scratch: &'a mut Vec<f32>,
) -> Widened<'a> {
    if scratch.len() < rows.len() * stride {
        scratch.resize(rows.len() * stride, 0.0);
    }
    vectorised(
        #[inline(always)]
        || {
            for (target, &row) in scratch.chunks_exact_mut(stride).zip(rows) {
                if row != DROPPED {
                    widen::<H>(slab.row(row), target);
                }
            }
        },
    );
    Widened { floats: scratch, stride }
}

#[inline(always)]
fn narrow<H: Half>(
    slab: &mut Slab<u16>,
    rows: &[u32],
    width: usize,
    stride: usize,
    scratch: &[f32],
    rounding: StepRounding,
    key: impl Fn(usize) -> FeatureKey,
) -> u64 {
    vectorised(
        #[inline(always)]
        || {
            let mut beyond = 0;
            for (i, (floats, &row)) in scratch.chunks_exact(stride).zip(rows).enumerate() {
                if row != DROPPED {
                    let rounding = rounding.row(key(i).0);
                    let row = &mut slab.row_mut(row)[..width];
                    beyond += u64::from(stochastic::<H>(&floats[..width], rounding, row));
                }
            }
            beyond
        },
    )
}
