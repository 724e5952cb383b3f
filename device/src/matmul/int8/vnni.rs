//! The product of 8-bit integers with the VNNI instructions of AVX-512.
//!
//! A tile has up to six rows and four blocks of columns: 24 registers of sums, four of weights and
//! one broadcast word. The weights of a tile's columns stay in the first-level cache while all rows
//! pass.

use std::arch::x86_64::{
    __m512i, _mm512_dpbusd_epi32, _mm512_load_si512, _mm512_set1_epi32, _mm512_setzero_si512,
    _mm512_storeu_si512,
};

use super::{COLUMNS, Epilogue, Group, Int8Rows, Weight, finish};
use crate::simd::{Level, level};

/// The largest number of blocks of a tile.
const BLOCKS: usize = 4;

/// The largest number of rows of a tile.
const ROWS: usize = 6;

/// The sums of one row of a tile.
type Sums = [i32; BLOCKS * COLUMNS];

/// Returns whether this machine has the instructions of this module.
pub(super) fn is_available() -> bool {
    level() == Level::Avx512 && is_x86_feature_detected!("avx512vnni")
}

/// Computes [`super::linear_int8`].
///
/// # Panics
///
/// Panics if the machine does not have the instructions.
pub(super) fn linear(
    x: &Int8Rows,
    weight: Weight<'_>,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    assert!(is_available(), "a machine without VNNI");
    // SAFETY: the assertion has checked every feature that is named on `blocks`.
    unsafe { blocks(x, weight, epilogue, out, out_row) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn blocks(
    x: &Int8Rows,
    weight: Weight<'_>,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    let count = weight.columns().div_ceil(COLUMNS);
    let mut block = 0;
    while block < count {
        let wide = [4, 2, 1].into_iter().find(|&wide| wide <= count - block).unwrap_or(1);
        let mut row = 0;
        while row < x.rows {
            let high = [6, 3, 1].into_iter().find(|&high| high <= x.rows - row).unwrap_or(1);
            let mut sums = [[0i32; BLOCKS * COLUMNS]; ROWS];
            match (high, wide) {
                (6, 4) => tile::<6, 4>(x, weight, row, block, &mut sums),
                (6, 2) => tile::<6, 2>(x, weight, row, block, &mut sums),
                (6, _) => tile::<6, 1>(x, weight, row, block, &mut sums),
                (3, 4) => tile::<3, 4>(x, weight, row, block, &mut sums),
                (3, 2) => tile::<3, 2>(x, weight, row, block, &mut sums),
                (3, _) => tile::<3, 1>(x, weight, row, block, &mut sums),
                (_, 4) => tile::<1, 4>(x, weight, row, block, &mut sums),
                (_, 2) => tile::<1, 2>(x, weight, row, block, &mut sums),
                _ => tile::<1, 1>(x, weight, row, block, &mut sums),
            }
            for (sums, row) in sums.iter().zip(row..row + high) {
                let (sums, out) = (&sums[..wide * COLUMNS], &mut out[row * out_row..]);
                finish(sums, weight, block * COLUMNS, x.scales[row], epilogue, out);
            }
            row += high;
        }
        block += wide;
    }
}

/// Computes the sums of `R` rows from `row` and `B` blocks of columns from `block`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn tile<const R: usize, const B: usize>(
    x: &Int8Rows,
    weight: Weight<'_>,
    row: usize,
    block: usize,
    out: &mut [Sums; ROWS],
) {
    let words: [&[i32]; R] = std::array::from_fn(|r| x.row(row + r));
    let groups: [&[Group]; B] = std::array::from_fn(|b| weight.block(block + b));
    let depth = x.depth;
    assert!(words.iter().all(|words| words.len() == depth), "a row of another length");
    assert!(groups.iter().all(|groups| groups.len() == depth), "a block of another length");
    let mut sums = [[_mm512_setzero_si512(); B]; R];
    for step in 0..depth {
        let mut lines: [__m512i; B] = [_mm512_setzero_si512(); B];
        for (line, groups) in lines.iter_mut().zip(&groups) {
            // SAFETY: `step` is below `depth`, the length of the block. A group has 64 bytes and is
            // aligned to 64 bytes.
            *line = unsafe { _mm512_load_si512(groups.as_ptr().add(step).cast()) };
        }
        for (sums, words) in sums.iter_mut().zip(&words) {
            // SAFETY: `step` is below `depth`, the length of the row.
            let word = _mm512_set1_epi32(unsafe { *words.get_unchecked(step) });
            for (sum, &line) in sums.iter_mut().zip(&lines) {
                *sum = _mm512_dpbusd_epi32(*sum, word, line);
            }
        }
    }
    for (sums, out) in sums.iter().zip(out) {
        let (blocks, _) = out.as_chunks_mut::<COLUMNS>();
        for (&sum, block) in sums.iter().zip(blocks) {
            // SAFETY: a block has 16 integers, which are the 64 bytes that are written. The store
            // needs no alignment.
            unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), sum) };
        }
    }
}
