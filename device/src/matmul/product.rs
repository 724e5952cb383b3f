//! Products of row-major matrices by our own kernels, in blocks that stay in cache.
//!
//! What an element is, is fixed: the inner dimension is cut into blocks of [`BLOCK`]; the sum of a block is one
//! chain of fused multiplications and additions, begun at zero, in ascending order; the blocks' sums are
//! added in order to what was there (if it counts), then the bias is added, then comes relu. Every
//! instruction set, every way of cutting rows and columns, and the scalar [reference](super::reference) give these
//! bits.

use super::panel::{Panel, cuts};
use super::reference;
#[cfg(target_arch = "x86_64")]
use super::tile::{Call, Kernels};
use super::{View, assert_fits};
use crate::simd::{Level, level};

/// Inner dimension of a block. Dense layers are hardly ever wider, so theirs are one block; a panel of
/// this many rows stays in the second-level cache, and sums of wider ones gain precision from being cut.
pub(super) const BLOCK: usize = 512;

/// Rows of a block of [`outer_product`]: what a tile has. Fewer would read and write the result more often.
pub(super) const OUTER_BLOCK: usize = 256;

/// What happens to a sum before it is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Whether the sum is added to what was there. Else that is not read (it may hold NaN).
    pub accumulate: bool,
    /// One float a column, added next.
    pub bias: Option<&'a [f32]>,
    /// Whether what is below zero becomes zero, at last. A NaN stays one.
    pub relu: bool,
}

/// The right operand of a product.
#[derive(Clone, Copy, Debug)]
pub enum Right<'a> {
    /// A row-major matrix where it lies: for products of few rows, which packing would not pay for.
    Plain(View<'a>),
    /// A matrix that was packed: all panels of [`Panel::list`].
    Packed(&'a [Panel]),
}

impl Right<'_> {
    /// Rows and columns.
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Plain(view) => (view.rows, view.columns),
            Self::Packed(panels) => {
                let columns = panels.last().map_or(0, |last| last.first() + last.columns());
                (panels.first().map_or(0, Panel::k), columns)
            }
        }
    }

    /// Panics unless this is a matrix that `linear` can read.
    fn check(&self) {
        match self {
            Self::Plain(view) => {
                assert!(view.column_stride == 1, "columns of a plain right operand are contiguous");
                let View { values, rows, columns, row_stride, column_stride } = *view;
                assert_fits("right", values.len(), rows, columns, row_stride, column_stride);
            }
            Self::Packed(panels) => {
                let mut end = 0;
                for panel in *panels {
                    assert!(panel.first() == end && panel.k() == panels[0].k(), "not all panels");
                    end += panel.columns();
                }
            }
        }
    }

    /// Element (p, j): what the reference reads.
    pub(super) fn at(&self, p: usize, j: usize) -> f32 {
        match self {
            Self::Plain(view) => view.values[p * view.row_stride + j * view.column_stride],
            Self::Packed(panels) => {
                let panel = &panels[panels.partition_point(|panel| panel.first() <= j) - 1];
                panel.values()[p * panel.step() + j - panel.first()]
            }
        }
    }
}

/// `out = x * w`, then the epilogue: a layer's forward product, or with the transposed weight its input's
/// gradient. `out` is row-major, its rows `out_row` apart: it may be columns of something wider.
///
/// # Panics
///
/// Where inner dimensions differ, a matrix does not fit its slice, columns of a plain `w` are not contiguous,
/// panels are not those of one matrix, or rows of `out` overlap: mistakes of the caller.
pub fn linear(x: View<'_>, w: Right<'_>, epilogue: Epilogue<'_>, out: &mut [f32], out_row: usize) {
    linear_at(level(), x, w, epilogue, out, out_row);
}

/// [`linear`] with the kernels of a level, or of what the machine has, whichever is lower: for tests and
/// benches. Panels must have been made for that level.
///
/// # Panics
///
/// As [`linear`].
pub fn linear_at(
    wanted: Level,
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
    assert_eq!(x.columns, k, "inner dimensions differ");
    assert_fits("x", x.values.len(), m, k, x.row_stride, x.column_stride);
    assert_fits("out", out.len(), m, n, out_row, 1);
    assert!(m == 1 || out_row >= n, "rows of the result overlap: stride {out_row}, {n} columns");
    assert!(epilogue.bias.is_none_or(|bias| bias.len() >= n), "too short a bias");
    w.check();
    #[cfg(target_arch = "x86_64")]
    if let Some(kernels) = Kernels::of(wanted.min(level())) {
        return blocks(kernels, x, w, (m, k, n), epilogue, out, out_row);
    }
    reference::linear(x, w, (m, k, n), epilogue, out, out_row);
}

/// The checked product, block by block of the inner dimension, panel by panel, rows by rows.
#[cfg(target_arch = "x86_64")]
fn blocks(
    kernels: Kernels,
    x: View<'_>,
    w: Right<'_>,
    (m, k, n): (usize, usize, usize),
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
) {
    let groups = m.div_ceil(kernels.rows());
    let mut begin = 0;
    // Without an inner dimension there is one empty block: the sum is zero, and the epilogue follows.
    loop {
        let end = k.min(begin + BLOCK);
        let last = end == k;
        let mut panel_of = |first: usize, columns: usize, right: *const f32, right_step: usize| {
            for group in 0..groups {
                let (top, bottom) = (m * group / groups, m * (group + 1) / groups);
                let call = Call {
                    k: end - begin,
                    left: x
                        .values
                        .as_ptr()
                        .wrapping_add(top * x.row_stride + begin * x.column_stride),
                    left_row: x.row_stride,
                    left_step: x.column_stride,
                    right,
                    right_step,
                    out: out.as_mut_ptr().wrapping_add(top * out_row + first),
                    out_row,
                    columns,
                    accumulate: epilogue.accumulate || begin > 0,
                    bias: match epilogue.bias {
                        Some(bias) if last => bias[first..].as_ptr(),
                        _ => std::ptr::null(),
                    },
                    relu: epilogue.relu && last,
                };
                // SAFETY: the level of `kernels` is one that the machine has. `bottom - top` is between one
                // and the smaller of `m` and the kernels' rows, `columns` between one and the width for that
                // many rows, which for fewer is no less; so `get` returns the kernel of just these rows and registers. Rows top..bottom of `x` and of `out`, inner indices begin..end and
                // columns first..first + columns lie inside of the matrices, which `linear_at` has
                // checked against their slices; `right` is such a panel (see below). `out` is borrowed
                // mutably and overlaps nothing.
                unsafe { kernels.get(bottom - top, columns)(&call) };
            }
        };
        match w {
            Right::Plain(view) => {
                for (first, columns) in cuts(kernels.width(m.min(kernels.rows())), n) {
                    let right = view.values.as_ptr().wrapping_add(begin * view.row_stride + first);
                    panel_of(first, columns, right, view.row_stride);
                }
            }
            Right::Packed(panels) => {
                for panel in panels {
                    let right = panel.values().as_ptr().wrapping_add(begin * panel.step());
                    assert!(
                        panel.columns() <= kernels.width(kernels.rows()),
                        "a panel for another level"
                    );
                    panel_of(panel.first(), panel.columns(), right, panel.step());
                }
            }
        }
        begin = end;
        if last {
            return;
        }
    }
}

/// `out = xᵀ * g`, or that added to `out`: the gradient of a weight from a tile of rows. `out` is row-major, its
/// rows `out_row` apart.
///
/// # Panics
///
/// Where the numbers of rows differ, a matrix does not fit its slice, columns of `g` are not contiguous, or
/// rows of `out` overlap: mistakes of the caller.
pub fn outer_product(x: View<'_>, g: View<'_>, accumulate: bool, out: &mut [f32], out_row: usize) {
    outer_product_at(level(), x, g, accumulate, out, out_row);
}

/// [`outer_product`] with the kernels of a level, or of what the machine has, whichever is lower: for tests
/// and benches.
///
/// # Panics
///
/// As [`outer_product`].
pub fn outer_product_at(
    wanted: Level,
    x: View<'_>,
    g: View<'_>,
    accumulate: bool,
    out: &mut [f32],
    out_row: usize,
) {
    let (m, n, rows) = (x.columns, g.columns, x.rows);
    if m == 0 || n == 0 {
        return;
    }
    assert_eq!(rows, g.rows, "numbers of rows differ");
    assert!(g.column_stride == 1, "columns of the right operand are contiguous");
    assert_fits("x", x.values.len(), rows, m, x.row_stride, x.column_stride);
    assert_fits("g", g.values.len(), rows, n, g.row_stride, 1);
    assert_fits("out", out.len(), m, n, out_row, 1);
    assert!(m == 1 || out_row >= n, "rows of the result overlap: stride {out_row}, {n} columns");
    #[cfg(target_arch = "x86_64")]
    if let Some(kernels) = Kernels::of(wanted.min(level())) {
        return outer_blocks(kernels, x, g, (m, n, rows), accumulate, out, out_row);
    }
    reference::outer_product(x, g, (m, n, rows), accumulate, out, out_row);
}

/// The checked product, block by block of the rows, panel by panel of `g`'s columns, columns of `x` by columns.
///
/// Both operands are read where they lie: broadcasting needs a float of `x` at a time, and a row of `g` is
/// contiguous. Tried and no better: packing a panel of `g`, which the first-level cache cannot keep
/// beside `x`. Packing all of it, with the columns of `x` outermost, gained two percent and would need memory.
#[cfg(target_arch = "x86_64")]
fn outer_blocks(
    kernels: Kernels,
    x: View<'_>,
    g: View<'_>,
    (m, n, rows): (usize, usize, usize),
    accumulate: bool,
    out: &mut [f32],
    out_row: usize,
) {
    let groups = m.div_ceil(kernels.rows());
    let mut begin = 0;
    loop {
        let end = rows.min(begin + OUTER_BLOCK);
        let x_from = x.values.as_ptr().wrapping_add(begin * x.row_stride);
        let g_from = g.values.as_ptr().wrapping_add(begin * g.row_stride);
        for (first, columns) in cuts(kernels.width(m.min(kernels.rows())), n) {
            for group in 0..groups {
                let (top, bottom) = (m * group / groups, m * (group + 1) / groups);
                let call = Call {
                    k: end - begin,
                    left: x_from.wrapping_add(top * x.column_stride),
                    left_row: x.column_stride,
                    left_step: x.row_stride,
                    right: g_from.wrapping_add(first),
                    right_step: g.row_stride,
                    out: out.as_mut_ptr().wrapping_add(top * out_row + first),
                    out_row,
                    columns,
                    accumulate: accumulate || begin > 0,
                    bias: std::ptr::null(),
                    relu: false,
                };
                // SAFETY: the level of `kernels` is one that the machine has. `bottom - top` is between
                // one and the smaller of `m` and the kernels' rows, `columns` between one and the width for
                // that many rows, which for fewer is no less; so `get` returns the kernel of just these rows
                // and registers. Columns top..bottom of `x` and
                // first..first + columns of `g`, in rows begin..end, and rows top..bottom and columns
                // first..first + columns of `out` lie inside of the matrices, which `outer_product_at` has
                // checked against their slices. `out` is borrowed mutably and overlaps nothing.
                unsafe { kernels.get(bottom - top, columns)(&call) };
            }
        }
        begin = end;
        if begin == rows {
            return;
        }
    }
}
