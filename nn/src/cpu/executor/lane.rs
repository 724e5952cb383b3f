//! The buffers of lanes and threads.

use std::ops::{Deref, DerefMut, Range};

use zillion_device::matmul::{Scratch, bf16};

use crate::cpu::placement::{LINE, Placement};
use crate::graph::shape::Dim;
use crate::inputs::Inputs;
use crate::lowered::Width;
use crate::timeline::Event;

/// A contiguous part of the batch, with its partial sums over the batch. For each value that
/// outlives a pass, the lane has a buffer with its own rows of this value.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) rows: Range<usize>,
    pub(crate) wide: Vec<Buffer>,
    pub(crate) partials: Vec<Buffer>,
    /// The time of each node in nanoseconds, if the run is timed.
    pub(crate) nanos: Vec<u64>,
    /// The events of the lane, if the run is recorded.
    pub(crate) events: Vec<Event>,
    pub(crate) is_recorded: bool,
}

impl Lane {
    pub(crate) fn new(placement: &Placement) -> Self {
        let wide = buffers(placement.wide_buffers.len());
        let partials = buffers(placement.partial_lens.len());
        Self { wide, partials, ..Self::default() }
    }

    /// Sets the range of rows of the batch that belong to the lane. Buffers that are too small for
    /// these rows grow.
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

    /// Returns the total capacity of the buffers in floats.
    pub(crate) fn capacity(&self) -> usize {
        self.wide.iter().chain(&self.partials).map(Buffer::capacity).sum()
    }
}

fn buffers(count: usize) -> Vec<Buffer> {
    std::iter::repeat_with(Buffer::default).take(count).collect()
}

/// A buffer of floats whose first float is at the beginning of a cache line. If the stride of its
/// rows is a multiple of a line, each row begins at a line too.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    floats: Vec<f32>,
    start: usize,
}

impl Buffer {
    /// Grows the buffer to `len` floats if it is smaller. If it grows, its old contents are lost.
    pub(crate) fn grow(&mut self, len: usize) {
        if self.len() < len {
            self.floats = Vec::new();
            self.floats = vec![0.0; len + LINE - 1];
            let to_line = self.floats.as_ptr().align_offset(LINE * size_of::<f32>());
            // The function may be unable to compute the offset, so its result is limited.
            self.start = to_line.min(LINE - 1);
            self.floats.truncate(self.start + len);
        }
    }

    fn capacity(&self) -> usize {
        self.floats.capacity()
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

/// The buffers of one thread for the values of a tile.
#[derive(Debug, Default)]
pub(crate) struct TileBuffers {
    pub(crate) slots: Vec<Buffer>,
    /// The memory into which products pack their operands.
    pub(crate) scratch: Scratch,
    /// The memory into which products of bf16 pack their operands.
    pub(crate) narrow: bf16::Scratch,
}

impl TileBuffers {
    pub(crate) fn new(buffers: usize) -> Self {
        Self { slots: self::buffers(buffers), ..Self::default() }
    }

    /// Grows the buffers that are too small for tiles with `rows` rows, and with `values[i]` values
    /// of column i.
    pub(crate) fn fit(&mut self, buffers: &[Width], rows: usize, values: &[usize]) {
        for (slot, width) in self.slots.iter_mut().zip(buffers) {
            let rows = match width.rows {
                Dim::Values(column) => values[column],
                _ => rows,
            };
            slot.grow(rows * width.cols);
        }
    }

    /// Returns the total capacity of the buffers in floats.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.iter().map(Buffer::capacity).sum()
    }
}
