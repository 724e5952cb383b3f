//! The packed form of operands: tiles of bf16 in the layout that the instructions read.
//!
//! A tile has sixteen lines of 32 numbers. A line of the left operand has the factors of one row
//! for 32 places of the inner dimension. A line of the right operand has two places of the inner
//! dimension for sixteen columns, and the two factors of a column are neighbours. Seen as words of
//! two numbers, one kind of tile is the transpose of the other. Factors behind the end of the inner
//! dimension are zero.

#[cfg(target_arch = "x86_64")]
use super::super::transpose::transpose;
use super::super::{View, assert_fits};
#[cfg(target_arch = "x86_64")]
use super::detect::has_avx512;
use super::round::round;
#[cfg(target_arch = "x86_64")]
use super::tile::{pairs_tile, rows_tile};

/// The number of lines of a tile. It is also the number of words of a line.
pub(super) const LINES: usize = 16;

/// The number of places of the inner dimension in a tile.
pub(super) const BLOCK: usize = 32;

/// The number of columns of a panel.
const PANEL: usize = 2 * LINES;

/// A line of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u16; BLOCK]);

impl Line {
    pub(super) const ZERO: Self = Self([0; BLOCK]);
}

/// Some columns of a packed right operand, with their whole inner dimension. All panels of
/// [`Panel::list`] together hold the whole matrix, in column order.
#[derive(Clone, Debug)]
pub struct Panel {
    pub(super) first: usize,
    pub(super) columns: usize,
    pub(super) k: usize,
    pub(super) lines: Vec<Line>,
}

impl Panel {
    /// Creates empty panels for a `k x n` matrix, in column order.
    pub fn list(k: usize, n: usize) -> Vec<Self> {
        let panel = |first: usize| {
            let columns = PANEL.min(n - first);
            let lines = vec![Line::ZERO; column_lines(k, columns)];
            Self { first, columns, k, lines }
        };
        (0..n).step_by(PANEL).map(panel).collect()
    }

    /// Returns the number of bytes of the panels of a `k x n` matrix.
    pub fn bytes(k: usize, n: usize) -> usize {
        column_lines(k, n) * size_of::<Line>()
    }

    /// Rounds the columns of the panel, and fills the panel with them. `from` is the whole matrix.
    ///
    /// # Panics
    ///
    /// Panics if `from` does not have the `k` rows of the panel, has too few columns, or has
    /// neither contiguous rows nor contiguous columns.
    pub fn fill(&mut self, from: View<'_>) {
        let Self { first, columns, k, ref mut lines } = *self;
        assert!(from.rows == k && from.columns >= first + columns, "not this panel's matrix");
        check(from);
        pack_columns(from, first, columns, lines);
    }
}

/// The memory into which products pack their operands. It grows to the size of the largest product,
/// and is then reused.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) left: Vec<Line>,
    pub(super) right: Vec<Line>,
    /// A left operand with columns of zeros before its own.
    pub(super) padded: Vec<f32>,
}

/// Returns the number of lines of a packed left operand.
pub(super) fn left_lines(m: usize, k: usize) -> usize {
    m.div_ceil(2 * LINES) * k.div_ceil(BLOCK) * 2 * LINES
}

/// Returns the number of lines of packed columns.
pub(super) fn column_lines(k: usize, columns: usize) -> usize {
    k.div_ceil(BLOCK) * columns.div_ceil(LINES) * LINES
}

/// Returns the first lines of a memory, which grows if it has fewer.
pub(super) fn grow(lines: &mut Vec<Line>, count: usize) -> &mut [Line] {
    if lines.len() < count {
        lines.resize(count, Line::ZERO);
    }
    &mut lines[..count]
}

/// Panics if a matrix cannot be packed.
pub(super) fn check(view: View<'_>) {
    let View { values, rows, columns, row_stride, column_stride } = view;
    assert!(row_stride == 1 || column_stride == 1, "rows or columns are contiguous");
    assert_fits("to pack", values.len(), rows, columns, row_stride, column_stride);
}

/// Packs a left operand that was checked. Two tiles of rows follow each other for each block of the
/// inner dimension.
pub(super) fn pack_left(from: View<'_>, lines: &mut [Line]) {
    let blocks = from.columns.div_ceil(BLOCK);
    for (tile, lines) in lines.chunks_exact_mut(LINES).enumerate() {
        let (pair, block, half) = (tile / (2 * blocks), tile / 2 % blocks, tile % 2);
        pack_tile(from, (2 * pair + half) * LINES, block * BLOCK, Order::Rows, lines);
    }
}

/// Packs columns of a right operand that was checked.
pub(super) fn pack_columns(from: View<'_>, first: usize, columns: usize, lines: &mut [Line]) {
    let width = columns.div_ceil(LINES);
    let turned = View { columns: first + columns, ..from }.transposed();
    for (tile, lines) in lines.chunks_exact_mut(LINES).enumerate() {
        let (block, number) = (tile / width, tile % width);
        pack_tile(turned, first + number * LINES, block * BLOCK, Order::Pairs, lines);
    }
}

/// The order of the numbers of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// A line for each row, as in a left operand.
    Rows,
    /// A line for each pair of columns, as in a right operand.
    Pairs,
}

/// Packs the rows from `top` and the columns from `first` of a matrix into a tile. What is outside
/// of the matrix is zero.
fn pack_tile(from: View<'_>, top: usize, first: usize, order: Order, lines: &mut [Line]) {
    let rows = from.rows.saturating_sub(top).min(LINES);
    let columns = from.columns.saturating_sub(first).min(BLOCK);
    if rows == 0 || columns == 0 {
        return lines.fill(Line::ZERO);
    }
    let values = &from.values[top * from.row_stride + first * from.column_stride..];
    let part = View { values, rows, columns, ..from };
    #[cfg(target_arch = "x86_64")]
    if has_avx512() && lines.len() == LINES {
        let to = lines.as_mut_ptr();
        let is_straight = part.column_stride == 1;
        // SAFETY: the processor has AVX512-BF16. `part` has `rows` rows of `columns` numbers in
        // its slice, because the matrix was checked, and at most sixteen rows and 32 columns.
        // Sixteen lines are borrowed for `to` or are `turned`, which is as large.
        unsafe {
            let from = part.values.as_ptr();
            let pack = |to: *mut Line| match is_straight {
                true => rows_tile(from, part.row_stride, rows, columns, to),
                false => pairs_tile(from, part.column_stride, columns, rows, to),
            };
            if is_straight == (order == Order::Rows) {
                pack(to);
            } else {
                let mut turned = [Line::ZERO; LINES];
                pack(turned.as_mut_ptr());
                transpose(turned.as_ptr().cast(), LINES, to.cast(), LINES);
            }
        }
        return;
    }
    pack_plainly(part, order, lines);
}

/// Packs a tile by its definition, on machines without the instructions.
fn pack_plainly(from: View<'_>, order: Order, lines: &mut [Line]) {
    lines.fill(Line::ZERO);
    for row in 0..from.rows {
        for column in 0..from.columns {
            let value = round(from.values[row * from.row_stride + column * from.column_stride]);
            match order {
                Order::Rows => lines[row].0[column] = value,
                Order::Pairs => lines[column / 2].0[2 * row + column % 2] = value,
            }
        }
    }
}
