//! The buffers of lanes and threads.

use std::ops::{Deref, DerefMut, Range};

use zillion_device::matmul::Scratch;
use zillion_feature::Pooling;

use crate::graph::Dim;
use crate::inputs::{ColumnView, Inputs};
use crate::ops::kernel::ListColumn;
use crate::placement::{LINE, Placement, Width};
use crate::trace::Event;

/// A contiguous share of the batch, with its rows of every value that outlives a pass and its
/// partials of the sums over the batch.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) rows: Range<usize>,
    pub(crate) wide: Vec<Buffer>,
    pub(crate) partials: Vec<Buffer>,
    /// Time by node, if the run is profiled.
    pub(crate) nanos: Vec<u64>,
    /// When each node was computed, if the run is recorded.
    pub(crate) events: Vec<Event>,
    pub(crate) is_recorded: bool,
}

impl Lane {
    pub(crate) fn new(placement: &Placement) -> Self {
        let wide = buffers(placement.wide_buffers.len());
        let partials = buffers(placement.partial_lens.len());
        Self { wide, partials, ..Self::default() }
    }

    /// Sets the share, and makes room for it where there is too little.
    pub(crate) fn set_rows(
        &mut self,
        rows: Range<usize>,
        placement: &Placement,
        inputs: &Inputs<'_>,
    ) {
        if !rows.is_empty() {
            for (buffer, width) in self.wide.iter_mut().zip(&placement.wide_buffers) {
                buffer.grow(inputs.span(width.rows, &rows).len() * width.cols);
            }
            for (partial, &len) in self.partials.iter_mut().zip(&placement.partial_lens) {
                partial.grow(len);
            }
        }
        self.rows = rows;
    }
}

fn buffers(count: usize) -> Vec<Buffer> {
    std::iter::repeat_with(Buffer::default).take(count).collect()
}

/// Floats that begin at a cache line, so that rows whose stride is a number of lines do, too.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    floats: Vec<f32>,
    start: usize,
}

impl Buffer {
    /// Makes room for `len` floats where there is too little. What it held is of no use then, so that
    /// nothing need be copied.
    pub(crate) fn grow(&mut self, len: usize) {
        if self.len() < len {
            self.floats = Vec::new();
            self.floats = vec![0.0; len + LINE - 1];
            let to_line = self.floats.as_ptr().align_offset(LINE * size_of::<f32>());
            // An allocation knows its place, but the function may say that it does not.
            self.start = to_line.min(LINE - 1);
            self.floats.truncate(self.start + len);
        }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.floats[self.start..]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.floats[self.start..]
    }
}

/// One thread's buffers for the values of a tile.
#[derive(Debug)]
pub(crate) struct TileBuffers {
    pub(crate) slots: Vec<Buffer>,
    /// What products pack for themselves.
    pub(crate) scratch: Scratch,
}

impl TileBuffers {
    pub(crate) fn new(buffers: usize) -> Self {
        Self { slots: self::buffers(buffers), scratch: Scratch::default() }
    }

    /// Makes room for tiles of up to so many rows, and of values of each column, where there is too
    /// little.
    pub(crate) fn fit(&mut self, buffers: &[Width], rows: usize, values: &[usize]) {
        for (slot, width) in self.slots.iter_mut().zip(buffers) {
            let rows = match width.rows {
                Dim::Values(column) => values[column],
                _ => rows,
            };
            slot.grow(rows * width.cols);
        }
    }
}

impl ListColumn {
    pub(crate) fn clear(&mut self) {
        self.row_of.clear();
        self.locate.clear();
        // Emptied, not dropped: their memory serves the next step.
        self.factors.iter_mut().for_each(|(_, factors)| factors.clear());
    }

    /// Notes the row of each value.
    pub(crate) fn set_rows(&mut self, column: &ColumnView<'_>, rows: usize) {
        if column.offsets.is_some() {
            self.row_of.reserve(column.inverse.len());
            for row in 0..rows {
                let values = column.values_of(row).len();
                self.row_of.extend(std::iter::repeat_n(row as u32, values));
            }
        }
    }

    /// Notes where lanes, which are given by their rows, keep each value.
    pub(crate) fn set_places(
        &mut self,
        column: &ColumnView<'_>,
        lanes: impl Iterator<Item = Range<usize>>,
    ) {
        if column.offsets.is_some() {
            self.locate.reserve(column.inverse.len());
            for (lane, rows) in lanes.enumerate() {
                let values = column.values_before(rows.end) - column.values_before(rows.start);
                self.locate.extend((0..values as u32).map(|local| (lane as u32) << 24 | local));
            }
        }
    }

    /// Computes the factors of one way of pooling: the weight, for a mean over the sum of the list's
    /// weights, for sqrtn over the root of the sum of their squares (as TensorFlow has it). A list
    /// whose weights sum to zero pools to zeros.
    pub(crate) fn set_factors(&mut self, column: &ColumnView<'_>, pooling: Pooling, rows: usize) {
        let averaged = matches!(pooling, Pooling::Mean | Pooling::Sqrtn);
        if column.weights.is_none() && (!averaged || column.offsets.is_none()) {
            return;
        }
        let index = self.factors.iter().position(|(p, _)| *p == pooling).unwrap_or_else(|| {
            self.factors.push((pooling, Vec::new()));
            self.factors.len() - 1
        });
        let factors = &mut self.factors[index].1;
        if !factors.is_empty() {
            return;
        }
        factors.reserve(column.inverse.len());
        for row in 0..rows {
            let values = column.values_of(row);
            let count = values.len() as f32;
            let weights = column.weights.map(|w| &w[values.clone()]);
            let sum = |f: fn(f32) -> f32| weights.map_or(count, |w| w.iter().map(|&w| f(w)).sum());
            let divisor = match pooling {
                Pooling::Mean => sum(|w| w),
                Pooling::Sqrtn => sum(|w| w * w).sqrt(),
                Pooling::Sum | Pooling::Max => 1.0,
            };
            let by = if divisor == 0.0 { 0.0 } else { 1.0 / divisor };
            match weights {
                Some(weights) => factors.extend(weights.iter().map(|w| w * by)),
                None => factors.extend(std::iter::repeat_n(by, values.len())),
            }
        }
    }
}
