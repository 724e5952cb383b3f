//! The model as data: nodes of symbolic shape, in an order in which each follows its inputs.
//!
//! Every value is a matrix. Rows are symbolic (`B` rows of the batch, `U` unique rows of a table,
//! `V` values of a column) or a number; columns are always a number. What other frameworks keep as
//! `[B, F, d]` is `[B, F·d]` here, with `d` an attribute of the operation that cares.

pub(crate) mod builder;
pub mod drawing;
mod file;
pub(crate) mod op;
pub(crate) mod shape;
pub(crate) mod sizes;

use std::fmt;

use serde::{Deserialize, Serialize};

use op::Op;
use shape::{NodeId, ParamId, Shape};

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Unique in its graph.
    pub name: String,
    /// What is computed.
    pub op: Op,
    /// From what.
    pub inputs: Vec<NodeId>,
    /// Into what shape.
    pub shape: Shape,
}

/// How a parameter begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ParamInit {
    /// Normal with variance `2 / (rows + cols)` (Glorot & Bengio 2010).
    XavierNormal,
    /// Uniform in ±√(6 / (rows + cols)) (Glorot & Bengio 2010).
    XavierUniform,
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Uniform in `[low, high)`.
    Uniform {
        /// Lower end.
        low: f32,
        /// Upper end.
        high: f32,
    },
    /// One value everywhere.
    Constant {
        /// The value.
        value: f32,
    },
}

/// A dense parameter of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParamSpec {
    /// Unique in the model; the tensor's name in a checkpoint.
    pub name: String,
    /// Rows (of a weight: input units).
    pub rows: usize,
    /// Columns (of a weight: output units).
    pub cols: usize,
    /// How it begins.
    pub init: ParamInit,
    /// Whether an optimizer moves it; batch norm's running statistics are not trainable.
    pub trainable: bool,
}

/// A table as the graph sees it: rows of `stride` floats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableInput {
    /// The table's name.
    pub name: String,
    /// Floats a row.
    pub stride: usize,
}

/// A sparse column as the graph sees it: indices of a table's rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnInput {
    /// The feature's name.
    pub name: String,
    /// Index of its table.
    pub table: usize,
}

/// What a batch brings along. A run's [`Inputs`](crate::Inputs) match it by index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphInputs {
    /// Tables, in the order of the lookup plan.
    pub tables: Vec<TableInput>,
    /// Sparse columns, in schema order.
    pub columns: Vec<ColumnInput>,
    /// Numeric columns, in schema order.
    pub numeric: Vec<String>,
    /// Labels, in schema order.
    pub labels: Vec<String>,
}

/// A model: built by [`GraphBuilder`](crate::GraphBuilder), extended by
/// [`differentiate`](crate::differentiate).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// What a batch brings along.
    pub inputs: GraphInputs,
    /// Nodes, each after its inputs.
    pub nodes: Vec<Node>,
    /// Parameters, in order of creation.
    pub params: Vec<ParamSpec>,
    /// Named results.
    pub outputs: Vec<(String, NodeId)>,
    /// Parameters that a training step sets to a node's value (running statistics).
    pub updates: Vec<(ParamId, NodeId)>,
    /// Further names of nodes: what a job calls the last node of a composed layer.
    pub aliases: Vec<(String, NodeId)>,
}

impl Graph {
    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The node's shape.
    pub fn shape(&self, id: NodeId) -> Shape {
        self.node(id).shape
    }

    /// The parameter's description.
    pub fn param(&self, id: ParamId) -> &ParamSpec {
        &self.params[id.0 as usize]
    }

    /// The result of this name.
    pub fn output(&self, name: &str) -> Option<NodeId> {
        self.outputs.iter().find(|(n, _)| n == name).map(|&(_, id)| id)
    }

    /// The node of this name, its own or a further one.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        let own = self.nodes.iter().position(|n| n.name == name).map(|i| NodeId(i as u32));
        own.or_else(|| self.aliases.iter().find(|(n, _)| n == name).map(|&(_, id)| id))
    }
}

/// One line a node: `%7 = relu(%6) : [B, 400]  # mlp.0.relu`, then the outputs and updates.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, node) in self.nodes.iter().enumerate() {
            write!(f, "%{i} = {}(", node.op)?;
            for (j, input) in node.inputs.iter().enumerate() {
                let comma = if j == 0 { "" } else { ", " };
                write!(f, "{comma}{input}")?;
            }
            writeln!(f, ") : {}  # {}", node.shape, node.name)?;
        }
        for (name, id) in &self.outputs {
            writeln!(f, "output {name} = {id}")?;
        }
        for (param, id) in &self.updates {
            writeln!(f, "update {} = {id}", self.param(*param).name)?;
        }
        Ok(())
    }
}
