//! One row as it is stored: its weights, its optimizer state and its metadata.

use std::borrow::Cow;
use std::ops::Range;

use zillion_device::simd::vectorised;
use zillion_feature::Use;

use crate::dtype::{Bf16, Dtype, F16, Half, widen};

/// The metadata words of a companion row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The number of pushes of the row; it stops at the largest number of its type.
    pub count: u32,
    /// The step of the last push, 0 for none.
    pub last_step: u32,
    /// The epoch of the last change, by which deltas are made.
    pub dirty_epoch: u32,
}

/// One row as a checkpoint keeps it.
#[derive(Clone, Copy, Debug)]
pub struct StoredRow<'a> {
    /// The weights of all segments.
    pub weights: RowWeights<'a>,
    /// The optimizer state of all segments.
    pub state: &'a [f32],
    /// The count of pushes, the last step and the epoch of the last change.
    pub meta: Meta,
    /// The shows and clicks of the row; zero where the table keeps no statistics of use.
    pub used: Use,
    /// Whether weights and state are those of a narrow row.
    pub is_narrow: bool,
}

/// The weights of one row as they lie in memory or in a file, without padding.
#[derive(Clone, Copy, Debug)]
pub enum RowWeights<'a> {
    /// Numbers of four bytes.
    F32(&'a [f32]),
    /// The bits of numbers in half precision.
    F16(&'a [u16]),
    /// The upper halves of the bits of numbers of four bytes.
    Bf16(&'a [u16]),
}

impl<'a> RowWeights<'a> {
    /// Interprets the words of a row in memory as weights of this type.
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

    /// Returns whether there is no weight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a range of the weights.
    pub fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(w) => Self::F32(&w[range]),
            Self::F16(w) => Self::F16(&w[range]),
            Self::Bf16(w) => Self::Bf16(&w[range]),
        }
    }

    /// Writes the weights in f32.
    pub fn widen(self, out: &mut [f32]) {
        match self {
            Self::F32(w) => out.copy_from_slice(w),
            Self::F16(w) => widen_row::<F16>(w, out),
            Self::Bf16(w) => widen_row::<Bf16>(w, out),
        }
    }

    /// Returns the weights in f32, copied only where they have another type.
    pub fn to_floats(self) -> Cow<'a, [f32]> {
        if let Self::F32(w) = self {
            return Cow::Borrowed(w);
        }
        let mut floats = vec![0.0; self.len()];
        self.widen(&mut floats);
        Cow::Owned(floats)
    }
}

/// Writes the numbers of a row of 16 bits in f32.
pub fn widen_row<H: Half>(row: &[u16], out: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || widen::<H>(row, out),
    );
}

/// Reads words of optimizer state as floats, in place: state lies among words that are integers.
#[inline(always)]
pub fn floats_mut(words: &mut [u32]) -> &mut [f32] {
    bytemuck::cast_slice_mut(words)
}

/// Reads words of optimizer state as floats, for reading only.
#[inline(always)]
pub fn floats(words: &[u32]) -> &[f32] {
    bytemuck::cast_slice(words)
}
