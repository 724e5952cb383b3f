//! The computation of the gradients of table rows. It reads the gradients of the batch from the
//! lanes, after the last pass.

use super::*;

use zillion_device::prefetch::prefetch_read;
use zillion_feature::Pooling;

use crate::graph::op::Gather;
use crate::ops::{self, BatchRows, GatherSource};

/// The number of tasks for each thread. With small tasks, threads wait only a short time at the
/// end.
const SHARES: usize = 4;

impl Executor {
    /// Computes the gradients of the rows of all tables, after the gradients of the batch are
    /// complete. Usually a task is one table. A table with many values is divided into several
    /// tasks, each with a range of its rows.
    pub(super) fn row_gradients(
        &self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        row_grads: &mut [&mut [f32]],
    ) {
        let tasks = if workers.threads() == 1 { 1 } else { SHARES * workers.threads() };
        let values = |table: usize| -> usize {
            inputs.columns.iter().filter(|c| c.table == table).map(|c| c.inverse.len()).sum()
        };
        let work = |table: usize| values(table) * inputs.tables[table].stride;
        let share = (0..inputs.tables.len()).map(work).sum::<usize>().div_ceil(tasks).max(1);
        let parts = row_grads.iter_mut().enumerate().flat_map(|(table, out)| {
            let parts = work(table).div_ceil(share).max(1);
            let rows = inputs.tables[table].unique.div_ceil(parts).max(1);
            let floats = (rows * inputs.tables[table].stride).max(1);
            out.chunks_mut(floats).enumerate().map(move |(index, out)| (table, index * rows, out))
        });
        // The tasks come from a queue and not from a list, so that a step allocates no memory.
        let queue = Mutex::new(parts);
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        workers.for_each(tasks.min(workers.threads()), |_| {
            while let Some((table, first, out)) = next() {
                let begun = self.log.begin();
                self.table_gradients(inputs, table, first, out);
                if let Some(&(_, node)) =
                    self.program.lowered.row_grads.iter().find(|&&(t, _)| t == table)
                {
                    self.log.end(begun, Work::Node(node));
                }
            }
        });
    }

    /// Computes the gradients of some rows of a table, beginning with the row `first`. Their number
    /// follows from the length of `out`.
    fn table_gradients(&self, inputs: &Inputs<'_>, table: usize, first: usize, out: &mut [f32]) {
        out.fill(0.0);
        let node = self.program.lowered.row_grads.iter().find(|&&(t, _)| t == table);
        let Some(&(_, node)) = node else { return };
        let node = self.program.lowered.graph.node(node);
        let Op::GatherGrad { gathers, .. } = &node.op else { return };
        let mut given = node.inputs.iter().copied();
        for &gather in gathers {
            let gradient = given.next().and_then(|id| self.lane_rows(id, self.locate_of(&gather)));
            let winners = match gather.pooling {
                Some(Pooling::Max) => given.next().and_then(|id| self.lane_rows(id, &self.locate)),
                _ => None,
            };
            if let Some(gradient) = gradient {
                let list = &self.lists[gather.column];
                let factors = list.factors_of(&gather);
                let column = &inputs.columns[gather.column];
                let source = GatherSource { gather, column, list, gradient, winners, factors };
                ops::add_row_gradients(&source, inputs.tables[table].stride, first, out);
            }
        }
    }

    /// Returns the places in the lanes at which a gather's gradient has its rows. If each row of
    /// the batch has one value, these are the places of the rows of the batch.
    fn locate_of(&self, gather: &Gather) -> &[u32] {
        let values = &self.lists[gather.column].locate;
        if gather.pooling.is_some() || values.is_empty() { &self.locate } else { values }
    }

    /// Returns the rows of a value that outlives its pass, or `None` if the value has no lane
    /// buffers.
    fn lane_rows<'a>(&'a self, id: NodeId, locate: &'a [u32]) -> Option<LaneRows<'a>> {
        match self.program.placement.places[id.0 as usize] {
            Place::Wide { slot, offset, stride } => {
                let cols = self.program.lowered.graph.shape(id).cols;
                Some(LaneRows { lanes: &self.lanes, locate, slot, offset, stride, cols })
            }
            _ => None,
        }
    }
}

/// The rows of a value in the buffers of the lanes. The value has one row for each row of the
/// batch, or for each value of a column. A row is found by its index.
#[derive(Clone, Copy)]
pub(crate) struct LaneRows<'a> {
    lanes: &'a [Lane],
    locate: &'a [u32],
    slot: usize,
    offset: usize,
    stride: usize,
    cols: usize,
}

impl BatchRows for LaneRows<'_> {
    #[inline(always)]
    fn row(&self, row: usize) -> &[f32] {
        let at = self.locate[row];
        let lane = &self.lanes[(at >> 24) as usize];
        let start = (at & 0x00ff_ffff) as usize * self.stride + self.offset;
        &lane.wide[self.slot][start..][..self.cols]
    }

    #[inline(always)]
    fn prefetch(&self, row: usize) {
        let at = self.locate[row];
        let start = (at & 0x00ff_ffff) as usize * self.stride + self.offset;
        let wide = &self.lanes[(at >> 24) as usize].wide[self.slot];
        prefetch_read(wide, start);
        // A row of a few dozen floats often begins in one cache line and ends in the next line.
        prefetch_read(wide, start + self.cols - 1);
    }
}
