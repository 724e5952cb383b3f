//! The products of a program with factors of bf16, and their packed weights.
//!
//! Factors are rounded when they are packed: a weight once in each run, in the order that each of
//! its products reads, and the rows of a tile by each product that reads them. Parameters, sums and
//! all values between operations are f32.
//!
//! # Invariants
//! Panels are filled from the parameters of the run before its first tile. Until the end of the
//! run, they are only read. So no product reads an older weight.

use std::ops::Range;

use zillion_device::Workers;
use zillion_device::matmul::bf16::{Instructions, Panel, Scratch};

use crate::cpu::packing::Weight;
use crate::cpu::program::{Program, Step};
use crate::graph::op::Op;
use crate::graph::shape::NodeId;
use crate::ops::NarrowProduct;
use crate::params::Params;
use crate::timeline::{Log, Work};

/// The operand of a product that is packed before the tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    /// The weight with this index.
    Weight(usize),
    /// No operand: the weight is a computed value, or the product has none.
    None,
}

/// The products of a program with factors of bf16.
#[derive(Debug)]
pub(crate) struct Narrow {
    instructions: Instructions,
    /// The operand of each node; `None` for a node that is exact.
    of_node: Vec<Option<Operand>>,
    weights: Vec<Weight>,
    /// The range of the panels of each weight.
    panels_of: Vec<Range<usize>>,
    panels: Vec<Panel>,
}

impl Narrow {
    /// Finds the products of layers in a program. No weight is packed yet.
    pub(crate) fn new(program: &Program, instructions: Instructions) -> Self {
        let lowered = &program.lowered;
        let mut narrow = Self {
            instructions,
            of_node: vec![None; lowered.graph.nodes.len()],
            weights: Vec::new(),
            panels_of: Vec::new(),
            panels: Vec::new(),
        };
        for &step in program.phases.iter().flat_map(|phase| &phase.tile) {
            let (Step::Compute(id) | Step::Accumulate(id)) = step else { continue };
            let node = lowered.graph.node(id);
            let &[x, y, ..] = node.inputs.as_slice() else { continue };
            let operand = match node.op.head() {
                Op::Linear | Op::MatMulNt if lowered.is_layer_product(x, y) => {
                    match Weight::of(&lowered.graph, &program.placement.places, id) {
                        Some(weight) => Operand::Weight(narrow.index(weight)),
                        None => Operand::None,
                    }
                }
                Op::MatMulTn if lowered.is_layer_outer_product(x, y, lowered.work_rows(id)) => {
                    Operand::None
                }
                _ => continue,
            };
            narrow.of_node[id.0 as usize] = Some(operand);
        }
        narrow
    }

    /// Returns the index of a weight, which is added if it is new.
    fn index(&mut self, weight: Weight) -> usize {
        if let Some(index) = self.weights.iter().position(|&other| other == weight) {
            return index;
        }
        let (rows, cols) = weight.packed_shape();
        let first = self.panels.len();
        self.panels.extend(Panel::list(rows, cols));
        self.panels_of.push(first..self.panels.len());
        self.weights.push(weight);
        self.weights.len() - 1
    }

    /// Returns the instructions that multiply.
    pub(crate) fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// Returns whether a node is such a product.
    pub(crate) fn has(&self, id: NodeId) -> bool {
        self.of_node[id.0 as usize].is_some()
    }

    /// Packs the weights of a run.
    pub(crate) fn pack(&mut self, workers: &Workers, params: &Params, log: &Log) {
        let Self { weights, panels_of, panels, .. } = self;
        workers.for_each_mut(panels, |at, panel| {
            let index = panels_of.partition_point(|panels| panels.end <= at);
            let begun = log.begin();
            panel.fill(weights[index].view(params));
            log.end(begun, Work::Pack);
        });
    }

    /// Returns the product of a node, or `None` if the node is exact.
    pub(crate) fn product(&self, id: NodeId) -> Option<NarrowProduct<'_>> {
        let operand = self.of_node[id.0 as usize]?;
        let panels = match operand {
            Operand::Weight(index) => self.panels.get(self.panels_of[index].clone()),
            Operand::None => None,
        };
        let scratch = Scratch::default();
        Some(NarrowProduct { instructions: self.instructions, panels, scratch })
    }
}
