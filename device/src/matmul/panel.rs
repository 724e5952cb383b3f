//! The packed form of a right operand, in the layout that the kernels read.
//!
//! A product reads its right operand once for every few rows of the left operand. A packed panel
//! holds some columns of the right operand, with their whole inner dimension. It has the columns of
//! one register tile. The panel is contiguous and aligned to cache lines, and its last line is
//! padded with zeros. Packing costs about as much as a few rows of the product. So if all tiles of
//! a batch use a weight, it is packed once per step. A panel can also be packed from a transposed
//! view. The gradient of an input reads the weight of the forward product in this way.

use super::View;
use super::scratch::{LINE, Line, copy_row};
#[cfg(target_arch = "x86_64")]
use super::transpose::transpose;
use crate::simd::{Level, level};

/// A packed group of columns of a `k x n` matrix. All panels of [`Panel::list`] together hold the
/// whole matrix, in column order.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The number of the panel's first column in the matrix.
    pub(super) first: usize,
    /// The number of columns of the panel.
    pub(super) columns: usize,
    /// The number of rows of the matrix.
    pub(super) k: usize,
    lines: Vec<Line>,
}

impl Panel {
    /// Creates empty panels for a `k x n` matrix, in column order. Their width fits the kernels of
    /// this machine.
    pub fn list(k: usize, n: usize) -> Vec<Self> {
        Self::list_at(level(), k, n)
    }

    /// Creates empty panels for the kernels of one level.
    pub fn list_at(level: Level, k: usize, n: usize) -> Vec<Self> {
        let panel = |(first, columns): (usize, usize)| {
            let zero = Line([0.0; LINE]);
            Self { first, columns, k, lines: vec![zero; k * columns.div_ceil(LINE)] }
        };
        // The panel is as wide as the tile with the largest number of rows.
        let most = match level {
            Level::Avx512 => 3 * LINE,
            Level::Avx2 | Level::Scalar => LINE,
        };
        column_groups(most, n).map(panel).collect()
    }

    /// Returns the number of floats of memory that the panels of a `k x n` matrix take.
    pub fn floats(k: usize, n: usize) -> usize {
        k * n.div_ceil(LINE) * LINE
    }

    /// Fills the panel with its columns of the whole matrix.
    ///
    /// # Panics
    ///
    /// Panics if `from` does not have the `k` rows of the panel, or has too few columns.
    pub fn fill(&mut self, from: View<'_>) {
        let View { values, rows, columns, row_stride, column_stride } = from;
        assert!(rows == self.k && columns >= self.first + self.columns, "not this panel's matrix");
        super::assert_fits("to pack", values.len(), rows, columns, row_stride, column_stride);
        let width = self.columns.div_ceil(LINE);
        if self.k == 0 || width == 0 {
            return;
        }
        let start = &values[self.first * column_stride..];
        if column_stride == 1 {
            for (p, lines) in self.lines.chunks_exact_mut(width).enumerate() {
                copy_row(&start[p * row_stride..][..self.columns], lines);
            }
            return;
        }
        for (number, first) in (0..self.columns).step_by(LINE).enumerate() {
            let columns = LINE.min(self.columns - first);
            let start = &start[first * column_stride..];
            let mut done = 0;
            #[cfg(target_arch = "x86_64")]
            if row_stride == 1 && columns == LINE && level() == Level::Avx512 {
                let to: *mut f32 = self.lines[number..].as_mut_ptr().cast();
                while done + LINE <= self.k {
                    // SAFETY: `level` has found AVX-512. The call reads elements (p, j) of the
                    // matrix with p in done..done + LINE, which is below `k`, and j in first..first
                    // + LINE, which is below the panel's columns; both were checked against
                    // `values`. It writes the lines p * width + number for these p, of `k * width`
                    // lines that are borrowed mutably.
                    unsafe {
                        let (from, to) = (start.as_ptr().add(done), to.add(done * width * LINE));
                        transpose(from, column_stride, to, width * LINE);
                    }
                    done += LINE;
                }
            }
            for (p, line) in self.lines[number..].iter_mut().step_by(width).enumerate().skip(done) {
                for (j, value) in line.0[..columns].iter_mut().enumerate() {
                    *value = start[p * row_stride + j * column_stride];
                }
            }
        }
    }

    /// Returns the packed floats, row after row. The distance between rows is [`Panel::step`].
    pub(super) fn values(&self) -> &[f32] {
        let floats = self.lines.len() * LINE;
        // SAFETY: `Line` is `repr(C)` with one array of `LINE` floats and, at 64 bytes, no padding.
        // So the lines are that many initialised floats in a row, borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<f32>(), floats) }
    }

    /// Returns the number of floats from one row of the panel to the next.
    pub(super) fn step(&self) -> usize {
        self.columns.div_ceil(LINE) * LINE
    }
}

/// Yields the first column and the number of columns of each panel. A panel has at most `most`
/// columns and consists of whole lines. There are as few panels as possible, and their widths are
/// nearly equal, so that no panel is much narrower than a kernel.
pub(super) fn column_groups(most: usize, n: usize) -> impl Iterator<Item = (usize, usize)> {
    let lines = n.div_ceil(LINE);
    let panels = lines.div_ceil(most / LINE);
    (0..panels).map(move |panel| {
        let first = lines * panel / panels * LINE;
        let end = (lines * (panel + 1) / panels * LINE).min(n);
        (first, end - first)
    })
}
