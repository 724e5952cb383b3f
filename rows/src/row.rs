//! The form in which a row is stored: its weights, its optimizer state and its metadata.

use std::borrow::Cow;
use std::ops::Range;

use zillion_device::simd::vectorised;
use zillion_feature::Use;

use crate::dtype::{Bf16, Dtype, F16, Half, widen};

/// The metadata of a row, which its companion row stores: its count, its last step and its dirty
/// epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The number of pushes of the row. The number stops growing at the largest `u32`.
    pub count: u32,
    /// The step of the last push; 0 if the row was never pushed.
    pub last_step: u32,
    /// The dirty epoch in which the row changed last. A delta holds the rows of later epochs.
    pub dirty_epoch: u32,
}

/// The weights, optimizer state, metadata and statistics of one row, as a checkpoint keeps them.
#[derive(Clone, Copy, Debug)]
pub struct StoredRow<'a> {
    /// The weights of all segments.
    pub weights: RowWeights<'a>,
    /// The optimizer state of all segments.
    pub state: &'a [f32],
    /// The count, the last step and the dirty epoch of the row.
    pub meta: Meta,
    /// The shows and clicks of the row; zero if the table keeps no statistics of use.
    pub used: Use,
    /// Whether the row is narrow.
    pub is_narrow: bool,
}

/// The weights of one row in the form in which memory or a file holds them, without padding.
#[derive(Clone, Copy, Debug)]
pub enum RowWeights<'a> {
    /// The weights as f32 numbers.
    F32(&'a [f32]),
    /// The weights as bits of f16 numbers.
    F16(&'a [u16]),
    /// The weights as bits of bf16 numbers: the upper halves of f32 numbers.
    Bf16(&'a [u16]),
}

impl<'a> RowWeights<'a> {
    /// Interprets the words of a row in memory as weights of type `dtype`.
    pub fn of_words(words: &'a [u32], dtype: Dtype, width: usize) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(&bytemuck::cast_slice(words)[..width]),
            Dtype::F16 => Self::F16(&bytemuck::cast_slice(words)[..width]),
            Dtype::Bf16 => Self::Bf16(&bytemuck::cast_slice(words)[..width]),
        }
    }

    /// Returns the number of weights.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(w) => w.len(),
            Self::F16(w) | Self::Bf16(w) => w.len(),
        }
    }

    /// Returns whether the row has no weights.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the weights in a range of positions.
    pub fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(w) => Self::F32(&w[range]),
            Self::F16(w) => Self::F16(&w[range]),
            Self::Bf16(w) => Self::Bf16(&w[range]),
        }
    }

    /// Writes the weights to `out` as f32 numbers.
    pub fn widen(self, out: &mut [f32]) {
        match self {
            Self::F32(w) => out.copy_from_slice(w),
            Self::F16(w) => widen_row::<F16>(w, out),
            Self::Bf16(w) => widen_row::<Bf16>(w, out),
        }
    }

    /// Returns the weights as f32 numbers. Weights of type f32 are borrowed; weights of another
    /// type are converted into a copy.
    pub fn to_floats(self) -> Cow<'a, [f32]> {
        if let Self::F32(w) = self {
            return Cow::Borrowed(w);
        }
        let mut floats = vec![0.0; self.len()];
        self.widen(&mut floats);
        Cow::Owned(floats)
    }
}

/// Converts a row of 16-bit numbers to f32.
pub fn widen_row<H: Half>(row: &[u16], out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || widen::<H>(row, out),
    );
}

/// Reinterprets words of optimizer state as floats for writing. Memory stores the state as integer
/// words.
#[inline(always)]
pub fn floats_mut(words: &mut [u32]) -> &mut [f32] {
    bytemuck::cast_slice_mut(words)
}

/// Reinterprets words of optimizer state as floats.
#[inline(always)]
pub fn floats(words: &[u32]) -> &[f32] {
    bytemuck::cast_slice(words)
}
