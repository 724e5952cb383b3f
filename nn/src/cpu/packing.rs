//! The packed weights of products, in the layout that the kernels read. Weights are packed once in
//! each run, or once for all runs with the same parameters (see
//! [`PackedParams`](crate::PackedParams)).
//!
//! The gradient of an input needs the transposed weight. A transposed weight is packed in every
//! run, because its columns are far apart in memory, and all tiles and lanes read them. A forward
//! product can also read its weight without packing, and is then up to 20 percent slower. So
//! forward weights are packed in runs with many rows. The results do not depend on this choice: a
//! product has the same bits in both cases.
//!
//! # Invariants
//! Panels are filled from the parameters of the run before its first tile. Until the end of the
//! run, they are only read.

use std::ops::Range;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_device::matmul::{Panel, Scratch, View};

use crate::cpu::packed_params::PackedParams;
use crate::cpu::placement::Place;
use crate::cpu::program::{Program, Step};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, ParamId};
use crate::ops::Packed;
use crate::params::Params;
use crate::timeline::{Log, Work};

/// The minimum number of rows of a run in which forward weights are packed. Packing takes the time
/// of 10 to 40 rows of the product, and makes the product up to 20 percent faster.
const FORWARD_ROWS: usize = 256;

/// A weight that can be packed: a parameter, and whether the product reads it transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    param: ParamId,
    rows: usize,
    cols: usize,
    turned: bool,
}

impl Weight {
    /// Returns the weight of the product `id`. Returns `None` if the node has no such weight, if
    /// the weight is not a whole parameter, or if the weight has only one row or column.
    pub(crate) fn of(graph: &Graph, places: &[Place], id: NodeId) -> Option<Self> {
        let node = graph.node(id);
        let turned = match node.op.head() {
            Op::Linear | Op::LinearRest { .. } => false,
            Op::MatMulNt => true,
            _ => return None,
        };
        let weight = *node.inputs.get(1)?;
        let shape = graph.shape(weight);
        match (places[weight.0 as usize], shape.rows) {
            (Place::Param { param, offset: 0 }, Dim::Const(rows)) if rows > 1 && shape.cols > 1 => {
                Some(Self { param, rows, cols: shape.cols, turned })
            }
            _ => None,
        }
    }

    /// Returns the numbers of rows and columns of the packed matrix.
    pub(crate) fn packed_shape(&self) -> (usize, usize) {
        if self.turned { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }

    /// Returns whether the product reads the weight transposed.
    pub(crate) fn is_turned(&self) -> bool {
        self.turned
    }

    pub(crate) fn view<'a>(&self, params: &'a Params) -> View<'a> {
        let view = View::packed(params.value(self.param), self.rows, self.cols);
        if self.turned { view.transposed() } else { view }
    }
}

/// The packed weights of a program's products.
#[derive(Debug)]
pub(crate) struct Packing {
    weights: Vec<Weight>,
    /// The index of the weight of each node; `None` for a node without a packed weight.
    of_node: Vec<Option<usize>>,
    /// The range of the panels of each weight. The range is empty before the first run that packs
    /// the weight.
    panels_of: Vec<Range<usize>>,
    panels: Vec<Panel>,
    /// Whether forward weights are packed in this run.
    forward: bool,
    /// The weights that were packed before, for the parameters of the next runs.
    packed: Option<Arc<PackedParams>>,
}

impl Packing {
    /// Creates the packing of the weights of a program's exact products, which are those of all
    /// nodes for which `is_exact` returns `true`. No weight is packed yet.
    pub(crate) fn new(program: &Program, is_exact: impl Fn(NodeId) -> bool) -> Self {
        let mut weights: Vec<Weight> = Vec::new();
        let mut of_node = vec![None; program.lowered.graph.nodes.len()];
        // Transposed weights come first, because runs with few rows pack only these.
        for turned in [true, false] {
            for step in program.phases.iter().flat_map(|phase| &phase.tile) {
                let Step::Compute(id) = *step else { continue };
                if !is_exact(id) {
                    continue;
                }
                let weight = Weight::of(&program.lowered.graph, &program.placement.places, id);
                let Some(weight) = weight.filter(|weight| weight.turned == turned) else {
                    continue;
                };
                let index = weights.iter().position(|&other| other == weight);
                of_node[id.0 as usize] = Some(index.unwrap_or_else(|| {
                    weights.push(weight);
                    weights.len() - 1
                }));
            }
        }
        let panels_of = vec![0..0; weights.len()];
        Self { weights, of_node, panels_of, panels: Vec::new(), forward: false, packed: None }
    }

    /// Returns the weights that can be packed.
    pub(crate) fn into_weights(self) -> Vec<Weight> {
        self.weights
    }

    /// Sets the packed weights that the next runs read. They must be those of the parameters of
    /// these runs. `None` means that each run packs its weights.
    pub(crate) fn set_packed(&mut self, packed: Option<Arc<PackedParams>>) {
        self.packed = packed;
    }

    /// Returns the packed weights that the next runs read.
    pub(crate) fn take_packed(&mut self) -> Option<Arc<PackedParams>> {
        self.packed.take()
    }

    /// Packs the weights that a run of `rows` rows reads.
    pub(crate) fn pack(&mut self, workers: &Workers, params: &Params, rows: usize, log: &Log) {
        if self.packed.is_some() {
            return;
        }
        self.forward = rows >= FORWARD_ROWS;
        let turned = self.weights.iter().take_while(|weight| weight.turned).count();
        let wanted = if self.forward { self.weights.len() } else { turned };
        for index in 0..wanted {
            if self.panels_of[index].is_empty() {
                let (rows, cols) = self.weights[index].packed_shape();
                let first = self.panels.len();
                self.panels.extend(Panel::list(rows, cols));
                self.panels_of[index] = first..self.panels.len();
            }
        }
        let Self { weights, panels_of, panels, .. } = self;
        let end = wanted.checked_sub(1).map_or(0, |last| panels_of[last].end);
        workers.for_each_mut(&mut panels[..end], |at, panel| {
            let index = panels_of[..wanted].partition_point(|panels| panels.end <= at);
            let begun = log.begin();
            panel.fill(weights[index].view(params));
            log.end(begun, Work::Pack);
        });
    }

    /// Returns the packed weight of a product, or `None` if the weight is not packed in this run.
    pub(crate) fn of(&self, id: NodeId) -> Option<Packed<'_>> {
        let index = self.of_node[id.0 as usize]?;
        if let Some(packed) = &self.packed {
            return packed.packed(&self.weights[index]).map(Packed::from);
        }
        if !self.weights[index].turned && !self.forward {
            return None;
        }
        self.panels.get(self.panels_of[index].clone()).map(Packed::F32)
    }
}

/// Returns the number of bytes of packed operands in runs of `rows` rows on `threads` threads.
pub(crate) fn bytes(program: &Program, rows: usize, threads: usize) -> usize {
    let packed = |weight: &&Weight| weight.turned || rows >= FORWARD_ROWS;
    let floats = |weight: &Weight| {
        let (rows, cols) = weight.packed_shape();
        Panel::floats(rows, cols)
    };
    let weights =
        Packing::new(program, |_| true).weights.iter().filter(packed).map(floats).sum::<usize>();
    let steps = program.phases.iter().flat_map(|phase| &phase.tile);
    let scratch = steps.filter_map(|step| match *step {
        Step::Accumulate(id) if program.lowered.graph.node(id).op == Op::MatMulTn => {
            Some(Scratch::floats(
                program.lowered.settings.tile_rows,
                program.lowered.graph.shape(id).cols,
            ))
        }
        _ => None,
    });
    4 * (weights + scratch.max().unwrap_or(0) * threads)
}
