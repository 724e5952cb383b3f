//! A model as data: an ordered list of nodes with symbolic shapes, in which each node comes after
//! its inputs.
//!
//! Every value is a matrix. The number of rows is symbolic (`B` rows of the batch, `U` unique rows
//! of a table, `V` values of a column) or constant; the number of columns is always constant. A
//! `[B, F, d]` tensor of other frameworks is `[B, F·d]` here, and `d` is an attribute of the
//! operations that need it.

pub(crate) mod builder;
pub mod drawing;
mod file;
pub(crate) mod op;
pub(crate) mod shape;
pub(crate) mod sizes;

use std::fmt;

use serde::{Deserialize, Serialize};
use zillion_feature::SharedColumns;

use op::Op;
use shape::{NodeId, ParamId, Shape};

/// A node: one operation on the values of other nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// The name, unique in the graph.
    pub name: String,
    /// The operation that computes the value.
    pub op: Op,
    /// The nodes whose values the operation reads.
    pub inputs: Vec<NodeId>,
    /// The shape of the value.
    pub shape: Shape,
}

/// The initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ParamInit {
    /// A normal distribution with variance `2 / (rows + cols)` (Glorot & Bengio 2010).
    XavierNormal,
    /// A uniform distribution in ±√(6 / (rows + cols)) (Glorot & Bengio 2010).
    XavierUniform,
    /// A normal distribution with mean 0.
    Normal {
        /// The standard deviation of the distribution.
        std: f32,
    },
    /// A uniform distribution in `[low, high)`.
    Uniform {
        /// The lower end of the range.
        low: f32,
        /// The upper end of the range.
        high: f32,
    },
    /// The same value in every element.
    Constant {
        /// The value of every element.
        value: f32,
    },
}

/// A dense parameter of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParamSpec {
    /// The name, unique in the model, which is also the tensor's name in a checkpoint.
    pub name: String,
    /// The number of rows. For a weight, it is the number of input units.
    pub rows: usize,
    /// The number of columns. For a weight, it is the number of output units.
    pub cols: usize,
    /// The distribution of the initial values.
    pub init: ParamInit,
    /// Whether an optimizer changes the parameter. It does not change the running statistics of
    /// batch norm, for example.
    pub trainable: bool,
}

/// A table that the graph reads. Each row has `stride` floats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableInput {
    /// The name of the table.
    pub name: String,
    /// The number of floats of a row.
    pub stride: usize,
}

/// A sparse column that the graph reads: indices of a table's rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnInput {
    /// The name of the feature.
    pub name: String,
    /// The index of the feature's table.
    pub table: usize,
}

/// The inputs that a graph reads from a batch. The [`Inputs`](crate::Inputs) of a run have the same
/// tables and columns at the same indices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphInputs {
    /// The tables, in the order of the lookup plan.
    pub tables: Vec<TableInput>,
    /// The sparse columns, in schema order.
    pub columns: Vec<ColumnInput>,
    /// The numeric columns, in schema order.
    pub numeric: Vec<String>,
    /// The labels, in schema order.
    pub labels: Vec<String>,
}

/// The graph of a model. [`GraphBuilder`](crate::GraphBuilder) builds it, and
/// [`differentiate`](crate::differentiate) adds the gradients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// The inputs that the graph reads from a batch.
    pub inputs: GraphInputs,
    /// The nodes. Each node comes after its inputs.
    pub nodes: Vec<Node>,
    /// The parameters, in order of creation.
    pub params: Vec<ParamSpec>,
    /// The results of the graph, by name.
    pub outputs: Vec<(String, NodeId)>,
    /// The parameters with running statistics, each with the node that computes the value after a
    /// training step.
    pub updates: Vec<(ParamId, NodeId)>,
    /// The additional names of nodes. For example, the name of a layer with several nodes is an
    /// additional name of the layer's last node.
    pub aliases: Vec<(String, NodeId)>,
    /// The columns of the inputs that have one row, which stands for all rows of the batch. Only a
    /// pass over the graph of a program sets them, so they are never part of a file.
    #[serde(skip)]
    pub(crate) shared: SharedColumns,
}

impl Graph {
    /// Returns the node with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Returns the shape of the node.
    pub fn shape(&self, id: NodeId) -> Shape {
        self.node(id).shape
    }

    /// Returns the description of the parameter.
    pub fn param(&self, id: ParamId) -> &ParamSpec {
        &self.params[id.0 as usize]
    }

    /// Returns the result with this name, or `None` if there is none.
    pub fn output(&self, name: &str) -> Option<NodeId> {
        self.outputs.iter().find(|(n, _)| n == name).map(|&(_, id)| id)
    }

    /// Returns one flag for each node. The flag is `true` if the node is a root, or if a root
    /// depends on the node.
    pub(crate) fn live(&self, roots: impl IntoIterator<Item = NodeId>) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        roots.into_iter().for_each(|root| live[root.0 as usize] = true);
        for (index, node) in self.nodes.iter().enumerate().rev() {
            if live[index] {
                node.inputs.iter().for_each(|input| live[input.0 as usize] = true);
            }
        }
        live
    }

    /// Returns the node with this name or alias, or `None` if there is none.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        let own = self.nodes.iter().position(|n| n.name == name).map(|i| NodeId(i as u32));
        own.or_else(|| self.aliases.iter().find(|(n, _)| n == name).map(|&(_, id)| id))
    }
}

/// Writes the printed form: one line for each node, such as `%7 = relu(%6) : [B, 400]  #
/// mlp.0.relu`, then the outputs and updates.
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
