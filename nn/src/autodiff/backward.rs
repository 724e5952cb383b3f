//! The state of a graph during differentiation. The gradient rules of operations read it and add
//! nodes to it.

use std::collections::{BTreeMap, HashSet};

use crate::error::{Error, Result};
use crate::graph::builder::push_node;
use crate::graph::op::{Gather, Op};
use crate::graph::shape::{Dim, NodeId, Shape};
use crate::graph::{Graph, Node};
use crate::ops;

/// The gradient of one lookup, which will be added to the gradient of its table.
struct Gathered {
    gather: Gather,
    gradient: NodeId,
    winners: Option<NodeId>,
}

/// The graph during differentiation, with the gradients of its nodes so far.
pub(crate) struct Backward {
    pub(super) graph: Graph,
    names: HashSet<String>,
    /// The flags of the nodes. A flag is `true` if the node's value depends on a trainable
    /// parameter or on the rows of a table.
    wanted: Vec<bool>,
    pub(super) grads: Vec<Vec<NodeId>>,
    gathered: BTreeMap<usize, Vec<Gathered>>,
}

impl Backward {
    pub(super) fn new(graph: &Graph) -> Self {
        let mut wanted = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            wanted.push(match &node.op {
                Op::Rows { .. } => true,
                Op::Param { param } => graph.param(*param).trainable,
                _ => node.inputs.iter().any(|i| wanted[i.0 as usize]),
            });
        }
        Self {
            names: graph.nodes.iter().map(|n| n.name.clone()).collect(),
            grads: vec![Vec::new(); graph.nodes.len()],
            graph: graph.clone(),
            wanted,
            gathered: BTreeMap::new(),
        }
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.graph.node(id)
    }

    pub(crate) fn shape(&self, id: NodeId) -> Shape {
        self.graph.shape(id)
    }

    /// Returns whether the gradient of a node of the forward graph is needed.
    pub(crate) fn needs_gradient(&self, id: NodeId) -> bool {
        self.wanted.get(id.0 as usize).copied().unwrap_or(false)
    }

    /// Appends a node of the backward pass, named after the forward node `of`.
    pub(crate) fn push(
        &mut self,
        of: NodeId,
        what: &str,
        op: Op,
        inputs: &[NodeId],
    ) -> Result<NodeId> {
        let stem = format!("{}.{what}", self.node(of).name);
        let mut name = stem.clone();
        let mut number = 2;
        while !self.names.insert(name.clone()) {
            name = format!("{stem}.{number}");
            number += 1;
        }
        push_node(&mut self.graph, name, op, inputs)
    }

    /// Records `gradient` as one of the gradients of the forward node `to`. Does nothing if this
    /// node needs no gradient.
    pub(crate) fn add_gradient(&mut self, to: NodeId, gradient: NodeId) {
        if self.needs_gradient(to) {
            debug_assert_eq!(self.shape(to), self.shape(gradient), "of {}", self.node(to).name);
            self.grads[to.0 as usize].push(gradient);
        }
    }

    /// Appends a backward node that computes a gradient of `to`, and records it. Does nothing if
    /// `to` needs no gradient. The new node is named after the forward node `of`.
    pub(crate) fn push_gradient(
        &mut self,
        of: NodeId,
        to: NodeId,
        op: Op,
        inputs: &[NodeId],
    ) -> Result<()> {
        if self.needs_gradient(to) {
            let gradient = self.push(of, "grad", op, inputs)?;
            self.add_gradient(to, gradient);
        }
        Ok(())
    }

    /// Records the gradient of a lookup as one of the gradients of its table.
    pub(crate) fn add_gather(
        &mut self,
        of: NodeId,
        gather: Gather,
        gradient: NodeId,
        winners: Option<NodeId>,
    ) {
        let rows = self.node(of).inputs.first().map(|&rows| self.shape(rows).rows);
        if let Some(Dim::Unique(table)) = rows {
            self.gathered.entry(table).or_default().push(Gathered { gather, gradient, winners });
        }
    }

    /// Sums `g` to the shape of an operand that was broadcast, and returns the result, which is the
    /// gradient of this operand.
    pub(crate) fn reduce_to(
        &mut self,
        of: NodeId,
        mut g: NodeId,
        operand: NodeId,
    ) -> Result<NodeId> {
        let wanted = self.shape(operand);
        if self.shape(g).cols != wanted.cols {
            g = self.push(of, "grad", Op::SumColumns, &[g])?;
        }
        if self.shape(g).rows != wanted.rows {
            g = self.push(of, "grad", Op::SumRows { mean: false }, &[g])?;
        }
        Ok(g)
    }

    /// Sums `g` to the shape of an operand that was broadcast, and records the sum as one of the
    /// operand's gradients. Does nothing if the operand needs no gradient.
    pub(crate) fn add_reduced_gradient(
        &mut self,
        of: NodeId,
        operand: NodeId,
        g: NodeId,
    ) -> Result<()> {
        if self.needs_gradient(operand) {
            let g = self.reduce_to(of, g, operand)?;
            self.add_gradient(operand, g);
        }
        Ok(())
    }

    /// Returns the error for an operation without a gradient rule.
    pub(crate) fn refuse_gradient(&self, id: NodeId) -> Error {
        let node = self.node(id);
        Error::NotDifferentiable { op: node.op.name(), node: node.name.clone() }
    }

    /// Appends nodes that add up the recorded gradients of a node, and returns the sum. Returns
    /// `None` if the node has no gradient.
    pub(super) fn sum(&mut self, id: NodeId) -> Result<Option<NodeId>> {
        let given = std::mem::take(&mut self.grads[id.0 as usize]);
        let Some((&first, mut rest)) = given.split_first() else { return Ok(None) };
        let mut total = first;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(ops::MAX_INPUTS - 1));
            let terms: Vec<NodeId> = std::iter::once(total).chain(now.iter().copied()).collect();
            total = self.push(id, "grad.sum", Op::AddN, &terms)?;
            rest = later;
        }
        Ok(Some(total))
    }

    /// Appends one node for each table with recorded gradients. The node computes the gradient of
    /// the table's rows, summed over all lookups in the order of their columns and offsets.
    pub(super) fn row_gradients(&mut self) -> Result<Vec<(usize, NodeId)>> {
        let mut nodes = Vec::new();
        for (table, mut gathered) in std::mem::take(&mut self.gathered) {
            gathered.sort_by_key(|g| (g.gather.column, g.gather.offset, g.gradient));
            let gathers = gathered.iter().map(|g| g.gather).collect();
            let inputs: Vec<NodeId> = gathered
                .iter()
                .flat_map(|g| std::iter::once(g.gradient).chain(g.winners))
                .collect();
            let rows = self.graph.nodes.iter().position(|n| n.op == Op::Rows { table });
            let Some(rows) = rows else { continue };
            let op = Op::GatherGrad { table, gathers };
            nodes.push((table, self.push(NodeId(rows as u32), "grad", op, &inputs)?));
        }
        Ok(nodes)
    }
}
