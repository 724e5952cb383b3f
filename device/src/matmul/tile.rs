//! The innermost loop, which computes a tile of the result in registers, over the whole inner
//! dimension.
//!
//! Each element is one chain of fused multiplications and additions, in ascending order of the
//! inner dimension. The chain begins at zero, or goes on from a chain that was begun before. Lanes
//! of a register never mix. So the bits of an element depend only on its row of the left operand
//! and on its column of the right operand. The width of the registers, the tile and packing have
//! no effect.

use std::arch::x86_64::{__m256, __m512, _MM_HINT_T0, _mm_prefetch};

use super::vector::Vector;
use crate::simd::Level;

/// The arguments of a kernel call. The kernel has a fixed number of rows `m`, and at most its width
/// of columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// The inner dimension of the product.
    pub(super) k: usize,
    /// The address of the left operand. Element (i, p) is at `left + i * left_row + p * left_step`.
    pub(super) left: *const f32,
    pub(super) left_row: usize,
    pub(super) left_step: usize,
    /// The address of the right operand. Element (p, j) is at `right + p * right_step + j`.
    pub(super) right: *const f32,
    pub(super) right_step: usize,
    /// The address of the result. Element (i, j) is at `out + i * out_row + j`.
    pub(super) out: *mut f32,
    pub(super) out_row: usize,
    pub(super) columns: usize,
    /// The address of the values at which the sums begin, one for each column, or null if the sums
    /// begin at zero.
    pub(super) chain: *const f32,
    /// Whether the sum is added to the old value. If not, it replaces the old value.
    pub(super) accumulate: bool,
    /// The address of the biases, or null if there is no bias. There is one bias for each column,
    /// and it is added to the sum.
    pub(super) bias: *const f32,
    /// Whether values below zero become zero at the end.
    pub(super) relu: bool,
}

/// A kernel for a fixed number of rows and a fixed number of registers per row.
///
/// # Safety
///
/// The machine must have the kernel's instructions. `columns` must be larger than the kernel's
/// width minus one register, and at most the width. Let `m` be the kernel's number of rows. The
/// left elements (i, p) must be readable for i < m and p < k, the right elements (p, j) for j <
/// columns, and `bias` and `chain` (if not null) for j < columns. The result elements must be
/// readable and writable, and no other thread may use them at the same time.
pub(super) type Kernel = unsafe fn(&Call);

/// The kernels of an instruction set. The first index is the number of rows minus one, and the
/// second index is the number of registers per row minus one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    table: &'static [&'static [Kernel]],
    /// The number of floats in a register.
    lanes: usize,
}

impl Kernels {
    /// Returns the kernels of a level, or `None` for the scalar level.
    pub(super) fn of(level: Level) -> Option<Self> {
        match level {
            Level::Scalar => None,
            Level::Avx2 => Some(Self { table: AVX2, lanes: 8 }),
            Level::Avx512 => Some(Self { table: AVX512, lanes: 16 }),
        }
    }

    /// Returns the largest number of rows of a tile.
    pub(super) fn rows(self) -> usize {
        self.table.len()
    }

    /// Returns the largest number of columns of a tile with `rows` rows. `rows` must be between one
    /// and [`Kernels::rows`]. With few rows, more registers are free for columns, so more
    /// neighbouring columns are read at a time.
    pub(super) fn width(self, rows: usize) -> usize {
        self.table[rows - 1].len() * self.lanes
    }

    /// Returns the kernel for `rows` rows and `columns` columns. Both must be at least one and fit
    /// a tile.
    pub(super) fn get(self, rows: usize, columns: usize) -> Kernel {
        self.table[rows - 1][columns.div_ceil(self.lanes) - 1]
    }
}

/// Computes a tile of `M` rows with `N` registers each.
///
/// # Safety
///
/// The caller must meet the conditions of [`Kernel`].
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "the same two indices go through several arrays")]
unsafe fn tile<V: Vector, const M: usize, const N: usize>(call: &Call) {
    let &Call { k, left_step, right_step, columns, .. } = call;
    // SAFETY: all offsets are those of the elements that `Kernel` requires to be readable or
    // writable: rows below M, inner indices below k. Of the last register's columns only those of
    // the mask are touched. The registers before it lie wholly inside `columns`, which is above (N
    // - 1) * LANES.
    unsafe {
        let mask = V::mask(columns - (N - 1) * V::LANES);
        let mut rows = [call.left; M];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = call.left.wrapping_add(i * call.left_row);
        }
        if call.accumulate {
            // The old values may come from distant memory while the sums are computed.
            for i in 0..M {
                let old = call.out.add(i * call.out_row).cast::<i8>();
                for v in 0..N {
                    _mm_prefetch::<_MM_HINT_T0>(old.wrapping_add(v * V::LANES * size_of::<f32>()));
                }
            }
        }
        let mut sums = [[V::zero(); N]; M];
        if !call.chain.is_null() {
            for v in 0..N {
                let begun = call.chain.add(v * V::LANES);
                let begun = if v + 1 < N { V::load(begun) } else { V::load_part(begun, mask) };
                for sums in &mut sums {
                    sums[v] = begun;
                }
            }
        }
        let mut right = call.right;
        let mut at = 0;
        for _ in 0..k {
            let mut values = [V::zero(); N];
            for (v, value) in values.iter_mut().enumerate() {
                *value = if v + 1 < N {
                    V::load(right.add(v * V::LANES))
                } else {
                    V::load_part(right.add(v * V::LANES), mask)
                };
            }
            for i in 0..M {
                let factor = V::splat(rows[i].wrapping_add(at));
                for v in 0..N {
                    sums[i][v] = V::mul_add(factor, values[v], sums[i][v]);
                }
            }
            // The last of these addresses are never read, and may be outside of the operand.
            right = right.wrapping_add(right_step);
            at += left_step;
        }
        // Each stage processes all registers, so that no register has to be stored in memory
        // between stages.
        if call.accumulate {
            for i in 0..M {
                let old = call.out.add(i * call.out_row);
                for v in 0..N {
                    let old = old.add(v * V::LANES);
                    let old = if v + 1 < N { V::load(old) } else { V::load_part(old, mask) };
                    sums[i][v] = V::add(old, sums[i][v]);
                }
            }
        }
        if !call.bias.is_null() {
            for v in 0..N {
                let bias = call.bias.add(v * V::LANES);
                let bias = if v + 1 < N { V::load(bias) } else { V::load_part(bias, mask) };
                for sums in &mut sums {
                    sums[v] = V::add(sums[v], bias);
                }
            }
        }
        if call.relu {
            for sums in &mut sums {
                for sum in sums {
                    *sum = sum.relu();
                }
            }
        }
        let whole = columns == N * V::LANES;
        for i in 0..M {
            let out = call.out.add(i * call.out_row);
            for v in 0..N - 1 {
                sums[i][v].store(out.add(v * V::LANES));
            }
            let last = out.add((N - 1) * V::LANES);
            if whole {
                sums[i][N - 1].store(last);
            } else {
                sums[i][N - 1].store_part(last, mask);
            }
        }
    }
}

/// Computes a tile with AVX-512.
///
/// # Safety
///
/// The caller must meet the conditions of [`Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512<const M: usize, const N: usize>(call: &Call) {
    // SAFETY: the caller's promise, passed on; the frame has the instructions of `__m512`.
    unsafe { tile::<__m512, M, N>(call) }
}

/// Computes a tile with AVX2.
///
/// # Safety
///
/// The caller must meet the conditions of [`Kernel`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const M: usize, const N: usize>(call: &Call) {
    // SAFETY: the caller's promise, passed on; the frame has the instructions of `__m256`.
    unsafe { tile::<__m256, M, N>(call) }
}

/// Lists the kernels for `$m` rows, by their number of registers.
macro_rules! row {
    ($kernel:ident, $m:literal, [$($n:literal),*]) => { &[$($kernel::<$m, $n>),*] };
}

/// The AVX-512 kernels, with up to 8 x 3 registers of 16 floats. The 32 registers hold 24 sums, 3
/// right values and the left value. There are eleven loads for 24 multiplications.
const AVX512: &[&[Kernel]] = &[
    row!(avx512, 1, [1, 2, 3, 4, 5, 6, 7, 8]),
    row!(avx512, 2, [1, 2, 3, 4, 5, 6, 7, 8]),
    row!(avx512, 3, [1, 2, 3, 4, 5, 6, 7, 8]),
    row!(avx512, 4, [1, 2, 3]),
    row!(avx512, 5, [1, 2, 3]),
    row!(avx512, 6, [1, 2, 3]),
    row!(avx512, 7, [1, 2, 3]),
    row!(avx512, 8, [1, 2, 3]),
];

/// The AVX2 kernels, with up to 6 x 2 registers of 8 floats. The 16 registers hold 12 sums, 2 right
/// values and the left value.
const AVX2: &[&[Kernel]] = &[
    row!(avx2, 1, [1, 2, 3, 4, 5, 6]),
    row!(avx2, 2, [1, 2, 3, 4, 5, 6]),
    row!(avx2, 3, [1, 2]),
    row!(avx2, 4, [1, 2]),
    row!(avx2, 5, [1, 2]),
    row!(avx2, 6, [1, 2]),
];
