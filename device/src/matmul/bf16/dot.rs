//! Blocks of a product by the instruction `vdpbf16ps` of AVX512-BF16.

use std::arch::x86_64::*;

use super::pack::{LINES, Line};
use super::sums::Sums;

/// The number of rows whose sums are in registers at a time.
const ROWS: usize = 8;

/// Computes the sums of 32 rows and `16 * N` columns over `blocks` blocks of the inner dimension.
/// The other columns of `sums` keep their contents.
///
/// # Safety
///
/// The machine must have AVX512-BF16. For each block, `left` must point to two tiles of sixteen
/// lines and `right` to `N` tiles. `N` is one or two.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,avx512bf16")]
pub(super) unsafe fn block<const N: usize>(
    blocks: usize,
    left: *const Line,
    right: *const Line,
    sums: &mut Sums,
) {
    let out = sums.as_mut_ptr();
    for group in 0..2 * LINES / ROWS {
        let (half, first) = (group * ROWS / LINES, group * ROWS % LINES);
        // SAFETY: in each block, the loads read a pair of each of the rows first..first + ROWS of
        // the left tile `half`, and the lines of the `N` right tiles, which the caller promises.
        // The stores write lines of the tiles 2 * half + v of `Sums`, which has four tiles.
        unsafe {
            let mut acc = [[_mm512_setzero_ps(); N]; ROWS];
            for block in 0..blocks {
                let rows = left.add((2 * block + half) * LINES + first).cast::<i32>();
                let lines = right.add(block * N * LINES);
                for pair in 0..LINES {
                    let mut factors = [_mm512_setzero_si512(); N];
                    for (v, factor) in factors.iter_mut().enumerate() {
                        *factor = _mm512_load_si512(lines.add(v * LINES + pair).cast());
                    }
                    for (row, acc) in acc.iter_mut().enumerate() {
                        let x = _mm512_set1_epi32(*rows.add(row * LINES + pair));
                        for (acc, factor) in acc.iter_mut().zip(factors) {
                            *acc = _mm512_dpbf16_ps(*acc, cast(x), cast(factor));
                        }
                    }
                }
            }
            for (row, acc) in acc.iter().enumerate() {
                for (v, acc) in acc.iter().enumerate() {
                    let line = (2 * half + v) * LINES + first + row;
                    _mm512_store_ps(out.add(line * LINES), *acc);
                }
            }
        }
    }
}

/// Returns the bits of a register as numbers of bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn cast(value: __m512i) -> __m512bh {
    // SAFETY: both types are 512 bits, and all bits are valid in both.
    unsafe { std::mem::transmute(value) }
}
