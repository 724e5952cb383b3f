//! The products of a dense layer: blocks of 32 rows and up to 32 columns.

use super::super::scratch::OUTER_BLOCK;
use super::super::{Epilogue, View, assert_result_fits};
#[cfg(target_arch = "x86_64")]
use super::amx::Tiles;
use super::detect::{Instructions, Set};
#[cfg(target_arch = "x86_64")]
use super::dot;
use super::pack::{
    BLOCK, LINES, Line, Panel, Scratch, check, column_lines, grow, left_lines, pack_columns,
    pack_left,
};
#[cfg(any(test, not(target_arch = "x86_64")))]
use super::reference;
use super::sums::Sums;
use crate::simd::vectorised;

/// The number of rows of a block of the result, and the largest number of its columns.
const SIDE: usize = 2 * LINES;

/// The number of rows of the left operand that are packed at a time.
const ROWS: usize = 256;

/// Computes `out = x * w` with factors of bf16, and then the epilogue in f32. It is the forward
/// product of a layer or, with panels of the transposed weight, the gradient of its input. `out` is
/// row-major with `out_row` floats from one row to the next.
///
/// # Panics
///
/// Panics if the inner dimensions differ, a matrix does not fit its slice, `x` has neither
/// contiguous rows nor contiguous columns, the panels do not belong to one matrix, or rows of `out`
/// overlap. All of these are mistakes of the caller.
pub fn linear(
    instructions: Instructions,
    x: View<'_>,
    w: &[Panel],
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
    scratch: &mut Scratch,
) {
    linear_from(instructions, 0, x, w, epilogue, out, out_row, scratch);
}

/// Computes the product of [`linear`] with the rows of `w` from the row `first` on. Column `i` of
/// `x` is multiplied with row `first + i` of `w`.
///
/// # Panics
///
/// Panics in the same cases as [`linear`].
#[expect(clippy::too_many_arguments, reason = "those of a product, and where it begins")]
pub fn linear_from(
    instructions: Instructions,
    first: usize,
    x: View<'_>,
    w: &[Panel],
    epilogue: Epilogue<'_>,
    out: &mut [f32],
    out_row: usize,
    scratch: &mut Scratch,
) {
    // Whole blocks of the weight before `first` are left out. The columns between the beginning of
    // the next block and `first` are zeros of the left operand.
    let (skipped, zeros) = (first / BLOCK, first % BLOCK);
    let n = w.last().map_or(0, |last| last.first + last.columns);
    let (m, k) = (x.rows, zeros + x.columns);
    if m == 0 || n == 0 {
        return;
    }
    let mut end = 0;
    for panel in w {
        let fits = panel.first == end && panel.k == first + x.columns;
        assert!(fits, "not all panels, or not of this matrix");
        end += panel.columns;
    }
    check(x);
    assert_result_fits(out, m, n, out_row);
    assert!(epilogue.bias.is_none_or(|bias| bias.len() >= n), "too short a bias");
    for top in (0..m).step_by(ROWS) {
        let rows = ROWS.min(m - top);
        let Scratch { left, padded, .. } = &mut *scratch;
        let left = grow(left, left_lines(rows, k));
        pack_left(pad(rows_of(x, top, rows), zeros, padded), left);
        let panels = w.iter().map(|panel| {
            let lines = &panel.lines[column_lines(skipped * BLOCK, panel.columns)..];
            (panel.first, panel.columns, lines)
        });
        multiply(
            instructions,
            left,
            panels,
            k,
            epilogue,
            (rows, &mut out[top * out_row..], out_row),
        );
    }
}

/// Computes `out = xᵀ * g` with factors of bf16, or adds this product to `out`. It is the gradient
/// of a weight from a tile of rows. `out` is row-major with `out_row` floats from one row to the
/// next. Of more than [`OUTER_BLOCK`](super::super::OUTER_BLOCK) rows, the sums of blocks of so
/// many rows are added to `out` in order.
///
/// # Panics
///
/// Panics if the numbers of rows differ, a matrix does not fit its slice, an operand has neither
/// contiguous rows nor contiguous columns, or rows of `out` overlap. All of these are mistakes of
/// the caller.
pub fn outer_product(
    instructions: Instructions,
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
    check(x);
    check(g);
    assert_result_fits(out, m, n, out_row);
    let mut begin = 0;
    // Without rows there is one empty block, whose sums are zero.
    loop {
        let k = OUTER_BLOCK.min(rows - begin);
        let Scratch { left, right, .. } = &mut *scratch;
        let left = grow(left, left_lines(m, k));
        pack_left(rows_of(x, begin, k).transposed(), left);
        let right = grow(right, column_lines(k, n));
        let mut rest = &mut *right;
        for first in (0..n).step_by(SIDE) {
            let columns = SIDE.min(n - first);
            let (panel, behind) = rest.split_at_mut(column_lines(k, columns));
            pack_columns(rows_of(g, begin, k), first, columns, panel);
            rest = behind;
        }
        let mut rest = &*right;
        let panels = (0..n).step_by(SIDE).map(|first| {
            let columns = SIDE.min(n - first);
            let (panel, behind) = rest.split_at(column_lines(k, columns));
            rest = behind;
            (first, columns, panel)
        });
        let epilogue = Epilogue { accumulate: accumulate || begin > 0, ..Epilogue::default() };
        multiply(instructions, left, panels, k, epilogue, (m, out, out_row));
        begin += k;
        if begin == rows {
            return;
        }
    }
}

/// Returns a matrix with this many columns of zeros before its own. Without such columns, it is the
/// matrix itself.
fn pad<'a>(x: View<'a>, zeros: usize, padded: &'a mut Vec<f32>) -> View<'a> {
    if zeros == 0 {
        return x;
    }
    let columns = zeros + x.columns;
    padded.clear();
    padded.resize(x.rows * columns, 0.0);
    for (row, to) in padded.chunks_exact_mut(columns).enumerate() {
        for (column, to) in to[zeros..].iter_mut().enumerate() {
            *to = x.values[row * x.row_stride + column * x.column_stride];
        }
    }
    View::new(padded, x.rows, columns, columns)
}

/// Returns `count` rows of a matrix, from the row `first` on.
fn rows_of(view: View<'_>, first: usize, count: usize) -> View<'_> {
    let start = (first * view.row_stride).min(view.values.len());
    View { values: &view.values[start..], rows: count, ..view }
}

/// Multiplies packed operands after their matrices were checked. `panels` has the first column, the
/// number of columns and the lines of each panel. `k` is the inner dimension.
fn multiply<'a>(
    instructions: Instructions,
    left: &[Line],
    panels: impl Iterator<Item = (usize, usize, &'a [Line])>,
    k: usize,
    epilogue: Epilogue<'_>,
    (m, out, out_row): (usize, &mut [f32], usize),
) {
    let blocks = k.div_ceil(BLOCK);
    let kernel = Kernel::new(instructions.set());
    let mut sums = Sums::ZERO;
    for (first, columns, right) in panels {
        let bias = epilogue.bias.map(|bias| &bias[first..first + columns]);
        for top in (0..m).step_by(SIDE) {
            let left = &left[top * blocks..][..SIDE * blocks];
            kernel.compute(blocks, left, right, columns.div_ceil(LINES), &mut sums);
            let rows = SIDE.min(m - top);
            let out = &mut out[top * out_row + first..];
            vectorised(
                #[inline(always)]
                || sums.write((rows, columns), Epilogue { bias, ..epilogue }, out, out_row),
            );
        }
    }
}

/// The instructions, ready for the blocks of one product.
pub(super) enum Kernel {
    #[cfg(target_arch = "x86_64")]
    Amx(Tiles),
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The loops of the definition, for tests and for builds for other processors.
    #[cfg(any(test, not(target_arch = "x86_64")))]
    Plain(Set),
}

impl Kernel {
    fn new(set: Set) -> Self {
        #[cfg(target_arch = "x86_64")]
        return match set {
            // SAFETY: `Instructions` with this set exists only if the machine has AMX and the
            // process may use it.
            Set::Amx => Self::Amx(unsafe { Tiles::new() }),
            Set::Avx512 => Self::Avx512,
        };
        #[cfg(not(target_arch = "x86_64"))]
        Self::Plain(set)
    }

    /// Computes the sums of two tiles of rows and `width` tiles of columns. The operands have as
    /// many tiles for each of the `blocks` blocks of the inner dimension.
    pub(super) fn compute(
        &self,
        blocks: usize,
        left: &[Line],
        right: &[Line],
        width: usize,
        sums: &mut Sums,
    ) {
        assert!(left.len() >= blocks * SIDE && right.len() >= blocks * width * LINES);
        match self {
            // SAFETY: both slices have the tiles of all blocks, as was just checked. The machine
            // has the instructions, because `Kernel` was made from a value that shows it.
            #[cfg(target_arch = "x86_64")]
            Self::Amx(tiles) if width == 1 => unsafe {
                tiles.one(blocks, left.as_ptr(), right.as_ptr(), sums);
            },
            // SAFETY: as above. A panel has one or two tiles of columns.
            #[cfg(target_arch = "x86_64")]
            Self::Amx(tiles) => unsafe {
                assert!(width == 2);
                tiles.two(blocks, left.as_ptr(), right.as_ptr(), sums);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 if width == 1 => unsafe {
                dot::block::<1>(blocks, left.as_ptr(), right.as_ptr(), sums);
            },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe {
                assert!(width == 2);
                dot::block::<2>(blocks, left.as_ptr(), right.as_ptr(), sums);
            },
            #[cfg(any(test, not(target_arch = "x86_64")))]
            Self::Plain(set) => plain(*set, blocks, left, right, width, sums),
        }
    }
}

/// Computes a block by the definition of its sums.
#[cfg(any(test, not(target_arch = "x86_64")))]
fn plain(set: Set, blocks: usize, left: &[Line], right: &[Line], width: usize, sums: &mut Sums) {
    let value = |bits: u16| f32::from_bits(u32::from(bits) << 16);
    for row in 0..SIDE {
        for column in 0..width * LINES {
            let (half, row) = (row / LINES, row % LINES);
            let (tile, column) = (column / LINES, column % LINES);
            let pairs = (0..blocks * BLOCK).map(|place| {
                let (block, place) = (place / BLOCK, place % BLOCK);
                let x = left[(2 * block + half) * LINES + row].0[place];
                let y = right[(width * block + tile) * LINES + place / 2];
                (value(x), value(y.0[2 * column + place % 2]))
            });
            sums.0[(2 * half + tile) * LINES + row][column] = reference::sum(set, pairs);
        }
    }
}
