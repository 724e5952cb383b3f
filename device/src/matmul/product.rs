//! Products of row-major matrices by our own kernels, in blocks that stay in cache.
//!
//! The value of an element is fixed by these rules. The inner dimension is divided into blocks of
//! [`BLOCK`]. The sum of a block begins at zero, and is one chain of fused multiplications and
//! additions in ascending order. The sums of the blocks are added in order (to the old value if the
//! product accumulates). Then the bias is added, and then relu is applied. All instruction sets,
//! all divisions of rows and columns, and the scalar [reference](super::reference) give the same
//! bits.

use super::panel::{Panel, column_groups};
use super::scratch::{LINE, OUTER_BLOCK, Scratch, copy_row};
#[cfg(target_arch = "x86_64")]
use super::tile::{Call, Kernels};
use super::{View, assert_fits, assert_result_fits};
use super::{fallback, reference};
use crate::simd::{Level, level};

/// The inner dimension of a block. Most dense layers fit into one block. A panel with this number
/// of rows stays in the second-level cache. With several blocks, the sums of wider layers are more
/// precise.
pub(super) const BLOCK: usize = 512;

/// The largest number of column tiles of `x` for which [`outer_product`] reads `g` without packing
/// it.
#[cfg(target_arch = "x86_64")]
const GROUPS_IN_PLACE: usize = 4;

/// The operations on a sum that come before the sum is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Whether the sum is added to the old value. If not, the old value is not read and may be NaN.
    pub accumulate: bool,
    /// The bias of each column, which is added to the sum.
    pub bias: Option<&'a [f32]>,
    /// Whether values below zero become zero at the end. A NaN stays a NaN.
    pub relu: bool,
}

/// The right operand of a product.
#[derive(Clone, Copy, Debug)]
pub enum Right<'a> {
    /// A row-major matrix that is not packed. It is for products of few rows, because packing costs
    /// too much for them.
    Plain(View<'a>),
    /// A packed matrix, given by all panels of [`Panel::list`].
    Packed(&'a [Panel]),
}

impl Right<'_> {
    /// Returns the number of rows and columns.
    pub(super) fn shape(&self) -> (usize, usize) {
        match self {
            Self::Plain(view) => (view.rows, view.columns),
            Self::Packed(panels) => {
                let columns = panels.last().map_or(0, |last| last.first + last.columns);
                (panels.first().map_or(0, |panel| panel.k), columns)
            }
        }
    }

    /// Panics if [`linear`] cannot read this operand.
    pub(super) fn check(&self) {
        match self {
            Self::Plain(view) => {
                assert!(view.column_stride == 1, "columns of a plain right operand are contiguous");
                let View { values, rows, columns, row_stride, column_stride } = *view;
                assert_fits("right", values.len(), rows, columns, row_stride, column_stride);
            }
            Self::Packed(panels) => {
                let mut end = 0;
                for panel in *panels {
                    assert!(panel.first == end && panel.k == panels[0].k, "not all panels");
                    end += panel.columns;
                }
            }
        }
    }

    /// Returns element (p, j), for the reference implementation.
    pub(super) fn at(&self, p: usize, j: usize) -> f32 {
        match self {
            Self::Plain(view) => view.values[p * view.row_stride + j * view.column_stride],
            Self::Packed(panels) => {
                let panel = &panels[panels.partition_point(|panel| panel.first <= j) - 1];
                panel.values()[p * panel.step() + j - panel.first]
            }
        }
    }
}

/// The state of a product after the first columns of its left operand, for one row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begun<'a> {
    /// The number of columns that were multiplied.
    pub columns: usize,
    /// The sum of the complete blocks for each column of the result. It is not read if no block is
    /// complete.
    pub sums: &'a [f32],
    /// The sum so far of the block that is not complete, for each column of the result.
    pub chain: &'a [f32],
}

impl Begun<'_> {
    /// Returns whether at least one block is complete, so that `sums` is read.
    pub(super) fn has_blocks(&self) -> bool {
        self.columns >= BLOCK
    }
}

/// Computes `out = x * w` and then the epilogue. It is the forward product of a layer or, with the
/// transposed weight, the gradient of its input. `out` is row-major with `out_row` floats from one
/// row to the next, so `out` can be some columns of a wider matrix.
///
/// # Panics
///
/// Panics if the inner dimensions differ, a matrix does not fit its slice, the columns of a plain
/// `w` are not contiguous, the panels do not belong to one matrix, or rows of `out` overlap. All of
/// these are mistakes of the caller.
///
/// On a machine without our kernels, [`gemm`](super::gemm) computes the sums. Only there, the bits
/// differ.
pub fn linear(x: View<'_>, w: Right<'_>, epilogue: Epilogue<'_>, out: &mut [f32], out_row: usize) {
    if level() == Level::Scalar {
        return fallback::linear(x, w, epilogue, out, out_row);
    }
    linear_at(level(), x, w, epilogue, out, out_row);
}

/// Computes [`linear`] with the kernels of a level. If the machine's level is lower, its kernels
/// are used. This function is for tests and benchmarks. The panels must have been made for the same
/// level.
///
/// # Panics
///
/// Panics for the same reasons as [`linear`].
pub fn linear_at(
    wanted: Level,
    x: View<'_>,
    w: Right<'_>,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    linear_from_at(wanted, Begun::default(), x, w, epilogue, out, out_row);
}

/// Computes [`linear`] of rows whose first `begun.columns` columns have been
/// multiplied by [`begin`](super::begin). `x` has the other columns. `w` is the whole weight.
///
/// # Panics
///
/// Panics for the reasons of [`linear`], if no column is left, if the state does not
/// have a value for each column of `w`, or if `epilogue` accumulates, which cannot be combined with
/// a state.
pub fn linear_from(
    begun: Begun<'_>,
    x: View<'_>,
    w: Right<'_>,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    linear_from_at(level(), begun, x, w, epilogue, out, out_row);
}

/// Computes [`linear_from`] with the kernels of a level. If the machine's level is lower, its
/// kernels are used. Without a state, this is [`linear_at`].
///
/// # Panics
///
/// Panics for the same reasons as [`linear_from`].
pub fn linear_from_at(
    wanted: Level,
    begun: Begun<'_>,
    x: View<'_>,
    w: Right<'_>,
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    let (m, (k, n)) = (x.rows, w.shape());
    if m == 0 || n == 0 {
        return;
    }
    assert_eq!(begun.columns + x.columns, k, "inner dimensions differ");
    assert_fits("x", x.values.len(), m, x.columns, x.row_stride, x.column_stride);
    assert_result_fits(out, m, n, out_row);
    assert!(epilogue.bias.is_none_or(|bias| bias.len() >= n), "too short a bias");
    w.check();
    if begun.columns > 0 {
        assert!(x.columns > 0, "no column is left");
        assert!(!epilogue.accumulate, "a state and an old value");
        assert!(begun.sums.len() == n && begun.chain.len() == n, "one state for each column");
    } else {
        assert!(begun.chain.is_empty(), "a chain without columns");
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(kernels) = Kernels::of(wanted.min(level())) {
        if begun.has_blocks() {
            for row in out.chunks_mut(out_row.max(n)).take(m) {
                row[..n].copy_from_slice(begun.sums);
            }
        }
        return blocks(kernels, (begun, x), w, (m, k, n), epilogue, out, out_row);
    }
    reference::linear((begun, x), w, (m, k, n), epilogue, out, out_row);
}

/// Computes the product after its arguments were checked. The loops are over blocks of the inner
/// dimension, then over panels, then over rows. If some columns were begun before, the caller has
/// written the sums of their blocks to `out`.
#[cfg(target_arch = "x86_64")]
fn blocks(
    kernels: Kernels,
    (begun, x): (Begun<'_>, View<'_>),
    w: Right<'_>,
    (m, k, n): (usize, usize, usize),
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    let groups = m.div_ceil(kernels.rows());
    let mut begin = begun.columns;
    let mut chain = begun.chain;
    // Without an inner dimension there is one empty block: the sum is zero, and the epilogue
    // follows.
    loop {
        let end = k.min((begin / BLOCK + 1) * BLOCK);
        let last = end == k;
        let mut panel_of = |first: usize, columns: usize, right: *const f32, right_step: usize| {
            for group in 0..groups {
                let (top, bottom) = (m * group / groups, m * (group + 1) / groups);
                let call = Call {
                    k: end - begin,
                    left: x
                        .values
                        .as_ptr()
                        .wrapping_add(top * x.row_stride)
                        .wrapping_add((begin - begun.columns) * x.column_stride),
                    left_row: x.row_stride,
                    left_step: x.column_stride,
                    right,
                    right_step,
                    out: out.as_mut_ptr().wrapping_add(top * out_row + first),
                    out_row,
                    columns,
                    chain: match chain {
                        [] => std::ptr::null(),
                        chain => chain[first..].as_ptr(),
                    },
                    accumulate: epilogue.accumulate || begin >= BLOCK,
                    bias: match epilogue.bias {
                        Some(bias) if last => bias[first..].as_ptr(),
                        _ => std::ptr::null(),
                    },
                    relu: epilogue.relu && last,
                };
                // SAFETY: the level of `kernels` is one that the machine has. `bottom - top` is
                // between one and the smaller of `m` and the kernels' rows. `columns` is between
                // one and the width for that many rows, which for fewer rows is no less. So `get`
                // returns the kernel of just these rows and registers. Rows top..bottom of `x` and
                // of `out`, inner indices begin..end and columns first..first + columns lie inside
                // the matrices, which `linear_from_at` has checked against their slices. `chain` is
                // null or, checked too, has a value for each of these columns. `right` is such a
                // panel (see below). `out` is borrowed mutably and overlaps nothing.
                unsafe { kernels.get(bottom - top, columns)(&call) };
            }
        };
        match w {
            Right::Plain(view) => {
                for (first, columns) in column_groups(kernels.width(m.min(kernels.rows())), n) {
                    let right = view.values.as_ptr().wrapping_add(begin * view.row_stride + first);
                    panel_of(first, columns, right, view.row_stride);
                }
            }
            Right::Packed(panels) => {
                for panel in panels {
                    let right = panel.values().as_ptr().wrapping_add(begin * panel.step());
                    assert!(
                        panel.columns <= kernels.width(kernels.rows()),
                        "a panel for another level"
                    );
                    panel_of(panel.first, panel.columns, right, panel.step());
                }
            }
        }
        begin = end;
        chain = &[];
        if last {
            return;
        }
    }
}

/// Computes `out = xᵀ * g`, or adds this product to `out`. It is the gradient of a weight from a
/// tile of rows. `out` is row-major with `out_row` floats from one row to the next.
///
/// # Panics
///
/// Panics if the numbers of rows differ, a matrix does not fit its slice, columns of `g` are not
/// contiguous, or rows of `out` overlap. All of these are mistakes of the caller.
pub fn outer_product(
    x: View<'_>,
    g: View<'_>,
    accumulate: bool,
    out: &mut [f32],
    out_row: usize,
    scratch: &mut Scratch,
) {
    if level() == Level::Scalar {
        return fallback::outer_product(x, g, accumulate, out, out_row);
    }
    outer_product_at(level(), x, g, accumulate, out, out_row, scratch);
}

/// Computes [`outer_product`] with the kernels of a level. If the machine's level is lower, its
/// kernels are used. This function is for tests and benchmarks.
///
/// # Panics
///
/// Panics for the same reasons as [`outer_product`].
pub fn outer_product_at(
    wanted: Level,
    x: View<'_>,
    g: View<'_>,
    accumulate: bool,
    out: &mut [f32],
    out_row: usize,
    scratch: &mut Scratch,
) {
    let (m, n, rows) = (x.columns, g.columns, x.rows);
    if m == 0 || n == 0 {
        return;
    }
    assert_eq!(rows, g.rows, "numbers of rows differ");
    assert!(g.column_stride == 1, "columns of the right operand are contiguous");
    assert_fits("x", x.values.len(), rows, m, x.row_stride, x.column_stride);
    assert_fits("g", g.values.len(), rows, n, g.row_stride, 1);
    assert_result_fits(out, m, n, out_row);
    #[cfg(target_arch = "x86_64")]
    if let Some(kernels) = Kernels::of(wanted.min(level())) {
        return outer_blocks(kernels, x, g, (m, n, rows), accumulate, out, out_row, scratch);
    }
    reference::outer_product(x, g, (m, n, rows), accumulate, out, out_row);
}

/// Computes the product after its arguments were checked, in blocks of rows.
///
/// If `x` has many columns, each block of `g` is packed. Its panels are then read from the
/// second-level cache one after another, while columns of `x` and rows of the result stay in the
/// first-level cache. Otherwise, `x` and `g` are read without packing.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::too_many_arguments, reason = "a product with its memory, checked before")]
fn outer_blocks(
    kernels: Kernels,
    x: View<'_>,
    g: View<'_>,
    (m, n, rows): (usize, usize, usize),
    accumulate: bool,
    out: &mut [f32],
    out_row: usize,
    scratch: &mut Scratch,
) {
    let groups = m.div_ceil(kernels.rows());
    let most = kernels.width(m.min(kernels.rows()));
    let mut begin = 0;
    loop {
        let end = rows.min(begin + OUTER_BLOCK);
        let x_from = x.values.as_ptr().wrapping_add(begin * x.row_stride);
        let mut call = |group: usize, (first, columns), right: *const f32, right_step: usize| {
            let (top, bottom) = (m * group / groups, m * (group + 1) / groups);
            let call = Call {
                k: end - begin,
                left: x_from.wrapping_add(top * x.column_stride),
                left_row: x.column_stride,
                left_step: x.row_stride,
                right,
                right_step,
                out: out.as_mut_ptr().wrapping_add(top * out_row + first),
                out_row,
                columns,
                chain: std::ptr::null(),
                accumulate: accumulate || begin > 0,
                bias: std::ptr::null(),
                relu: false,
            };
            // SAFETY: the level of `kernels` is one that the machine has. `bottom - top` is between
            // one and the smaller of `m` and the kernels' rows. `columns` is between one and the
            // width for that many rows, which for fewer rows is no less. So `get` returns the
            // kernel of just these rows and registers. Columns top..bottom of `x` in rows
            // begin..end, and rows top..bottom and columns first..first + columns of `out` lie
            // inside the matrices, which `outer_product_at` has checked against their slices.
            // `right` is, in the same rows, those columns of `g`, checked too, or their copy: `end
            // - begin` rows of `right_step` floats, which is no less than `columns`. `out` is
            // borrowed mutably and overlaps nothing.
            unsafe { kernels.get(bottom - top, columns)(&call) };
        };
        if groups <= GROUPS_IN_PLACE {
            let g_from = g.values.as_ptr().wrapping_add(begin * g.row_stride);
            for (first, columns) in column_groups(most, n) {
                for group in 0..groups {
                    call(group, (first, columns), g_from.wrapping_add(first), g.row_stride);
                }
            }
        } else {
            let lines = scratch.lines((end - begin) * n.div_ceil(LINE));
            let mut rest = &mut *lines;
            for (first, columns) in column_groups(most, n) {
                let width = columns.div_ceil(LINE);
                let (panel, behind) = rest.split_at_mut((end - begin) * width);
                for (p, to) in (begin..end).zip(panel.chunks_exact_mut(width)) {
                    copy_row(&g.values[p * g.row_stride + first..][..columns], to);
                }
                rest = behind;
            }
            for group in 0..groups {
                let mut rest = &*lines;
                for (first, columns) in column_groups(most, n) {
                    let width = columns.div_ceil(LINE);
                    let (panel, behind) = rest.split_at((end - begin) * width);
                    call(group, (first, columns), panel.as_ptr().cast(), width * LINE);
                    rest = behind;
                }
            }
        }
        begin = end;
        if begin == rows {
            return;
        }
    }
}
