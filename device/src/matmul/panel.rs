//! A right operand laid out as the kernels read it.
//!
//! A product reads its right operand once for every few rows of the left one. Packed, a panel of it (all of
//! the inner dimension, the columns of one register tile) is contiguous, aligned to cache lines and its
//! last line filled up with zeros. Packing costs about what a few rows of the product cost, so it is
//! done once a step for the weights that all tiles of the batch share. A panel can be packed from a
//! transposed view as well, which is how an input's gradient reads the weight that the forward product read.

use super::View;
#[cfg(target_arch = "x86_64")]
use super::turn::turn;
use crate::simd::{Level, level};

/// Floats of a cache line, the unit of panels' widths.
pub(super) const LINE: usize = 16;

/// A cache line of floats.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

/// Some columns of a `k x n` matrix, packed. The whole matrix is the panels of [`Panel::list`] in their order.
#[derive(Clone, Debug)]
pub struct Panel {
    first: usize,
    columns: usize,
    k: usize,
    lines: Vec<Line>,
}

impl Panel {
    /// Empty panels for a `k x n` matrix, in column order, as wide as this machine's kernels want them.
    pub fn list(k: usize, n: usize) -> Vec<Self> {
        Self::list_at(level(), k, n)
    }

    /// The same for the kernels of one level.
    pub fn list_at(level: Level, k: usize, n: usize) -> Vec<Self> {
        let panel = |(first, columns): (usize, usize)| {
            let zero = Line([0.0; LINE]);
            Self { first, columns, k, lines: vec![zero; k * columns.div_ceil(LINE)] }
        };
        // As wide as the tile of the most rows.
        let most = match level {
            Level::Avx512 => 3 * LINE,
            Level::Avx2 | Level::Scalar => LINE,
        };
        cuts(most, n).map(panel).collect()
    }

    /// Floats of memory that the panels of a `k x n` matrix take.
    pub fn floats(k: usize, n: usize) -> usize {
        k * n.div_ceil(LINE) * LINE
    }

    /// Fills the panel with its columns of the whole matrix.
    ///
    /// # Panics
    ///
    /// Where `from` has not the `k` rows that the panel was made for, or too few columns.
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
                let row = &start[p * row_stride..][..self.columns];
                for (line, part) in lines.iter_mut().zip(row.chunks(LINE)) {
                    line.0[..part.len()].copy_from_slice(part);
                }
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
                    // SAFETY: `level` has found AVX-512. What is read are elements (p, j) of the matrix with p in
                    // done..done + LINE, which is below `k`, and j in first..first + LINE, which is below
                    // the panel's columns; they were checked against `values`. What is written are the lines
                    // p * width + number for these p, of `k * width` lines that are borrowed mutably.
                    unsafe {
                        let (from, to) = (start.as_ptr().add(done), to.add(done * width * LINE));
                        turn(from, column_stride, to, width * LINE);
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

    /// First column.
    pub(super) fn first(&self) -> usize {
        self.first
    }

    /// Number of columns.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Rows of the matrix.
    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// The packed floats: row after row, [`Panel::step`] apart.
    pub(super) fn values(&self) -> &[f32] {
        let floats = self.lines.len() * LINE;
        // SAFETY: `Line` is `repr(C)` with one array of `LINE` floats and, at 64 bytes, no padding; so the
        // lines are that many initialised floats in a row, borrowed for as long as `self`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast::<f32>(), floats) }
    }

    /// Floats from one row of the panel to the next.
    pub(super) fn step(&self) -> usize {
        self.columns.div_ceil(LINE) * LINE
    }
}

/// First column and number of columns of each panel of at most `most` columns (whole lines): as few panels as
/// there can be, as even as whole lines allow, so that no panel is much narrower than a kernel.
pub(super) fn cuts(most: usize, n: usize) -> impl Iterator<Item = (usize, usize)> {
    let lines = n.div_ceil(LINE);
    let panels = lines.div_ceil(most / LINE);
    (0..panels).map(move |panel| {
        let first = lines * panel / panels * LINE;
        let end = (lines * (panel + 1) / panels * LINE).min(n);
        (first, end - first)
    })
}
