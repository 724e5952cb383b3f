//! Dense layers in 8-bit integers: a packed weight, rows quantised when they arrive, and their
//! product.
//!
//! # Definition
//! A weight has one scale for each column, and an input has one scale for each row. The scale is
//! the greatest magnitude divided by 127, and a value becomes the nearest integer of its quotient
//! by the scale (ties to even). With the exact sum `s` of the products of integers, an element is
//! `s * row scale * column scale`, from left to right in f32. Then come the old value, the bias and
//! the relu of the [`Epilogue`], in this order.
//!
//! Sums of integers do not depend on their order, and every later operation is one rounded f32
//! operation. So the bits are the same for all instruction sets, tiles and numbers of rows.
//!
//! * A row or column whose magnitudes are all below 2^-100 counts as zero.
//! * A row or column with a NaN or an infinity has the scale NaN, so all its results are NaN.
//!
//! Rows can also be the last columns of an input, from a column on that [`Int8Rows::quantize_from`]
//! gets. They are multiplied by the last rows of the weight, with the scales of the whole weight.
//!
//! # Layout
//! VNNI multiplies unsigned bytes by signed bytes. So an input byte is the integer plus 128, and
//! 128 times the sum of the weight's column is subtracted from each sum. Four neighbours of the
//! inner dimension stand together, for 16 columns in a cache line.

mod fake;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub use fake::{fake_quantize_columns, fake_quantize_rows};

use super::View;
use super::product::Epilogue;
use crate::simd::{Level, level, vectorised, vectorised_at};

/// The columns of a block, which is one register of sums.
const COLUMNS: usize = 16;

/// The values of the inner dimension that one instruction sums.
const DEPTH: usize = 4;

/// The offset of an input byte.
const OFFSET: i32 = 128;

/// The greatest quantised magnitude.
const GREATEST: f32 = 127.0;

/// Magnitudes below this bound count as zero, so that the inverse of a scale is a normal number.
const SMALLEST: f32 = 1.0 / (1u128 << 100) as f32;

/// The largest inner dimension, for which the exact sum fits an `i32`: 127 * 127 * 131,072 < 2^31.
pub const INT8_INNER: usize = 1 << 17;

/// The bytes of 16 columns for four neighbours of the inner dimension.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Group([i8; COLUMNS * DEPTH]);

/// The scale of some values, and the factor that turns a value into its integer.
#[derive(Clone, Copy, Debug)]
struct Scale {
    scale: f32,
    /// The factor is `None` if a value is not finite. Then all integers are zero.
    inverse: Option<f32>,
}

impl Scale {
    /// Returns the scale for the bits of a greatest magnitude.
    #[inline(always)]
    fn from_magnitude(bits: u32) -> Self {
        let magnitude = f32::from_bits(bits);
        if !magnitude.is_finite() {
            Self { scale: f32::NAN, inverse: None }
        } else if magnitude < SMALLEST {
            Self { scale: 0.0, inverse: Some(0.0) }
        } else {
            Self { scale: magnitude / GREATEST, inverse: Some(GREATEST / magnitude) }
        }
    }
}

/// Returns the bits of the magnitude of a value. Their order is the order of magnitudes, with
/// infinity and NaN above all numbers.
#[inline(always)]
fn magnitude_bits(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// Rounds a magnitude of at most 127 to the nearest integer, ties to even, in two's complement.
#[inline(always)]
fn round(value: f32) -> u8 {
    // At this magnitude, the distance of two floats is one. So the addition rounds to an integer,
    // and the low byte of the mantissa is the integer.
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT).to_bits() as u8
}

/// A `k x n` weight of 8-bit integers with one scale for each column, in the layout of the kernels.
#[derive(Clone, Debug)]
pub struct Int8Weight {
    k: usize,
    n: usize,
    /// The number of groups of a block of columns.
    depth: usize,
    /// The groups of all blocks, block after block.
    groups: Vec<Group>,
    scales: Vec<f32>,
    /// The sum of each column, times the offset of an input byte.
    corrections: Vec<i32>,
}

impl Int8Weight {
    /// Quantises and packs a weight. Returns `None` if the weight has more than [`INT8_INNER`]
    /// rows, because its sums could then overflow.
    pub fn pack(weight: View<'_>) -> Option<Self> {
        Self::pack_by_piece(weight, &mut || ())
    }

    /// Packs a weight as [`Int8Weight::pack`] does, and calls `piece` after each 16 columns, so
    /// that the caller can pause.
    pub fn pack_by_piece(weight: View<'_>, piece: &mut dyn FnMut()) -> Option<Self> {
        let (k, n) = (weight.rows, weight.columns);
        if k > INT8_INNER {
            return None;
        }
        let (depth, blocks) = (k.div_ceil(DEPTH), n.div_ceil(COLUMNS));
        let mut groups = vec![Group([0; COLUMNS * DEPTH]); depth * blocks];
        let mut scales = vec![0.0; blocks * COLUMNS];
        let mut corrections = vec![0; blocks * COLUMNS];
        for j in 0..n {
            if j % COLUMNS == COLUMNS - 1 {
                piece();
            }
            let column = |p: usize| weight.values[p * weight.row_stride + j * weight.column_stride];
            let magnitude = (0..k).map(|p| magnitude_bits(column(p))).max().unwrap_or(0);
            let Scale { scale, inverse } = Scale::from_magnitude(magnitude);
            scales[j] = scale;
            let Some(inverse) = inverse else { continue };
            for p in 0..k {
                let quantised = round(column(p) * inverse) as i8;
                let group = &mut groups[j / COLUMNS * depth + p / DEPTH];
                group.0[j % COLUMNS * DEPTH + p % DEPTH] = quantised;
                corrections[j] += OFFSET * i32::from(quantised);
            }
        }
        Some(Self { k, n, depth, groups, scales, corrections })
    }

    /// Returns the numbers of rows and columns of the weight.
    pub fn shape(&self) -> (usize, usize) {
        (self.k, self.n)
    }

    /// Returns the bytes of memory that the weight takes.
    pub fn bytes(&self) -> usize {
        self.groups.len() * size_of::<Group>() + (self.scales.len() + self.corrections.len()) * 4
    }

    /// Returns the groups of a block of columns, from the one with the row `first` on.
    fn block(&self, block: usize, first: usize) -> &[Group] {
        &self.groups[block * self.depth..][first / DEPTH..self.depth]
    }

    /// Returns the corrections of all columns for the groups from the one with the row `first` on:
    /// the sums for a row of zeros.
    #[inline(always)]
    fn corrections_from(&self, first: usize) -> Vec<i32> {
        let mut corrections = vec![0i32; self.corrections.len()];
        for (block, sums) in corrections.as_chunks_mut::<COLUMNS>().0.iter_mut().enumerate() {
            for group in self.block(block, first) {
                for (sum, column) in sums.iter_mut().zip(group.0.as_chunks::<DEPTH>().0) {
                    *sum += OFFSET * column.iter().map(|&value| i32::from(value)).sum::<i32>();
                }
            }
        }
        corrections
    }
}

/// Quantised rows of an input. The memory is kept from one call to the next.
#[derive(Clone, Debug, Default)]
pub struct Int8Rows {
    rows: usize,
    /// The column of the whole input at which the rows begin.
    first: usize,
    columns: usize,
    /// The number of words of a row. A word has four bytes, and the first and the last one are
    /// padded.
    depth: usize,
    words: Vec<i32>,
    scales: Vec<f32>,
}

impl Int8Rows {
    /// Quantises the rows of a row-major matrix. The rows of the last call are lost.
    ///
    /// # Panics
    ///
    /// Panics if the columns of the view are not neighbours, or if a row is outside of its slice.
    pub fn quantize(&mut self, x: View<'_>) {
        self.quantize_from(0, x);
    }

    /// Quantises rows that are the columns from `first` on of an input. Their product is the one
    /// with the rows from `first` on of a weight.
    ///
    /// # Panics
    ///
    /// Panics for the reasons of [`Int8Rows::quantize`].
    pub fn quantize_from(&mut self, first: usize, x: View<'_>) {
        assert!(x.column_stride == 1 || x.columns <= 1, "quantised rows must be row-major");
        let padding = first % DEPTH;
        (self.rows, self.first, self.columns) = (x.rows, first, x.columns);
        self.depth = (padding + x.columns).div_ceil(DEPTH);
        self.words.clear();
        self.words.resize(self.rows * self.depth, 0);
        self.scales.clear();
        self.scales.resize(self.rows, 0.0);
        if self.depth == 0 {
            return;
        }
        let rows = self.words.chunks_exact_mut(self.depth).zip(&mut self.scales);
        for (row, (words, scale)) in rows.enumerate() {
            let values = &x.values[row * x.row_stride..][..x.columns];
            let (zeros, bytes) = bytemuck::cast_slice_mut(words).split_at_mut(padding);
            zeros.fill(OFFSET as u8);
            *scale = quantize_row(values, bytes);
        }
    }

    /// Returns the words of a row.
    fn row(&self, row: usize) -> &[i32] {
        &self.words[row * self.depth..][..self.depth]
    }
}

/// Quantises a row into bytes, and returns its scale.
fn quantize_row(values: &[f32], bytes: &mut [u8]) -> f32 {
    #[inline(always)]
    fn quantize(values: &[f32], bytes: &mut [u8]) -> f32 {
        let magnitude = values.iter().fold(0, |most, &value| magnitude_bits(value).max(most));
        let Scale { scale, inverse } = Scale::from_magnitude(magnitude);
        match inverse {
            Some(inverse) => {
                for (byte, value) in bytes.iter_mut().zip(values) {
                    *byte = round(value * inverse).wrapping_add(OFFSET as u8);
                }
            }
            None => bytes.fill(OFFSET as u8),
        }
        scale
    }
    vectorised(
        #[inline(always)]
        || quantize(values, bytes),
    )
}

/// Computes the product of quantised rows and a quantised weight by the definition of this module.
/// Rows of `out` are `out_row` floats apart.
///
/// An input part that was multiplied in f32 before can be in `out` already, with `accumulate` in
/// the epilogue: the product is then added to it.
///
/// # Panics
///
/// Panics if the inner dimensions differ, if the bias is too short, or if `out` is too small.
pub fn linear_int8(
    x: &Int8Rows,
    weight: &Int8Weight,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    linear_int8_at(level(), x, weight, epilogue, out, out_row);
}

/// Computes [`linear_int8`] at the lower of two levels: `wanted` and the level of this machine. It
/// is for benchmarks and for tests that compare levels.
///
/// # Panics
///
/// Panics for the reasons of [`linear_int8`].
pub fn linear_int8_at(
    wanted: Level,
    x: &Int8Rows,
    weight: &Int8Weight,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    assert_eq!(x.first + x.columns, weight.k, "inner dimensions differ");
    assert!(epilogue.bias.is_none_or(|bias| bias.len() >= weight.n), "too short a bias");
    if x.rows == 0 || weight.n == 0 {
        return;
    }
    assert!(x.rows == 1 || out_row >= weight.n, "rows of the output overlap");
    let own;
    let corrections = match x.first / DEPTH {
        0 => &weight.corrections,
        _ => {
            own = vectorised_at(
                wanted,
                #[inline(always)]
                || weight.corrections_from(x.first),
            );
            &own
        }
    };
    let weight = Weight { weight, first: x.first, corrections };
    #[cfg(target_arch = "x86_64")]
    if wanted == Level::Avx512 && vnni::is_available() {
        return vnni::linear(x, weight, epilogue, out, out_row);
    }
    vectorised_at(
        wanted,
        #[inline(always)]
        || plain(x, weight, epilogue, out, out_row),
    );
}

/// The rows of a weight from `first` on, with the corrections for them.
#[derive(Clone, Copy)]
struct Weight<'a> {
    weight: &'a Int8Weight,
    first: usize,
    corrections: &'a [i32],
}

impl<'a> Weight<'a> {
    fn columns(&self) -> usize {
        self.weight.n
    }

    fn block(&self, block: usize) -> &'a [Group] {
        self.weight.block(block, self.first)
    }
}

/// Computes the product with plain loops, which are the scalar reference and the version for
/// machines without VNNI.
#[inline(always)]
fn plain(
    x: &Int8Rows,
    weight: Weight<'_>,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    for block in 0..weight.columns().div_ceil(COLUMNS) {
        let groups = weight.block(block);
        for row in 0..x.rows {
            let mut sums = [0i32; COLUMNS];
            let bytes: &[[u8; DEPTH]] = bytemuck::cast_slice(x.row(row));
            for (bytes, group) in bytes.iter().zip(groups) {
                for (sum, column) in sums.iter_mut().zip(group.0.as_chunks::<DEPTH>().0) {
                    for (&byte, &quantised) in bytes.iter().zip(column) {
                        *sum = sum.wrapping_add(i32::from(byte) * i32::from(quantised));
                    }
                }
            }
            let (first, row_scale) = (block * COLUMNS, x.scales[row]);
            finish(&sums, weight, first, row_scale, epilogue, &mut out[row * out_row..]);
        }
    }
}

/// Turns the sums of a row for the columns from `first` into results. `out` begins at the first
/// column of the row.
#[inline(always)]
fn finish(
    sums: &[i32],
    weight: Weight<'_>,
    first: usize,
    row_scale: f32,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
) {
    let columns = first..weight.columns().min(first + sums.len());
    let out = &mut out[columns.clone()];
    let sums = &sums[..out.len()];
    let corrections = &weight.corrections[columns.clone()];
    let scales = &weight.weight.scales[columns.clone()];
    for (place, value) in out.iter_mut().enumerate() {
        let sum = sums[place].wrapping_sub(corrections[place]);
        let product = sum as f32 * row_scale * scales[place];
        *value = if epilogue.accumulate { *value + product } else { product };
    }
    if let Some(bias) = epilogue.bias {
        for (value, bias) in out.iter_mut().zip(&bias[columns]) {
            *value += bias;
        }
    }
    if epilogue.relu {
        for value in out {
            *value = if *value < 0.0 { 0.0 } else { *value };
        }
    }
}
