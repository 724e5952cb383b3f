//! The rounding of floats into the lines of a tile, with AVX512-BF16.

use std::arch::x86_64::*;

use super::pack::{LINES, Line};

/// Writes a line for each of up to sixteen rows with up to 32 columns. What is missing is zero.
///
/// # Safety
///
/// The machine must have the instructions of the attribute. Element (i, j) for `i < rows` and `j <
/// columns` must be readable at `from + i * stride + j`, and sixteen lines must be writable at
/// `to`. There are at most sixteen rows and 32 columns.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,avx512bf16")]
pub(super) unsafe fn rows_tile(
    from: *const f32,
    stride: usize,
    rows: usize,
    columns: usize,
    to: *mut Line,
) {
    let (low, high) = (mask(columns), mask(columns.saturating_sub(LINES)));
    for line in 0..LINES {
        // SAFETY: the loads touch only the elements of the masks, which are columns of one of the
        // rows, as the caller promises; without rows the masks are zero. Each store writes one of
        // the sixteen lines.
        unsafe {
            let (low, high) = if line < rows { (low, high) } else { (0, 0) };
            let row = from.wrapping_add(line * stride);
            let low = _mm512_maskz_loadu_ps(low, row);
            let high = _mm512_maskz_loadu_ps(high, row.wrapping_add(LINES));
            _mm512_store_si512(to.add(line).cast(), bits(_mm512_cvtne2ps_pbh(high, low)));
        }
    }
}

/// Writes a line for each pair of up to 32 rows with up to sixteen columns. The two numbers of a
/// column are neighbours. What is missing is zero.
///
/// # Safety
///
/// The machine must have the instructions of the attribute. Element (i, j) for `i < rows` and `j <
/// columns` must be readable at `from + i * stride + j`, and sixteen lines must be writable at
/// `to`. There are at most 32 rows and sixteen columns.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,avx512bf16")]
pub(super) unsafe fn pairs_tile(
    from: *const f32,
    stride: usize,
    rows: usize,
    columns: usize,
    to: *mut Line,
) {
    let columns = mask(columns);
    // Number i of the first row is followed by number i of the second row.
    let order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
        19, 3, 18, 2, 17, 1, 16, 0,
    );
    for line in 0..LINES {
        // SAFETY: as in `rows_tile`, for the rows 2 * line and 2 * line + 1.
        unsafe {
            let load = |row: usize| {
                let columns = if row < rows { columns } else { 0 };
                _mm512_maskz_loadu_ps(columns, from.wrapping_add(row * stride))
            };
            let pair = _mm512_cvtne2ps_pbh(load(2 * line + 1), load(2 * line));
            let pair = _mm512_permutexvar_epi16(order, bits(pair));
            _mm512_store_si512(to.add(line).cast(), pair);
        }
    }
}

/// Returns the mask of the first `count` of sixteen numbers.
fn mask(count: usize) -> __mmask16 {
    if count >= LINES { u16::MAX } else { (1 << count) - 1 }
}

/// Returns the bits of a register of numbers of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn bits(value: __m512bh) -> __m512i {
    // SAFETY: both types are 512 bits, and all bits are valid in both.
    unsafe { std::mem::transmute(value) }
}
