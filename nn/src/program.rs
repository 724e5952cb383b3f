//! A program: the nodes that a run computes, their order, and their buffers.

pub(crate) mod packing;
pub(crate) mod placement;
pub(crate) mod schedule;

use std::ops::Range;

use crate::autodiff::TrainGraph;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, ParamId};
use crate::inputs::Inputs;
use crate::passes::{Ir, Passes, Stage};
use crate::program::placement::{Placement, Width};
use crate::program::schedule::{Class, Schedule, is_view};

/// The settings for dividing a batch into lanes and tiles. The result depends on them, because they
/// determine the order of additions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of lanes. A lane is a contiguous part of the batch, and the sums of the lanes are
    /// added in order. This is also the maximum number of threads that can work on one pass.
    pub lanes: usize,
    /// The number of rows in a tile. A tile goes through all operations of a pass before the next
    /// tile begins.
    pub tile_rows: usize,
    /// The passes over the graph before it runs. They do not change the result.
    pub passes: Passes,
}

impl Default for Settings {
    fn default() -> Self {
        Self { lanes: 8, tile_rows: 256, passes: Passes::ALL }
    }
}

/// The minimum number of rows in a share (see [`Program::share_rows`]) in a training step. With
/// fewer rows, the partial sums of the lanes would take more time than another thread saves.
const LEAST_SHARE: usize = 64;

/// The number of bytes of a program's buffers for one batch, with and without planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The number of bytes of the planned buffers, which [`Program::bytes`] returns.
    pub planned: usize,
    /// The number of bytes that would be needed if every computed value had a separate buffer for
    /// all rows.
    pub naive: usize,
}

/// The maximum number of values of a column in a tile, divided by the number of rows of a full
/// tile. If a tile would have more values, it gets fewer rows. For example, the values of 256 rows
/// with histories of fifty items would not fit in the cache.
const VALUES_A_ROW: usize = 8;

/// A graph that is planned for execution: its phases and the places of its values.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) graph: Graph,
    pub(crate) settings: Settings,
    pub(crate) phases: Vec<Phase>,
    pub(crate) placement: Placement,
    /// The requested results, in the order of the request.
    pub(crate) outputs: Vec<NodeId>,
    /// The requested results, as nodes of the graph before the passes. Passes change the numbers of
    /// nodes.
    pub(crate) requested: Vec<NodeId>,
    pub(crate) loss: Option<NodeId>,
    pub(crate) param_grads: Vec<(ParamId, NodeId)>,
    pub(crate) row_grads: Vec<(usize, NodeId)>,
    pub(crate) updates: Vec<(ParamId, NodeId)>,
    pub(crate) reads_labels: bool,
    /// The flags of the sparse columns. A flag is `true` if a node looks up the rows of the column.
    pub(crate) columns_read: Vec<bool>,
    /// The indices of the sparse columns whose values have separate rows in a computation.
    pub(crate) value_columns: Vec<usize>,
    /// The indices of the sparse columns that must have one value in each row.
    pub(crate) single_columns: Vec<usize>,
}

/// A phase of a run. First, constants are computed. Then a pass goes over the batch. At the end,
/// the sums over the batch are completed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phase {
    /// The nodes that compute constants from other constants.
    pub(crate) globals: Vec<NodeId>,
    /// The steps of the pass for each tile.
    pub(crate) tile: Vec<Step>,
    /// The sums over the batch that are complete after the pass.
    pub(crate) sums: Vec<NodeId>,
    /// The values of the batch that later phases read with all their rows.
    pub(crate) collects: Vec<NodeId>,
}

/// One step of the work on a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The computation of the rows of a row-wise node.
    Compute(NodeId),
    /// The computation of the rows of a row-wise node in the buffer of its input with the index
    /// `running`.
    ComputeInPlace { id: NodeId, running: usize },
    /// The copy of a part of a concatenation into its columns.
    CopyPart { concat: NodeId, part: NodeId, start: usize },
    /// The addition of a tile to the partial sum of its lane.
    Accumulate(NodeId),
}

impl Program {
    /// Plans one training step: the loss, the gradients, the running statistics, and the named
    /// outputs of the graph.
    pub fn train(train: &TrainGraph, settings: Settings) -> Result<Self> {
        Self::new(Ir::train(train), settings)
    }

    /// Plans the computation of the given results and of the nodes on which they depend.
    pub fn infer(graph: &Graph, outputs: &[NodeId], settings: Settings) -> Result<Self> {
        Self::new(Ir::infer(graph, outputs), settings)
    }

    /// Returns the graph of a training step before the first pass and after each pass.
    pub fn train_stages(train: &TrainGraph, passes: Passes) -> Result<Vec<Stage>> {
        stages(Ir::train(train), passes)
    }

    /// Returns the graph of the nodes `outputs` before the first pass and after each pass.
    pub fn infer_stages(graph: &Graph, outputs: &[NodeId], passes: Passes) -> Result<Vec<Stage>> {
        stages(Ir::infer(graph, outputs), passes)
    }

    /// Returns the graph that is run, which is the given graph after all passes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the settings for dividing a batch into lanes and tiles.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Returns the ids of the trainable parameters that have a gradient, in ascending order.
    pub fn param_grads(&self) -> impl ExactSizeIterator<Item = ParamId> {
        self.param_grads.iter().map(|&(param, _)| param)
    }

    /// Returns the number of bytes that a run needs, and the number of bytes that it would need
    /// without tiles, shared buffers and work in place.
    pub fn memory(
        &self,
        rows: usize,
        threads: usize,
        list_len: impl Fn(usize) -> usize + Copy,
    ) -> Memory {
        let planned = self.bytes(rows, threads, list_len);
        let floats = |&Width { rows: of, cols }: &Width| match of {
            Dim::Values(column) => cols * rows * list_len(column),
            Dim::Const(rows) => cols * rows,
            _ => cols * rows,
        };
        Memory { planned, naive: 4 * self.placement.values.iter().map(floats).sum::<usize>() }
    }

    /// Returns the number of bytes of the buffers for a batch of `rows` rows on `threads` threads.
    /// `list_len(column)` is the number of values in each list of the column.
    pub fn bytes(&self, rows: usize, threads: usize, list_len: impl Fn(usize) -> usize) -> usize {
        let Placement { const_lens, tile_buffers, wide_buffers, partial_lens, .. } =
            &self.placement;
        let sum = |lens: &[usize]| lens.iter().sum::<usize>();
        let a_row = |buffers: &[Width], most: usize| -> usize {
            let floats = |width: &Width| match width.rows {
                Dim::Values(column) => width.cols * list_len(column).min(most),
                _ => width.cols,
            };
            buffers.iter().map(floats).sum()
        };
        let lanes = self.settings.lanes;
        let per_lane =
            rows.div_ceil(self.settings.tile_rows).div_ceil(lanes) * self.settings.tile_rows;
        let collected = self.phases.iter().flat_map(|phase| &phase.collects);
        let whole: usize = collected.map(|&id| self.graph.shape(id).cols).sum();
        // A tile of long lists has fewer rows: see `VALUES_A_ROW`.
        4 * (sum(const_lens)
            + whole * rows
            + a_row(tile_buffers, VALUES_A_ROW) * self.settings.tile_rows * threads
            + a_row(wide_buffers, usize::MAX) * per_lane * lanes
            + sum(partial_lens) * lanes)
            + packing::bytes(self, rows, threads)
    }

    /// Returns the number of rows in a share. A batch is divided into shares of this size, and each
    /// lane gets some of them. Usually a share is a tile. In a training step, a share has fewer
    /// rows if otherwise some lanes would get no rows. Scoring always uses whole tiles, because
    /// many small requests at the same time run faster with one thread for each.
    pub(crate) fn share_rows(&self, rows: usize) -> usize {
        let Settings { lanes, tile_rows, .. } = self.settings;
        if self.param_grads.is_empty() {
            return tile_rows;
        }
        rows.div_ceil(lanes).next_multiple_of(LEAST_SHARE).min(tile_rows)
    }

    /// Returns the dimension whose rows measure the work of a node on a tile. It is the dimension
    /// of the result or, for a sum over the batch, the dimension of the summed value.
    pub(crate) fn work_rows(&self, id: NodeId) -> Dim {
        let node = self.graph.node(id);
        let mut rows = std::iter::once(node.shape.rows)
            .chain(node.inputs.iter().map(|&input| self.graph.shape(input).rows));
        rows.find(|rows| rows.is_tiled()).unwrap_or(node.shape.rows)
    }

    /// Returns the range of rows of the tile that begins at the row `first`, in a lane that ends
    /// before the row `end`. A tile has `tile_rows` rows, or fewer if their lists are long. The
    /// range depends only on the settings and on the offsets of the batch.
    pub(crate) fn tile(&self, inputs: &Inputs<'_>, first: usize, end: usize) -> Range<usize> {
        let tile_rows = self.settings.tile_rows;
        let mut tile = first..end.min(first + tile_rows);
        for &column in &self.value_columns {
            let most = tile_rows * VALUES_A_ROW;
            if inputs.span(Dim::Values(column), &tile).len() > most
                && let Some(offsets) = inputs.columns[column].offsets
            {
                let last = offsets[first] as usize + most;
                let ends = &offsets[first + 1..=tile.end];
                // A tile has at least one row. So a list that is longer than a tile may be forms a
                // tile of its own.
                let rows = ends.partition_point(|&end| end as usize <= last).max(1);
                tile.end = first + rows;
            }
        }
        tile
    }

    fn new(ir: Ir, settings: Settings) -> Result<Self> {
        check_settings(settings)?;
        let graph = &ir.graph;
        let unknown = ir.outputs.iter().find(|id| id.0 as usize >= graph.nodes.len());
        if let Some(&id) = unknown {
            return Err(Error::Shape {
                node: id.to_string(),
                reason: "the requested node does not exist in the graph; request a node of this \
                         graph"
                    .into(),
            });
        }
        let no_result =
            |id: &&NodeId| matches!(graph.shape(**id).rows, Dim::Unique(_) | Dim::Whole);
        if let Some(&id) = ir.outputs.iter().find(no_result) {
            let reason =
                "rows of a table, or a value of the whole batch, cannot be a result; request a \
                 node with a row for each row of the batch"
                    .into();
            return Err(Error::Shape { node: graph.node(id).name.clone(), reason });
        }
        let requested = ir.outputs.clone();
        let ir = settings.passes.run(ir, |_, _| {})?;
        let roots = ir.roots();
        let Ir { graph, outputs, loss, param_grads, row_grads, .. } = ir;
        let updates = if loss.is_some() { graph.updates.clone() } else { Vec::new() };
        let graph = &graph;
        let schedule = Schedule::new(graph, &roots);
        let placement =
            Placement::new(graph, &schedule, &outputs, settings.passes.has("in_place"))?;
        let phases = phases(graph, &schedule, &placement);
        let live = || {
            let nodes = graph.nodes.iter().enumerate();
            nodes.filter(|(i, _)| schedule.classes[*i].is_some()).map(|(_, n)| &n.op)
        };
        let reads_labels =
            live().any(|op| matches!(op, Op::Label { .. } | Op::Weight { label: Some(_) }));
        let mut columns_read = vec![false; graph.inputs.columns.len()];
        for op in live() {
            if let Op::Gather(gather) | Op::GatherArgMax(gather) = op {
                columns_read[gather.column] = true;
            }
        }
        let compared = live().filter_map(|op| match op {
            Op::InBatchLse(spec) => Some(spec.column),
            _ => None,
        });
        let single_columns = compared.collect();
        let mut value_columns = Vec::new();
        for (node, class) in graph.nodes.iter().zip(&schedule.classes) {
            if let (Dim::Values(column), Some(_)) = (node.shape.rows, class) {
                value_columns.push(column);
            }
        }
        value_columns.sort_unstable();
        value_columns.dedup();
        Ok(Self {
            graph: graph.clone(),
            settings,
            phases,
            placement,
            outputs,
            requested,
            loss,
            param_grads,
            row_grads,
            updates,
            reads_labels,
            columns_read,
            value_columns,
            single_columns,
        })
    }
}

fn stages(ir: Ir, passes: Passes) -> Result<Vec<Stage>> {
    let mut stages = vec![Stage { pass: None, graph: ir.graph.clone() }];
    passes.run(ir, |pass, ir| {
        stages.push(Stage { pass: Some(pass), graph: ir.graph.clone() });
    })?;
    Ok(stages)
}

fn check_settings(settings: Settings) -> Result<()> {
    let wrong = |name, reason: &str| Err(Error::Setting { name, reason: reason.into() });
    if !(1..=256).contains(&settings.lanes) {
        return wrong("lanes", "must be 1 to 256");
    }
    if !(1..=1 << 16).contains(&settings.tile_rows) {
        return wrong("tile_rows", "must be 1 to 65,536");
    }
    Ok(())
}

fn phases(graph: &Graph, schedule: &Schedule, placement: &Placement) -> Vec<Phase> {
    // There is one phase more than there are passes. The last phase has the constants that depend
    // on the sums of the last pass.
    let mut phases = vec![Phase::default(); schedule.count + 1];
    for (index, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(index as u32);
        let phase = &mut phases[schedule.phase(id).min(schedule.count)];
        match schedule.class(id) {
            None | Some(Class::Given | Class::Unique) => {}
            Some(_) if is_view(graph, id) => {}
            Some(Class::Global) => phase.globals.push(id),
            Some(Class::BatchReduce) => {
                phase.tile.push(Step::Accumulate(id));
                phase.sums.push(id);
            }
            Some(Class::Collect) => phase.collects.push(id),
            Some(Class::RowWise) if node.op == Op::Concat => {
                let mut start = 0;
                for &part in &node.inputs {
                    if placement.in_place[part.0 as usize] != Some(id) {
                        phase.tile.push(Step::CopyPart { concat: id, part, start });
                    }
                    start += graph.shape(part).cols;
                }
            }
            Some(Class::RowWise) => phase.tile.push(match placement.reuses[index] {
                Some(running) => Step::ComputeInPlace { id, running },
                None => Step::Compute(id),
            }),
        }
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, GraphInputs, Mode, differentiate};

    #[test]
    fn small_steps_use_all_lanes_and_requests_stay_whole() {
        let inputs = GraphInputs {
            numeric: vec!["x".into()],
            labels: vec!["label".into()],
            ..GraphInputs::default()
        };
        let mut b = GraphBuilder::new(inputs, Mode::Train);
        let x = b.numeric("x", &[0]).unwrap();
        let logit = b.linear("l", x, 1).unwrap();
        let loss = b.bce_with_logits("loss", logit, 0).unwrap();
        let graph = b.finish();
        let settings = Settings::default();
        let train = Program::train(&differentiate(&graph, loss).unwrap(), settings).unwrap();
        let shares = [1, 64, 256, 512, 513, 1024, 2048, 4096].map(|rows| train.share_rows(rows));
        assert_eq!(shares, [64, 64, 64, 64, 128, 128, 256, 256]);
        let small = Settings { tile_rows: 20, ..settings };
        let small = Program::train(&differentiate(&graph, loss).unwrap(), small).unwrap();
        assert_eq!(small.share_rows(300), 20, "a tile is the most");
        let infer = Program::infer(&graph, &[logit], settings).unwrap();
        assert_eq!(infer.share_rows(100), settings.tile_rows);
    }
}
