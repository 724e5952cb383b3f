//! A program: the plan of a lowered graph for the CPU. It has the order of the nodes in phases, and
//! the places of their values in the buffers of lanes and threads.

use zillion_device::matmul;
use zillion_feature::SharedColumns;

use crate::autodiff::TrainGraph;
use crate::cost::{Cost, cost};
use crate::cpu::packing;
use crate::cpu::placement::Placement;
use crate::cpu::schedule::Schedule;
use crate::error::Result;
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, ParamId};
use crate::graph::sizes::Sizes;
use crate::lowered::{Class, Lowered, Settings, VALUES_A_ROW, Width, is_view};
use crate::passes::{Ir, Passes, Stage};

/// The number of bytes of a program's buffers for one batch, with and without planning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The number of bytes of the planned buffers, which [`Program::bytes`] returns.
    pub planned: usize,
    /// The number of bytes that would be needed if every computed value had a separate buffer for
    /// all rows.
    pub naive: usize,
}

/// A graph that is planned for execution: its phases and the places of its values.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) lowered: Lowered,
    pub(crate) phases: Vec<Phase>,
    pub(crate) placement: Placement,
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
        Self::plan(Lowered::new(Ir::train(train), settings)?)
    }

    /// Plans the computation of the given results and of the nodes on which they depend.
    pub fn infer(graph: &Graph, outputs: &[NodeId], settings: Settings) -> Result<Self> {
        Self::plan(Lowered::new(Ir::infer(graph, outputs), settings)?)
    }

    /// Plans what [`Program::infer`] plans, for batches in which the columns `shared` have one row,
    /// which stands for all rows. What depends only on these columns is computed once. The results
    /// have the bits of [`Program::infer`] for the batch with the rows copied. They have them on
    /// machines with kernels for products (see
    /// [`can_resume`](zillion_device::matmul::can_resume)); on other machines, products of one row
    /// may be rounded differently.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`Program::infer`].
    pub fn infer_shared(
        graph: &Graph,
        outputs: &[NodeId],
        settings: Settings,
        shared: &SharedColumns,
    ) -> Result<Self> {
        Self::plan(Lowered::with_shared(Ir::infer(graph, outputs), settings, shared)?)
    }

    /// Returns the columns that must have one row in the inputs of a run. Of the shared columns of
    /// [`Program::infer_shared`], these are all but the lists whose values have rows of their own
    /// in some node. Such lists must be copied to all rows (see
    /// [`ColumnCopies`](crate::ColumnCopies)).
    pub fn one_row_columns(&self) -> &SharedColumns {
        &self.lowered.one_row
    }

    /// Returns whether a value of a row depends on the other rows of its batch.
    pub fn couples_rows(&self) -> bool {
        self.lowered.couples_rows()
    }

    /// Returns whether a run gives each row the same bits whatever other rows its batch has. That
    /// is not so if a value depends on several rows, and on machines without our kernels.
    pub fn has_independent_rows(&self) -> bool {
        !self.lowered.couples_rows() && matmul::can_resume()
    }

    /// Returns the cost of one run: the sum of the costs of all nodes that it computes.
    pub fn cost(&self, sizes: &Sizes) -> Cost {
        let nodes = self.lowered.classes.iter().enumerate();
        let computed = nodes.filter(|(_, class)| class.is_some());
        computed.map(|(index, _)| cost(self.graph(), NodeId(index as u32), sizes)).sum()
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
        &self.lowered.graph
    }

    /// Returns the settings for dividing a batch into lanes and tiles.
    pub fn settings(&self) -> Settings {
        self.lowered.settings
    }

    /// Returns the ids of the trainable parameters that have a gradient, in ascending order.
    pub fn param_grads(&self) -> impl ExactSizeIterator<Item = ParamId> {
        self.lowered.param_grads.iter().map(|&(param, _)| param)
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
        let lanes = self.lowered.settings.lanes;
        let per_lane = rows.div_ceil(self.lowered.settings.tile_rows).div_ceil(lanes)
            * self.lowered.settings.tile_rows;
        let collected = self.phases.iter().flat_map(|phase| &phase.collects);
        let whole: usize = collected.map(|&id| self.lowered.graph.shape(id).cols).sum();
        // A tile of long lists has fewer rows: see `VALUES_A_ROW`.
        4 * (sum(const_lens)
            + whole * rows
            + a_row(tile_buffers, VALUES_A_ROW) * self.lowered.settings.tile_rows * threads
            + a_row(wide_buffers, usize::MAX) * per_lane * lanes
            + sum(partial_lens) * lanes)
            + packing::bytes(self, rows, threads)
    }

    fn plan(lowered: Lowered) -> Result<Self> {
        let Lowered { graph, classes, outputs, settings, .. } = &lowered;
        let schedule = Schedule::new(graph, classes);
        let reuse = settings.passes.has("in_place");
        let placement = Placement::new(graph, &schedule, outputs, reuse)?;
        let phases = phases(graph, &schedule, &placement);
        Ok(Self { lowered, phases, placement })
    }
}

fn stages(ir: Ir, passes: Passes) -> Result<Vec<Stage>> {
    let mut stages = vec![Stage { pass: None, graph: ir.graph.clone() }];
    passes.run(ir, |pass, ir| {
        stages.push(Stage { pass: Some(pass), graph: ir.graph.clone() });
    })?;
    Ok(stages)
}

fn phases(graph: &Graph, schedule: &Schedule<'_>, placement: &Placement) -> Vec<Phase> {
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
