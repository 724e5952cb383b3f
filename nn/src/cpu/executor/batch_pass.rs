//! One pass over the batch on one thread. Each tile of a lane goes through all operations of a
//! phase before the next tile begins.

use std::ops::Range;
use std::thread;
use std::time::Instant;

use super::*;
use crate::cpu::program::{Phase, Step};
use crate::graph::shape::Shape;
use crate::ops::kernel::{Tile, View, ViewMut};
use crate::ops::{self, MAX_INPUTS, Partial};

/// The state that all threads of a pass read.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(crate) program: &'a Program,
    pub(crate) consts: &'a [Vec<f32>],
    pub(crate) params: &'a Params,
    pub(crate) inputs: &'a Inputs<'a>,
    pub(crate) lists: &'a [ListColumn],
    pub(crate) packing: &'a Packing,
    pub(crate) narrow: Option<&'a Narrow>,
    pub(crate) seed: StepSeed,
}

impl<'a> Shared<'a> {
    /// Returns a view of a constant or of a table's rows, or `None` for other nodes.
    fn fixed(&self, id: NodeId) -> Option<View<'a>> {
        let shape = self.program.lowered.graph.shape(id);
        let (data, from, full): (&'a [f32], usize, usize) =
            match self.program.placement.places[id.0 as usize] {
                Place::Rows { table } => {
                    let table = &self.inputs.tables[table];
                    (table.values, 0, table.stride)
                }
                Place::Param { param, offset } => (self.params.value(param), offset, shape.cols),
                Place::Const { slot, offset } => (&self.consts[slot], offset, shape.cols),
                _ => return None,
            };
        // A matrix of one row stands for all rows of the other operand.
        let stride = if shape.rows == Dim::Const(1) { 0 } else { full };
        Some(View { data: &data[from..], stride, cols: shape.cols })
    }

    /// Computes a constant that depends only on other constants.
    pub(crate) fn global(&self, id: NodeId, out: &mut [f32]) {
        let node = self.program.lowered.graph.node(id);
        let rows_of = |shape: Shape| match shape.rows {
            Dim::Const(rows) => rows,
            _ => 0,
        };
        let out_rows = rows_of(node.shape);
        let cols = node.shape.cols;

        let rows = match node.inputs.first() {
            Some(&first) if ops::sums_rows(&node.op) => {
                rows_of(self.program.lowered.graph.shape(first))
            }
            _ => out_rows,
        };
        if node.op == Op::Concat {
            let mut start = 0;
            for &part in &node.inputs {
                if let Some(view) = self.fixed(part) {
                    let mut out = ViewMut { data: &mut *out, stride: cols, cols };
                    ops::copy_part(out_rows, view, &mut out, start);
                    start += view.cols;
                }
            }
            return;
        }
        let mut views = [View::default(); MAX_INPUTS];
        for (view, &input) in views.iter_mut().zip(&node.inputs) {
            *view = self.fixed(input).unwrap_or_default();
        }
        let total = match (&node.op, node.inputs.get(1)) {
            (Op::BatchNormRunning { .. }, Some(&stats)) => self.program.lowered.work_rows(stats),
            _ => Dim::Batch,
        };
        let mut tile = self.tile(0..self.inputs.rows, total);
        (tile.first_row, tile.rows) = (0, rows);
        let out = ViewMut { data: out, stride: cols, cols };
        ops::forward(&node.op, &tile, &views[..node.inputs.len()], out);
    }

    /// Returns the tile for a range of rows of the batch. `rows` tells whether the tile consists of
    /// these rows, or of their values in a column.
    fn tile(&self, batch: Range<usize>, rows: Dim) -> Tile<'a> {
        let span = self.inputs.span(rows, &batch);
        Tile {
            inputs: self.inputs,
            lists: self.lists,
            packed: None,
            batch,
            first_row: span.start,
            rows: span.len(),
            total_rows: self.inputs.span(rows, &(0..self.inputs.rows)).len(),
            seed: self.seed,
        }
    }

    /// Runs the steps of a phase on each tile of a lane. Ends early if the watch stops the run.
    pub(crate) fn lane_pass(
        &self,
        (number, phase): (u32, &Phase),
        (index, lane): (u32, &mut Lane),
        buffers: &mut TileBuffers,
        timed: bool,
        watch: &Watch<'_>,
    ) {
        let rows = lane.rows.clone();
        let entered = timed.then(|| (thread::current().id(), Instant::now()));
        let note = |lane: &mut Lane, work, thread, begin, end| {
            if lane.is_recorded {
                lane.events.push(Event { work, lane: Some(index), thread, begin, end });
            }
        };
        let mut first = rows.start;
        while first < rows.end && !watch.stops() {
            let batch = self.program.lowered.tile(self.inputs, first, rows.end);
            first = batch.end;
            for &step in &phase.tile {
                let begun = entered.map(|(thread, _)| (thread, Instant::now()));
                let node = self.step(step, &batch, lane, buffers);
                if let Some((thread, begin)) = begun {
                    let end = Instant::now();
                    lane.nanos[node.0 as usize] += (end - begin).as_nanos() as u64;
                    note(lane, Work::Node(node), thread, begin, end);
                }
            }
        }
        if let Some((thread, begin)) = entered {
            note(lane, Work::Pass(number), thread, begin, Instant::now());
        }
    }

    /// Returns the number of rows of the lane before the tile `batch`. `rows` tells whether rows of
    /// the batch or values of a column are counted.
    fn rows_before(&self, rows: Dim, lane: &Lane, batch: &Range<usize>) -> usize {
        self.inputs.span(rows, &(lane.rows.start..batch.start)).len()
    }

    /// Runs one step for one tile of the batch.
    fn step(
        &self,
        step: Step,
        batch: &Range<usize>,
        lane: &mut Lane,
        buffers: &mut TileBuffers,
    ) -> NodeId {
        let (Step::Compute(id)
        | Step::ComputeInPlace { id, .. }
        | Step::Accumulate(id)
        | Step::CopyPart { concat: id, .. }) = step;
        let node = self.program.lowered.graph.node(id);
        let rows = self.program.lowered.work_rows(id);
        let mut tile = self.tile(batch.clone(), rows);
        tile.packed = self.packing.of(id);
        if tile.rows == 0 {
            // The tile has no values in a column of lists.
            return id;
        }
        let rows_before = self.rows_before(rows, lane, batch);
        let mut narrow = self.narrow.and_then(|narrow| narrow.product(id));
        if let Some(product) = &mut narrow {
            product.scratch = std::mem::take(&mut buffers.narrow);
        }
        if let Step::Accumulate(_) = step {
            let Some(slot) = self.program.placement.partials[id.0 as usize] else { return id };
            let mut values = std::mem::take(&mut lane.partials[slot]);
            let scratch = std::mem::take(&mut buffers.scratch);
            let views = self.views(&node.inputs, batch, lane, buffers);
            let mut partial = Partial { rows_before, values: &mut values, scratch };
            let views = &views[..node.inputs.len()];
            if let Some(mut product) = narrow {
                ops::accumulate_narrow(&mut product, &node.op, &tile, views, &mut partial);
                buffers.narrow = product.scratch;
            } else {
                ops::accumulate(&node.op, &tile, views, &mut partial);
            }
            buffers.scratch = partial.scratch;
            lane.partials[slot] = values;
            return id;
        }
        // The buffer that is written is removed from its set for a moment, so that the other
        // buffers can be read at the same time. No operation reads the buffer that it writes. The
        // only exception is the operand in whose buffer an operation works (see `placement`).
        let cols = node.shape.cols;
        let (mut taken, start, stride) = match self.program.placement.places[id.0 as usize] {
            Place::Tile { slot, offset, stride } => {
                (std::mem::take(&mut buffers.slots[slot]), offset, stride)
            }
            Place::Wide { slot, offset, stride } => {
                (std::mem::take(&mut lane.wide[slot]), rows_before * stride + offset, stride)
            }
            _ => return id,
        };
        let mut out = ViewMut { data: &mut taken[start..], stride, cols };
        if let Step::CopyPart { part, start, .. } = step {
            let view = self.view(part, batch, lane, buffers);
            ops::copy_part(tile.rows, view, &mut out, start);
        } else {
            let views = self.views(&node.inputs, batch, lane, buffers);
            let views = &views[..node.inputs.len()];
            match (step, &mut narrow) {
                (Step::ComputeInPlace { running, .. }, _) => {
                    ops::compute_in_place(&node.op, &tile, running, views, out);
                }
                (_, Some(product)) => ops::forward_narrow(product, &node.op, &tile, views, out),
                (_, None) => ops::forward(&node.op, &tile, views, out),
            }
        }
        if let Some(product) = narrow {
            buffers.narrow = product.scratch;
        }
        match self.program.placement.places[id.0 as usize] {
            Place::Tile { slot, .. } => buffers.slots[slot] = taken,
            Place::Wide { slot, .. } => lane.wide[slot] = taken,
            _ => {}
        }
        id
    }

    fn views<'b>(
        &self,
        inputs: &[NodeId],
        batch: &Range<usize>,
        lane: &'b Lane,
        buffers: &'b TileBuffers,
    ) -> [View<'b>; MAX_INPUTS]
    where
        'a: 'b,
    {
        let mut views = [View::default(); MAX_INPUTS];
        for (view, &input) in views.iter_mut().zip(inputs) {
            *view = self.view(input, batch, lane, buffers);
        }
        views
    }

    fn view<'b>(
        &self,
        id: NodeId,
        batch: &Range<usize>,
        lane: &'b Lane,
        buffers: &'b TileBuffers,
    ) -> View<'b>
    where
        'a: 'b,
    {
        let Shape { rows, cols } = self.program.lowered.graph.shape(id);
        match self.program.placement.places[id.0 as usize] {
            Place::Tile { slot, offset, stride } => {
                View { data: buffers.slots[slot].get(offset..).unwrap_or_default(), stride, cols }
            }
            Place::Wide { slot, offset, stride } => {
                let start = self.rows_before(rows, lane, batch) * stride + offset;
                // If the lists of the tile are empty, the start can be after the end. Then nothing
                // is read.
                View { data: lane.wide[slot].get(start..).unwrap_or_default(), stride, cols }
            }
            _ => self.fixed(id).unwrap_or_default(),
        }
    }
}
