//! The weights of one shard's part of a table, stored in the number type of the table.
//!
//! Only this module knows the type of the weights in memory. Weights in f32 are changed in place.
//! Weights of 16 bits are widened into a scratch row, changed there, and written back with
//! stochastic rounding. The scratch row stays in the nearest cache, so a table with 16-bit weights
//! saves time as well as memory.
//!
//! # Invariants
//! * The padding of a row is zero in every type.
//! * A row whose values do not change keeps its bits, because rounding does not change numbers of
//!   the type.

use zillion_device::simd::vectorised;
use zillion_device::slab::{Slab, SlabBytes};
use zillion_rows::row::{RowWeights, widen_row};

use crate::error::Result;
use crate::narrow::shape::NarrowShape;
use crate::shape::TableShape;
use zillion_rows::dtype::{Bf16, Dtype, F16, Half, RowRounding, nearest, stochastic, widen};

/// The slab of the weights of all rows, by row number.
#[derive(Debug)]
pub(crate) enum WeightSlab {
    F32(Slab<f32>),
    F16(Slab<u16>),
    Bf16(Slab<u16>),
}

/// Evaluates one expression for a slab of any number type.
macro_rules! each {
    ($weights:expr, $slab:ident => $then:expr) => {
        match $weights {
            WeightSlab::F32($slab) => $then,
            WeightSlab::F16($slab) | WeightSlab::Bf16($slab) => $then,
        }
    };
}

impl WeightSlab {
    pub(crate) fn new(shape: &TableShape, shard: usize) -> Result<Self> {
        let stride = shape.spec.weight_bytes() / shape.spec.dtype.bytes();
        Ok(match shape.spec.dtype {
            Dtype::F32 => Self::F32(Slab::new(stride)?.staggered(shard)),
            Dtype::F16 => Self::F16(Slab::new(stride)?.staggered(shard)),
            Dtype::Bf16 => Self::Bf16(Slab::new(stride)?.staggered(shard)),
        })
    }

    pub(crate) fn bytes(&self) -> SlabBytes {
        each!(self, slab => slab.bytes())
    }

    /// Returns the number of rows in use.
    pub(crate) fn len(&self) -> usize {
        each!(self, slab => slab.len())
    }

    pub(crate) fn alloc(&mut self) -> Result<u32> {
        Ok(each!(self, slab => slab.alloc())?)
    }

    pub(crate) fn free(&mut self, row: u32) {
        each!(self, slab => slab.free(row));
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, row: u32) {
        each!(self, slab => slab.prefetch(row));
    }

    #[inline(always)]
    pub(crate) fn prefetch_mut(&self, row: u32) {
        each!(self, slab => slab.prefetch_mut(row));
    }

    /// Writes a row with the numbers that `fill` computes (for example
    /// [`TableShape::fill_initial`]). The number type of the table must be able to hold these
    /// numbers.
    pub(crate) fn fill(&mut self, row: u32, scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
        match self {
            Self::F32(slab) => fill(slab.row_mut(row)),
            Self::F16(slab) => fill_half::<F16>(slab.row_mut(row), scratch, fill),
            Self::Bf16(slab) => fill_half::<Bf16>(slab.row_mut(row), scratch, fill),
        }
    }

    /// Writes the weights of a row from a file, without changing a bit.
    pub(crate) fn restore(&mut self, row: u32, stored: RowWeights<'_>) {
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

    /// Returns the words of a row, including the padding.
    #[inline(always)]
    pub(crate) fn words(&self, row: u32) -> &[u32] {
        match self {
            Self::F32(slab) => bytemuck::cast_slice(slab.row(row)),
            Self::F16(slab) | Self::Bf16(slab) => bytemuck::cast_slice(slab.row(row)),
        }
    }

    /// Returns the words of a row for writing, including the padding.
    pub(crate) fn words_mut(&mut self, row: u32) -> &mut [u32] {
        match self {
            Self::F32(slab) => bytemuck::cast_slice_mut(slab.row_mut(row)),
            Self::F16(slab) | Self::Bf16(slab) => bytemuck::cast_slice_mut(slab.row_mut(row)),
        }
    }

    /// Returns the weights of a row, without padding.
    pub(crate) fn stored(&self, row: u32, width: usize) -> RowWeights<'_> {
        match self {
            Self::F32(slab) => RowWeights::F32(&slab.row(row)[..width]),
            Self::F16(slab) => RowWeights::F16(&slab.row(row)[..width]),
            Self::Bf16(slab) => RowWeights::Bf16(&slab.row(row)[..width]),
        }
    }

    /// Copies the weights of a narrow row to their places in a full row, without changing a bit.
    pub(crate) fn spread(&mut self, row: u32, narrow: RowWeights<'_>, shape: &NarrowShape) {
        match (self, narrow) {
            (Self::F32(slab), RowWeights::F32(own)) => shape.spread(own, slab.row_mut(row)),
            (Self::F16(slab), RowWeights::F16(own)) | (Self::Bf16(slab), RowWeights::Bf16(own)) => {
                shape.spread(own, slab.row_mut(row));
            }
            _ => unreachable!("a table has one type of weights"),
        }
    }

    /// Returns the weights of a row in f32: the stored row itself if it is f32, else a widened copy
    /// in `scratch`.
    pub(crate) fn floats<'a>(&'a self, row: u32, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Self::F32(slab) => slab.row(row),
            Self::F16(slab) => widened::<F16>(slab.row(row), scratch),
            Self::Bf16(slab) => widened::<Bf16>(slab.row(row), scratch),
        }
    }

    /// Copies one row over another.
    pub(crate) fn copy_row(&mut self, from: u32, to: u32) {
        each!(self, slab => {
            let row = slab.row(from).to_vec();
            slab.row_mut(to).copy_from_slice(&row);
        });
    }

    /// Changes the `width` weights of a row with a rule. Weights in f32 are changed in place. Other
    /// weights are widened, changed, and rounded stochastically to the type of the table. Returns
    /// the number of weights that were beyond the largest number of the type. The function must be
    /// called from vectorised code.
    #[inline(always)]
    pub(crate) fn change(
        &mut self,
        row: u32,
        scratch: &mut Vec<f32>,
        width: usize,
        rounding: impl FnOnce() -> RowRounding,
        rule: impl FnOnce(&mut [f32]),
    ) -> u64 {
        match self {
            Self::F32(slab) => {
                rule(slab.row_mut(row));
                0
            }
            Self::F16(s) => change::<F16>(s.row_mut(row), scratch, width, rounding(), rule),
            Self::Bf16(s) => change::<Bf16>(s.row_mut(row), scratch, width, rounding(), rule),
        }
    }
}

fn widened<'a, H: Half>(row: &[u16], scratch: &'a mut Vec<f32>) -> &'a [f32] {
    scratch.resize(row.len(), 0.0);
    widen_row::<H>(row, scratch);
    scratch
}

fn fill_half<H: Half>(row: &mut [u16], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
    // Rows of shorter weights have more floats of padding, because they are padded to 16 bytes.
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
fn change<H: Half>(
    row: &mut [u16],
    scratch: &mut Vec<f32>,
    width: usize,
    rounding: RowRounding,
    rule: impl FnOnce(&mut [f32]),
) -> u64 {
    if scratch.len() < row.len() {
        scratch.resize(row.len(), 0.0);
    }
    let floats = &mut scratch[..row.len()];
    widen::<H>(row, floats);
    rule(floats);
    u64::from(stochastic::<H>(&floats[..width], rounding, &mut row[..width]))
}
