//! The product of 8-bit integers with the VNNI instructions of AVX-512.
//!
//! A tile has up to six rows and four blocks of columns: 24 registers of sums, four of weights and
//! one broadcast word. The weights of a tile's columns stay in the first-level cache while all rows
//! pass. The sums become results in their registers.

use std::arch::x86_64::{
    __m512i, _CMP_LT_OQ, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_ps,
    _mm512_dpbusd_epi32, _mm512_load_si512, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_mov_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_mul_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sub_epi32,
};

use super::{COLUMNS, Epilogue, Group, Int8Rows, Weight};
use crate::simd::{Level, level};

/// Returns whether this machine has the instructions of this module.
pub(super) fn is_available() -> bool {
    level() == Level::Avx512 && is_x86_feature_detected!("avx512vnni")
}

/// Computes [`super::linear_int8`] with the instructions of VNNI.
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
            match (high, wide) {
                (6, 4) => tile::<6, 4>(x, weight, row, block, epilogue, out, out_row),
                (6, 2) => tile::<6, 2>(x, weight, row, block, epilogue, out, out_row),
                (6, _) => tile::<6, 1>(x, weight, row, block, epilogue, out, out_row),
                (3, 4) => tile::<3, 4>(x, weight, row, block, epilogue, out, out_row),
                (3, 2) => tile::<3, 2>(x, weight, row, block, epilogue, out, out_row),
                (3, _) => tile::<3, 1>(x, weight, row, block, epilogue, out, out_row),
                (_, 4) => tile::<1, 4>(x, weight, row, block, epilogue, out, out_row),
                (_, 2) => tile::<1, 2>(x, weight, row, block, epilogue, out, out_row),
                _ => tile::<1, 1>(x, weight, row, block, epilogue, out, out_row),
            }
            row += high;
        }
        block += wide;
    }
}

/// Computes the results of `R` rows from `row` and `B` blocks of columns from `block`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn tile<const R: usize, const B: usize>(
    x: &Int8Rows,
    weight: Weight<'_>,
    row: usize,
    block: usize,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
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
    for (r, sums) in sums.iter().enumerate() {
        let out = &mut out[(row + r) * out_row..][..weight.columns()];
        for (b, &sum) in sums.iter().enumerate() {
            finish(sum, weight, block + b, x.scales[row + r], epilogue, out);
        }
    }
}

/// Turns the sums of a row for a block of columns into results, with the operations of
/// [`super::finish`]. `out` has all columns of the row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn finish(
    sums: __m512i,
    weight: Weight<'_>,
    block: usize,
    row_scale: f32,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
) {
    let first = block * COLUMNS;
    let out = &mut out[first..];
    // One bit for each column that exists.
    let mask = ((1u32 << out.len().min(COLUMNS)) - 1) as u16;
    let corrections = &weight.corrections[first..][..COLUMNS];
    let scales = &weight.weight.scales[first..][..COLUMNS];
    // SAFETY: both slices have 16 values. The loads need no alignment.
    let (corrections, scales) = unsafe {
        (_mm512_loadu_si512(corrections.as_ptr().cast()), _mm512_loadu_ps(scales.as_ptr()))
    };
    let sums = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, corrections));
    let mut values = _mm512_mul_ps(_mm512_mul_ps(sums, _mm512_set1_ps(row_scale)), scales);
    if epilogue.accumulate {
        // SAFETY: the mask has no bit above the length of `out`, and no other value is read.
        let old = unsafe { _mm512_maskz_loadu_ps(mask, out.as_ptr()) };
        values = _mm512_add_ps(old, values);
    }
    if let Some(bias) = epilogue.bias {
        let bias = &bias[first..][..out.len()];
        // SAFETY: the mask has no bit above the length of `bias`, and no other value is read.
        let bias = unsafe { _mm512_maskz_loadu_ps(mask, bias.as_ptr()) };
        values = _mm512_add_ps(values, bias);
    }
    if epilogue.relu {
        let zero = _mm512_setzero_ps();
        let negative = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(values, zero);
        values = _mm512_mask_mov_ps(values, negative, zero);
    }
    // SAFETY: the mask has no bit above the length of `out`, and no other value is written.
    unsafe { _mm512_mask_storeu_ps(out.as_mut_ptr(), mask, values) };
}
