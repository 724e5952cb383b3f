//! The form of a graph between two passes: the graph with its roots, which are the nodes that must
//! be computed.

use std::collections::HashSet;

use crate::autodiff::TrainGraph;
use crate::error::Result;
use crate::graph::Graph;
use crate::graph::builder::push_node;
use crate::graph::op::Op;
use crate::graph::shape::{NodeId, ParamId};

/// A graph and its roots, which are the nodes that must be computed. A name or an alias does not
/// make a node a root.
#[derive(Clone, Debug)]
pub(crate) struct Ir {
    pub(crate) graph: Graph,
    /// The requested results, in their order.
    pub(crate) outputs: Vec<NodeId>,
    pub(crate) loss: Option<NodeId>,
    pub(crate) param_grads: Vec<(ParamId, NodeId)>,
    pub(crate) row_grads: Vec<(usize, NodeId)>,
    /// Whether running statistics are updated.
    trains: bool,
}

impl Ir {
    /// Creates the graph of a training step. Its roots are the loss, the gradients, the running
    /// statistics and the named results.
    pub(crate) fn train(train: &TrainGraph) -> Self {
        Self {
            outputs: train.graph.outputs.iter().map(|&(_, id)| id).collect(),
            loss: Some(train.loss),
            param_grads: train.param_grads.clone(),
            row_grads: train.row_grads.clone(),
            graph: train.graph.clone(),
            trains: true,
        }
    }

    /// Creates the graph of some results, which become its roots.
    pub(crate) fn infer(graph: &Graph, outputs: &[NodeId]) -> Self {
        Self {
            graph: graph.clone(),
            outputs: outputs.to_vec(),
            loss: None,
            param_grads: Vec::new(),
            row_grads: Vec::new(),
            trains: false,
        }
    }

    /// Returns all nodes that must be computed.
    pub(crate) fn roots(&self) -> Vec<NodeId> {
        let mut roots = self.outputs.clone();
        roots.extend(self.loss);
        roots.extend(self.param_grads.iter().map(|&(_, id)| id));
        roots.extend(self.row_grads.iter().map(|&(_, id)| id));
        if self.trains {
            roots.extend(self.graph.updates.iter().map(|&(_, id)| id));
        }
        roots
    }

    /// Returns the number of uses of each node. Each read by another node is a use. If the node is
    /// a root, this is also a use.
    pub(super) fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.graph.nodes.len()];
        let inputs = self.graph.nodes.iter().flat_map(|node| &node.inputs).copied();
        for id in inputs.chain(self.roots()) {
            uses[id.0 as usize] += 1;
        }
        uses
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.graph.nodes.len() as u32).map(NodeId)
    }
}

/// A graph that is being rewritten. The nodes are rewritten one by one, in the order of the old
/// graph.
pub(super) struct Rewrite<'a> {
    from: &'a Ir,
    pub(super) graph: Graph,
    /// The new node that replaces each old node, or `None` if there is no such node.
    places: Vec<Option<NodeId>>,
    names: HashSet<&'a str>,
}

impl<'a> Rewrite<'a> {
    pub(super) fn new(from: &'a Ir) -> Self {
        Self {
            from,
            graph: Graph { nodes: Vec::new(), ..from.graph.clone() },
            places: vec![None; from.graph.nodes.len()],
            names: from.graph.nodes.iter().map(|node| node.name.as_str()).collect(),
        }
    }

    /// Returns the new node that replaces an old one. It exists for every input of the current
    /// node, because nodes are rewritten in order.
    pub(super) fn at(&self, old: NodeId) -> NodeId {
        self.places[old.0 as usize].unwrap_or(NodeId(u32::MAX))
    }

    /// Returns whether there is a new node that replaces the old one.
    pub(super) fn has(&self, old: NodeId) -> bool {
        self.places[old.0 as usize].is_some()
    }

    /// Copies an old node without a change.
    pub(super) fn keep(&mut self, old: NodeId) -> Result<()> {
        let from = self.from;
        let node = from.graph.node(old);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|&input| self.at(input)).collect();
        self.put(old, node.op.clone(), &inputs)
    }

    /// Writes a new operation with new inputs, which replaces the old node.
    pub(super) fn put(&mut self, old: NodeId, op: Op, inputs: &[NodeId]) -> Result<()> {
        let name = self.from.graph.node(old).name.clone();
        let new = push_node(&mut self.graph, name, op, inputs)?;
        self.replace_by(old, new);
        Ok(())
    }

    /// Writes an additional node, which is named after an old one.
    pub(super) fn insert(
        &mut self,
        of: NodeId,
        what: &str,
        op: Op,
        inputs: &[NodeId],
    ) -> Result<NodeId> {
        let stem = format!("{}.{what}", self.from.graph.node(of).name);
        let taken = |name: &str| {
            self.names.contains(name) || self.graph.nodes.iter().any(|node| node.name == name)
        };
        let mut name = stem.clone();
        let mut number = 2;
        while taken(&name) {
            name = format!("{stem}.{number}");
            number += 1;
        }
        push_node(&mut self.graph, name, op, inputs)
    }

    /// Records that a node of the new graph replaces an old node.
    pub(super) fn replace_by(&mut self, old: NodeId, new: NodeId) {
        self.places[old.0 as usize] = Some(new);
    }

    /// Returns the new graph with its roots.
    pub(super) fn finish(self) -> Ir {
        let Self { from, mut graph, places, .. } = self;
        let place = |id: NodeId| places[id.0 as usize];
        let known = |id: NodeId| place(id).unwrap_or(id);
        let named = |names: &[(String, NodeId)]| -> Vec<(String, NodeId)> {
            names.iter().filter_map(|(name, id)| Some((name.clone(), place(*id)?))).collect()
        };
        graph.outputs = named(&from.graph.outputs);
        graph.aliases = named(&from.graph.aliases);
        graph.updates =
            from.graph.updates.iter().filter_map(|&(p, id)| Some((p, place(id)?))).collect();
        Ir {
            graph,
            outputs: from.outputs.iter().map(|&id| known(id)).collect(),
            loss: from.loss.map(known),
            param_grads: from.param_grads.iter().map(|&(p, id)| (p, known(id))).collect(),
            row_grads: from.row_grads.iter().map(|&(t, id)| (t, known(id))).collect(),
            trains: from.trains,
        }
    }
}
