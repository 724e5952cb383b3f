//! Gradients of table rows, gathered from the lanes once those of the batch are complete.

use zillion_device::Workers;
use zillion_device::prefetch::prefetch_read;
use zillion_feature::Pooling;

use crate::graph::NodeId;
use crate::inputs::Inputs;
use crate::lane::Lane;
use crate::op::{Gather, Op};
use crate::ops::kernel::ListColumn;
use crate::ops::{self, BatchRows, ColumnSource, GatherSource};
use crate::placement::Place;
use crate::program::Program;

/// Unique rows whose gradients are added up at a time.
const ROW_CHUNK: usize = 512;

/// What a finished run leaves for whoever reads values of the batch.
#[derive(Clone, Copy)]
pub(crate) struct Finished<'a> {
    pub(crate) program: &'a Program,
    pub(crate) lanes: &'a [Lane],
    pub(crate) lists: &'a [ListColumn],
    /// Where each row of the batch lies: the lane in the upper 8 bits, the row in it in the lower 24.
    pub(crate) locate: &'a [u32],
}

impl<'a> Finished<'a> {
    /// Gradients of the tables' rows, once those of the batch are complete.
    pub(crate) fn row_gradients(
        &self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        row_grads: &mut [&mut [f32]],
    ) {
        struct Part<'a> {
            table: usize,
            first: usize,
            out: &'a mut [f32],
        }
        let mut sources: Vec<Vec<ColumnSource<'_, LaneRows<'_>>>> = Vec::new();
        for table in 0..inputs.tables.len() {
            let columns = inputs.columns.iter().zip(self.lists).filter(|(c, _)| c.table == table);
            let columns = columns.map(|(column, list)| ColumnSource {
                column,
                list,
                base: column.base as usize,
                gathers: Vec::new(),
            });
            sources.push(columns.collect());
        }
        for &(table, node) in &self.program.row_grads {
            self.fill_sources(table, node, &mut sources[table]);
        }
        let mut parts = Vec::new();
        for (table, out) in row_grads.iter_mut().enumerate() {
            let stride = inputs.tables[table].stride;
            for (index, out) in out.chunks_mut((ROW_CHUNK * stride).max(1)).enumerate() {
                parts.push(Part { table, first: index * ROW_CHUNK, out });
            }
        }
        workers.for_each_mut(&mut parts, |_, Part { table, first, out }| {
            let stride = inputs.tables[*table].stride;
            ops::row_gradients(&sources[*table], &inputs.occurrences[*table], stride, *first, out);
        });
    }

    fn fill_sources(
        &self,
        table: usize,
        node: NodeId,
        sources: &mut [ColumnSource<'a, LaneRows<'a>>],
    ) {
        let node = self.program.graph.node(node);
        let Op::GatherGrad { gathers, .. } = &node.op else { return };
        let columns = &self.program.graph.inputs.columns;
        let mut given = node.inputs.iter().copied();
        for gather in gathers {
            let gradient = given.next().and_then(|id| self.lane_rows(id, self.locate_of(gather)));
            let winners = match gather.pooling {
                Some(Pooling::Max) => given.next().and_then(|id| self.lane_rows(id, self.locate)),
                _ => None,
            };
            // Columns of one table keep their order among themselves.
            let index = columns[..gather.column].iter().filter(|c| c.table == table).count();
            if let Some(gradient) = gradient {
                let source = &mut sources[index];
                let factors = source.list.factors_of(gather);
                source.gathers.push(GatherSource { gather: *gather, gradient, winners, factors });
            }
        }
    }

    /// Where rows of a gather's gradient lie. A column of one value a row has its values where the
    /// batch has its rows.
    fn locate_of(&self, gather: &Gather) -> &'a [u32] {
        let values = &self.lists[gather.column].locate;
        if gather.pooling.is_some() || values.is_empty() { self.locate } else { values }
    }

    /// A value of the batch that outlives its pass.
    fn lane_rows(&self, id: NodeId, locate: &'a [u32]) -> Option<LaneRows<'a>> {
        match self.program.placement.places[id.0 as usize] {
            Place::Wide { slot, offset, stride } => {
                let cols = self.program.graph.shape(id).cols;
                Some(LaneRows { lanes: self.lanes, locate, slot, offset, stride, cols })
            }
            _ => None,
        }
    }
}

/// Rows of a value that is as wide as the batch or a column, found by their index in it.
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
        prefetch_read(&self.lanes[(at >> 24) as usize].wide[self.slot], start);
    }
}
