//! A lowered graph: the graph after all passes, with everything that does not depend on the machine
//! that runs it.
//!
//! Each executor makes its own plan from a lowered graph: the CPU a plan of phases and tiles
//! ([`Program`](crate::Program)). The definition of a result is here and not in a plan, because all
//! executors must compute the same bits. So a lowered graph also says how a batch is divided into
//! lanes, shares and tiles, which determine the order of the additions of a sum over the batch.

mod class;
mod products;
mod sharing;

use std::ops::Range;

use zillion_device::matmul;
use zillion_feature::SharedColumns;

use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::graph::op::{Gather, Op};
use crate::graph::shape::{Dim, NodeId, ParamId};
use crate::inputs::Inputs;
use crate::params::Params;
use crate::passes::{Ir, Passes, share_columns};

pub(crate) use class::{Class, classify, is_view};
pub(crate) use sharing::{Moment, Parts, Width, share_buffers};

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

/// The minimum number of rows in a share (see [`Lowered::share_rows`]) in a training step. With
/// fewer rows, the partial sums of the lanes would take more time than another thread saves.
const LEAST_SHARE: usize = 64;

/// The minimum number of rows of the pieces of a request on average. Waking a thread takes the time
/// in which another thread scores a few rows.
const LEAST_PIECE: usize = 32;

/// The number of rows of which a piece has a multiple. The kernels of products work on eight rows
/// at a time.
const PIECE_STEP: usize = 8;

/// The maximum number of values of a column in a tile, divided by the number of rows of a full
/// tile. If a tile would have more values, it gets fewer rows. For example, the values of 256 rows
/// with histories of fifty items would not fit in the cache.
pub(crate) const VALUES_A_ROW: usize = 8;

/// A graph after all passes, its roots, and the inputs that it reads.
#[derive(Clone, Debug)]
pub(crate) struct Lowered {
    pub(crate) graph: Graph,
    pub(crate) settings: Settings,
    /// The class of each node, or `None` if no requested value depends on the node.
    pub(crate) classes: Vec<Option<Class>>,
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
    /// The columns of the inputs that have one row, which stands for all rows of the batch.
    pub(crate) one_row: SharedColumns,
}

impl Lowered {
    /// Runs the passes over a graph, and finds the classes of its nodes and the inputs that it
    /// reads.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range, or if a requested node does not exist or
    /// cannot be a result.
    pub(crate) fn new(ir: Ir, settings: Settings) -> Result<Self> {
        Self::with_shared(ir, settings, &SharedColumns::default())
    }

    /// Does what [`Lowered::new`] does, for batches in which the columns `shared` have one row.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`Lowered::new`].
    pub(crate) fn with_shared(ir: Ir, settings: Settings, shared: &SharedColumns) -> Result<Self> {
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
        let ir = if shared.is_empty() { ir } else { share_columns(&ir, shared)? };
        let ir = settings.passes.run(ir, |_, _| {})?;
        let roots = ir.roots();
        let Ir { graph, outputs, loss, param_grads, row_grads, .. } = ir;
        let updates = if loss.is_some() { graph.updates.clone() } else { Vec::new() };
        let classes = classify(&graph, &roots);
        let live = || {
            let nodes = graph.nodes.iter().enumerate();
            nodes.filter(|(i, _)| classes[*i].is_some()).map(|(_, n)| &n.op)
        };
        let reads_labels =
            live().any(|op| matches!(op, Op::Label { .. } | Op::Weight { label: Some(_) }));
        let mut columns_read = vec![false; graph.inputs.columns.len()];
        for gather in live().flat_map(gathers_of) {
            columns_read[gather.column] = true;
        }
        let compared = live().filter_map(|op| match op {
            Op::InBatchLse(spec) => Some(spec.column),
            _ => None,
        });
        let single_columns = compared.collect();
        let mut value_columns = Vec::new();
        for (node, class) in graph.nodes.iter().zip(&classes) {
            if let (Dim::Values(column), Some(_)) = (node.shape.rows, class) {
                value_columns.push(column);
            }
        }
        value_columns.sort_unstable();
        value_columns.dedup();
        let mut one_row = shared.clone();
        value_columns.iter().for_each(|&column| one_row.remove_sparse(column));
        Ok(Self {
            graph,
            settings,
            classes,
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
            one_row,
        })
    }

    /// Checks that a batch and the parameters fit the graph.
    ///
    /// # Errors
    /// Returns an error that names the input or the parameter that does not fit.
    pub(crate) fn check(&self, inputs: &Inputs<'_>, params: &Params) -> Result<()> {
        self.check_params(params)?;
        self.check_inputs(inputs, true)
    }

    /// Checks that the parameters are those of the graph.
    ///
    /// # Errors
    /// Returns an error that names the parameter that does not fit.
    pub(crate) fn check_params(&self, params: &Params) -> Result<()> {
        params.fits(&self.graph.params)
    }

    /// Checks a batch whose rows are on a device, without the parameters.
    ///
    /// # Errors
    /// Returns an error that names the input that does not fit.
    pub(crate) fn check_inputs_on_device(&self, inputs: &Inputs<'_>) -> Result<()> {
        self.check_inputs(inputs, false)
    }

    fn check_inputs(&self, inputs: &Inputs<'_>, rows_are_here: bool) -> Result<()> {
        let reads = (self.reads_labels, self.loss.is_some());
        inputs.check(&self.graph.inputs, reads, rows_are_here, &self.one_row)?;
        inputs.check_values(&self.graph.inputs, &self.value_columns)?;
        inputs.check_single(&self.graph.inputs, &self.single_columns)
    }

    /// Checks that the graph trains, and that there is a buffer for the gradients of each table.
    ///
    /// # Errors
    /// Returns an error that says which buffer does not fit.
    pub(crate) fn check_row_grads(
        &self,
        inputs: &Inputs<'_>,
        row_grads: &[&mut [f32]],
    ) -> Result<()> {
        let wrong = |input: &str, reason: String| Error::Input { input: input.to_owned(), reason };
        if self.loss.is_none() {
            return Err(wrong(
                "the program",
                "an inference program cannot train; plan the graph with `Program::train`".into(),
            ));
        }
        if row_grads.len() != inputs.tables.len() {
            let reason = format!(
                "found {} buffers for {} tables; give one buffer for each table",
                row_grads.len(),
                inputs.tables.len()
            );
            return Err(wrong("row gradients", reason));
        }
        for (out, table) in row_grads.iter().zip(&inputs.tables) {
            if out.len() != table.values.len() {
                let reason = format!(
                    "a buffer has {} floats, but the rows of its table have {}; make the lookup \
                     plan again",
                    out.len(),
                    table.values.len()
                );
                return Err(wrong("row gradients", reason));
            }
        }
        Ok(())
    }

    /// Returns the number of rows in a share. A batch is divided into shares of this size, and each
    /// lane gets some of them. Usually a share is a tile. In a training step, a share has fewer
    /// rows if otherwise some lanes would get no rows. If rows are scored, a share has fewer rows
    /// if otherwise some of the `free_threads` threads would get no rows. With one free thread it
    /// is a whole tile, because many requests at the same time run faster with one thread for
    /// each. A score does not depend on its share, and a training step does not depend on threads.
    pub(crate) fn share_rows(&self, rows: usize, free_threads: usize) -> usize {
        let Settings { lanes, tile_rows, .. } = self.settings;
        if !self.param_grads.is_empty() {
            return rows.div_ceil(lanes).max(1).next_multiple_of(LEAST_SHARE).min(tile_rows);
        }
        // Without our kernels, the bits of a row may depend on its tile.
        let pieces = free_threads.min(lanes).min(rows / LEAST_PIECE);
        if pieces <= 1 || self.couples_rows() || !matmul::can_resume() {
            return tile_rows;
        }
        rows.div_ceil(pieces).next_multiple_of(PIECE_STEP).min(tile_rows)
    }

    /// Returns whether a value depends on several rows of the batch.
    pub(crate) fn couples_rows(&self) -> bool {
        let couples =
            |class: &Option<Class>| matches!(class, Some(Class::BatchReduce | Class::Collect));
        self.classes.iter().any(couples)
    }

    /// Returns the rows of the lane with this index, in a batch of `rows` rows that is divided into
    /// shares of `share` rows.
    pub(crate) fn lane_rows(&self, lane: usize, rows: usize, share: usize) -> Range<usize> {
        let lanes = self.settings.lanes;
        let shares = rows.div_ceil(share);
        let first = (shares * lane / lanes * share).min(rows);
        first..(shares * (lane + 1) / lanes * share).min(rows)
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
}

/// Returns the lookups whose rows or gradients an operation computes. A gradient may be computed
/// for a lookup whose rows no node reads.
pub(crate) fn gathers_of(op: &Op) -> &[Gather] {
    match op {
        Op::Gather(gather) | Op::GatherArgMax(gather) => std::slice::from_ref(gather),
        Op::GatherGrad { gathers, .. } => gathers,
        _ => &[],
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, GraphInputs, Mode, differentiate};

    #[test]
    fn small_steps_use_all_lanes_and_requests_free_threads() {
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
        let lower = |settings| {
            Lowered::new(Ir::train(&differentiate(&graph, loss).unwrap()), settings).unwrap()
        };
        let train = lower(settings);
        let shares = [1, 64, 256, 512, 513, 1024, 2048, 4096].map(|rows| train.share_rows(rows, 1));
        assert_eq!(shares, [64, 64, 64, 64, 128, 128, 256, 256]);
        let small = Settings { tile_rows: 20, ..settings };
        let small = lower(small);
        assert_eq!(small.share_rows(300, 4), 20, "a tile is the most");
        let infer = Lowered::new(Ir::infer(&graph, &[logit]), settings).unwrap();
        assert_eq!(infer.share_rows(100, 1), settings.tile_rows, "no other thread is free");
        let pieces = [1, 40, 63, 64, 100, 256, 500, 1000].map(|rows| infer.share_rows(rows, 2));
        assert_eq!(pieces, [256, 256, 256, 32, 56, 128, 256, 256]);
        assert_eq!(infer.share_rows(256, 100), 32, "a piece is not smaller");
        for rows in [0, 1, 63, 500, 4096, 9999] {
            let mut next = 0;
            for lane in 0..settings.lanes {
                let part = train.lane_rows(lane, rows, train.share_rows(rows, 1));
                assert_eq!(part.start, next, "lanes follow each other, {rows} rows");
                next = part.end;
            }
            assert_eq!(next, rows, "every row has a lane");
        }
    }
}
