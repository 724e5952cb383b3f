//! The builder of graphs from named layers.
//!
//! A layer creates its parameters under its own name (`mlp.0` has `mlp.0.weight` and `mlp.0.bias`),
//! and every error names the layer. The same model is built twice, for training and for inference.
//! Both graphs have the same parameters in the same order.

mod layers;

use std::collections::HashSet;

use zillion_feature::Pooling;

use crate::error::{Error, Result};
use crate::graph::op::{Binary, Gather, Op, Unary};
use crate::graph::shape::{Dim, NodeId, ParamId, Shape};
use crate::graph::{Graph, GraphInputs, Node, ParamInit, ParamSpec};
use crate::ops;
pub use layers::{NORM_EPS, NORM_MOMENTUM};

/// The purpose that a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training: dropout is active. Batch norm uses the statistics of the batch and updates the
    /// running statistics.
    Train,
    /// Inference: dropout does nothing, and batch norm uses the running statistics.
    Infer,
}

/// A builder that makes a [`Graph`] node by node.
///
/// ```
/// use zillion_nn::{Dim, GraphBuilder, GraphInputs, Mode};
///
/// let numeric = vec!["age".into(), "price".into()];
/// let inputs = GraphInputs { numeric, ..GraphInputs::default() };
/// let mut b = GraphBuilder::new(inputs, Mode::Train);
/// let x = b.numeric("numeric", &[0, 1])?;
/// let h = b.linear("mlp.0", x, 8)?;
/// let h = b.relu("mlp.0.relu", h)?;
/// let logit = b.linear("mlp.1", h, 1)?;
/// assert_eq!(b.shape(logit).rows, Dim::Batch);
/// # Ok::<(), zillion_nn::Error>(())
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    mode: Mode,
    names: HashSet<String>,
    rows: Vec<Option<NodeId>>,
    dropouts: u32,
    linear_init: ParamInit,
}

impl GraphBuilder {
    /// Creates an empty graph over the given inputs.
    pub fn new(inputs: GraphInputs, mode: Mode) -> Self {
        let rows = vec![None; inputs.tables.len()];
        Self {
            graph: Graph { inputs, ..Graph::default() },
            mode,
            names: HashSet::new(),
            rows,
            dropouts: 0,
            linear_init: ParamInit::XavierNormal,
        }
    }

    /// Sets the initial values of the weights of all linear layers that are added later. The
    /// default is Xavier normal.
    pub fn set_linear_init(&mut self, init: ParamInit) {
        self.linear_init = init;
    }

    /// Returns the purpose that the graph is built for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the inputs that the graph is built over.
    pub fn inputs(&self) -> &GraphInputs {
        &self.graph.inputs
    }

    /// Returns the parameters created so far.
    pub fn params(&self) -> &[ParamSpec] {
        &self.graph.params
    }

    /// Returns the shape of a node.
    pub fn shape(&self, id: NodeId) -> Shape {
        self.graph.shape(id)
    }

    /// Returns the number of columns of a node.
    pub fn cols(&self, id: NodeId) -> usize {
        self.shape(id).cols
    }

    /// Returns the graph that has been built.
    pub fn finish(self) -> Graph {
        self.graph
    }

    /// Adds a node to the results of the graph, under this name.
    pub fn output(&mut self, name: &str, id: NodeId) -> Result<()> {
        if self.graph.output(name).is_some() {
            return Err(Error::DuplicateName { node: name.to_owned() });
        }
        self.graph.outputs.push((name.to_owned(), id));
        Ok(())
    }

    /// Gives a node an additional name, unless the node already has this name.
    pub fn alias(&mut self, name: &str, id: NodeId) -> Result<()> {
        if self.graph.nodes.get(id.0 as usize).is_some_and(|node| node.name == name) {
            return Ok(());
        }
        if !self.names.insert(name.to_owned()) {
            return Err(Error::DuplicateName { node: name.to_owned() });
        }
        self.graph.aliases.push((name.to_owned(), id));
        Ok(())
    }

    /// Adds a node with any operation. The methods below call this method. In addition, they create
    /// parameters and have names for the attributes.
    pub fn push(&mut self, name: &str, op: Op, inputs: &[NodeId]) -> Result<NodeId> {
        if !self.names.insert(name.to_owned()) {
            return Err(Error::DuplicateName { node: name.to_owned() });
        }
        push_node(&mut self.graph, name.to_owned(), op, inputs)
    }

    /// Adds a parameter, and a node whose value is the parameter.
    pub fn param(
        &mut self,
        name: &str,
        shape: (usize, usize),
        init: ParamInit,
        trainable: bool,
    ) -> Result<(ParamId, NodeId)> {
        let param = ParamId(self.graph.params.len() as u32);
        let spec =
            ParamSpec { name: name.to_owned(), rows: shape.0, cols: shape.1, init, trainable };
        self.graph.params.push(spec);
        let node = self.push(name, Op::Param { param }, &[])?;
        Ok((param, node))
    }

    // The inputs of the model.

    /// Adds a lookup of the rows of a column's keys. It reads the floats `offset .. offset + dim`
    /// of each row and pools the rows of each list: `[B, dim]`.
    pub fn gather(
        &mut self,
        name: &str,
        column: usize,
        offset: usize,
        dim: usize,
        pooling: Pooling,
    ) -> Result<NodeId> {
        self.look_up(name, Gather { column, offset, dim, pooling: Some(pooling) })
    }

    /// Adds a lookup of the rows of a column's keys without pooling. It reads the floats `offset ..
    /// offset + dim` of the row of each value, and multiplies them by the value's weight if the
    /// column has weights: `[V, dim]`.
    pub fn gather_values(
        &mut self,
        name: &str,
        column: usize,
        offset: usize,
        dim: usize,
    ) -> Result<NodeId> {
        self.look_up(name, Gather { column, offset, dim, pooling: None })
    }

    fn look_up(&mut self, name: &str, gather: Gather) -> Result<NodeId> {
        let column = gather.column;
        let Some(table) = self.graph.inputs.columns.get(column).map(|c| c.table) else {
            return Err(refuse(
                name,
                format!("there is no sparse column {column}; name a column of the inputs"),
            ));
        };
        let rows = match self.rows.get(table).copied() {
            None => {
                return Err(refuse(
                    name,
                    format!("there is no table {table}; name a table of the inputs"),
                ));
            }
            Some(Some(rows)) => rows,
            Some(None) => {
                let rows_name = format!("rows.{}", self.graph.inputs.tables[table].name);
                let rows = self.push(&rows_name, Op::Rows { table }, &[])?;
                self.rows[table] = Some(rows);
                rows
            }
        };
        self.push(name, Op::Gather(gather), &[rows])
    }

    /// Adds the values of numeric columns, one column of the result for each: `[B, n]`.
    pub fn numeric(&mut self, name: &str, columns: &[usize]) -> Result<NodeId> {
        self.push(name, Op::Numeric { columns: columns.to_vec() }, &[])
    }

    /// Adds a label: `[B, 1]`.
    pub fn label(&mut self, name: &str, label: usize) -> Result<NodeId> {
        self.push(name, Op::Label { label }, &[])
    }

    /// Adds the sample weight: `[B, 1]`. The weight is 0 in rows where the given label is missing.
    pub fn weight(&mut self, name: &str, label: Option<usize>) -> Result<NodeId> {
        self.push(name, Op::Weight { label }, &[])
    }

    /// Adds a constant with the same value in every element.
    pub fn fill(&mut self, name: &str, rows: usize, cols: usize, value: f32) -> Result<NodeId> {
        self.push(name, Op::Fill { value, shape: Shape::constant(rows, cols) }, &[])
    }

    // The layers without parameters.

    /// Adds dropout. In training, a share `rate` of the elements becomes zero, and the other
    /// elements are multiplied by `1 / (1 − rate)`. In inference, returns `x` itself.
    pub fn dropout(&mut self, name: &str, x: NodeId, rate: f32) -> Result<NodeId> {
        if !(0.0..1.0).contains(&rate) {
            return Err(refuse(
                name,
                format!("the dropout rate must be at least 0 and below 1, found {rate}"),
            ));
        }
        self.dropouts += 1;
        if self.mode == Mode::Infer || rate == 0.0 {
            return Ok(x);
        }
        self.push(name, Op::Dropout { rate, salt: self.dropouts }, &[x])
    }

    /// Adds the product `x·w`.
    pub fn matmul(&mut self, name: &str, x: NodeId, w: NodeId) -> Result<NodeId> {
        self.push(name, Op::Linear, &[x, w])
    }

    /// Adds a function of each element.
    pub fn unary(&mut self, name: &str, function: Unary, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::Unary(function), &[x])
    }

    /// Adds the function `max(x, 0)` of each element.
    pub fn relu(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.unary(name, Unary::Relu, x)
    }

    /// Adds the logistic function `1 / (1 + e^-x)`, which turns logits into probabilities.
    pub fn sigmoid(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.unary(name, Unary::Sigmoid, x)
    }

    /// Adds the product `by · x` of each element.
    pub fn scale(&mut self, name: &str, x: NodeId, by: f32) -> Result<NodeId> {
        self.unary(name, Unary::Scale { by }, x)
    }

    /// Adds a function of two elements, with broadcast.
    pub fn binary(&mut self, name: &str, function: Binary, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.push(name, Op::Binary(function), &[a, b])
    }

    /// Adds the sum `a + b`, with broadcast.
    pub fn add(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.binary(name, Binary::Add, a, b)
    }

    /// Adds the difference `a − b`, with broadcast.
    pub fn sub(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.binary(name, Binary::Sub, a, b)
    }

    /// Adds the product `a · b`, with broadcast.
    pub fn mul(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.binary(name, Binary::Mul, a, b)
    }

    /// Adds `a·b + c`, in the shape of `a`.
    pub fn mul_add(&mut self, name: &str, a: NodeId, b: NodeId, c: NodeId) -> Result<NodeId> {
        self.push(name, Op::MulAdd, &[a, b, c])
    }

    /// Adds the concatenation of the columns of several nodes. If there is only one node, returns
    /// it unchanged.
    pub fn concat(&mut self, name: &str, parts: &[NodeId]) -> Result<NodeId> {
        match parts {
            [only] => Ok(*only),
            _ => self.push(name, Op::Concat, parts),
        }
    }

    /// Adds the columns `start .. start + len` of a node.
    pub fn slice(&mut self, name: &str, x: NodeId, start: usize, len: usize) -> Result<NodeId> {
        self.push(name, Op::Slice { start, len }, &[x])
    }

    /// Adds the sum of each row.
    pub fn sum_columns(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::SumColumns, &[x])
    }

    /// Adds the mean of each row.
    pub fn mean_columns(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let sum = self.sum_columns(&format!("{name}.sum"), x)?;
        self.scale(name, sum, 1.0 / self.cols(x) as f32)
    }

    /// Adds the softmax over the elements of each row.
    pub fn softmax_columns(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::SoftmaxColumns, &[x])
    }

    /// Adds the logarithm of the sum of `e^x` over each row.
    pub fn log_sum_exp_columns(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::LogSumExpColumns, &[x])
    }

    /// Adds the sum of each column.
    pub fn sum_rows(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::SumRows { mean: false }, &[x])
    }

    /// Adds the mean of each column.
    pub fn mean_rows(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::SumRows { mean: true }, &[x])
    }

    /// Adds the dot product of each pair of rows.
    pub fn row_dot(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.push(name, Op::RowDot, &[a, b])
    }

    // The operations over lists.

    /// Adds the repetition of each row of the batch, once for each value of the row's list in a
    /// column: `[B, n]` to `[V, n]`.
    pub fn repeat(&mut self, name: &str, x: NodeId, column: usize) -> Result<NodeId> {
        self.push(name, Op::Repeat { column, mean: false }, &[x])
    }

    /// Adds the sum over each list: `[V, n]` to `[B, n]`, 0 for an empty list.
    pub fn segment_sum(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let column = self.lists_of(name, x)?;
        self.push(name, Op::SegmentSum { column, mean: false }, &[x])
    }

    /// Adds the mean over each list: `[V, n]` to `[B, n]`, 0 for an empty list.
    pub fn segment_mean(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let column = self.lists_of(name, x)?;
        self.push(name, Op::SegmentSum { column, mean: true }, &[x])
    }

    /// Adds the softmax over each list, separately for each column of `x [V, n]`.
    pub fn segment_softmax(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let column = self.lists_of(name, x)?;
        self.push(name, Op::SegmentSoftmax { column }, &[x])
    }

    /// Returns the column whose values are the rows of `x`, or an error if `x` has other rows.
    fn lists_of(&self, name: &str, x: NodeId) -> Result<usize> {
        match self.shape(x) {
            Shape { rows: Dim::Values(column), .. } => Ok(column),
            other => Err(refuse(
                name,
                format!(
                    "the input {other} is not the values of a list column; read a node that has a \
                     row for each value"
                ),
            )),
        }
    }

    /// Adds the second-order interaction of fields of `dim` floats: `½ Σ ((Σ v)² − Σ v²)`.
    pub fn fm(&mut self, name: &str, x: NodeId, dim: usize) -> Result<NodeId> {
        self.push(name, Op::FmInteraction { dim }, &[x])
    }

    /// Adds the dot product of each pair of fields of `dim` floats.
    pub fn dot_interaction(&mut self, name: &str, x: NodeId, dim: usize) -> Result<NodeId> {
        self.push(name, Op::DotInteraction { dim }, &[x])
    }

    /// Adds the binary cross-entropy of logits against a label: `Σ w·l / Σ w`, where `w` is the
    /// sample weight. The sums are over the rows that have the label. The result is 0 if no row has
    /// it.
    pub fn bce_with_logits(&mut self, name: &str, logits: NodeId, label: usize) -> Result<NodeId> {
        let labels = self.label(&format!("{name}.label"), label)?;
        let weights = self.weight(&format!("{name}.weight"), Some(label))?;
        self.weighted_bce(name, logits, labels, weights)
    }

    /// Adds the weighted mean `Σ w·l / Σ w` of the binary cross-entropy of logits against labels of
    /// 0 and 1. All inputs are `[B, 1]`. The result is 0 if every weight is 0. In a row with weight
    /// 0, the logit and the label are not read.
    pub fn weighted_bce(
        &mut self,
        name: &str,
        logits: NodeId,
        labels: NodeId,
        weights: NodeId,
    ) -> Result<NodeId> {
        let total = self.sum_rows(&format!("{name}.weight.sum"), weights)?;
        let sum = self.push(&format!("{name}.sum"), Op::BceSum, &[logits, labels, weights])?;
        self.binary(name, Binary::SafeDiv, sum, total)
    }
}

/// Appends a node after checking its shape. The caller ensures that its name is new.
pub(crate) fn push_node(
    graph: &mut Graph,
    name: String,
    op: Op,
    inputs: &[NodeId],
) -> Result<NodeId> {
    if let Some(unknown) = inputs.iter().find(|i| i.0 as usize >= graph.nodes.len()) {
        return Err(refuse(
            &name,
            format!("there is no node {unknown}; name a node of this graph"),
        ));
    }
    let shapes: Vec<Shape> = inputs.iter().map(|&i| graph.shape(i)).collect();
    let shape = ops::shape(&op, &shapes, graph).map_err(|reason| refuse(&name, reason))?;
    // Only some operations may read a value with the rows of the whole batch.
    let made_for_it = matches!(
        op,
        Op::Collect
            | Op::InBatchLse(_)
            | Op::InBatchQueryGrad(_)
            | Op::InBatchItemGrad(_)
            | Op::GroupLoss(_)
            | Op::GroupWeight(_)
            | Op::GroupGrad(_)
    );
    if !made_for_it && shapes.iter().any(|s| s.rows == Dim::Whole) {
        return Err(refuse(
            &name,
            format!(
                "{} cannot read a value of the whole batch; read a node with a row for each row \
                 of the batch",
                op.name()
            ),
        ));
    }
    if shape.cols == 0 || shape.rows == Dim::Const(0) {
        return Err(refuse(
            &name,
            format!("the result {shape} has no elements; give it at least one row and one column"),
        ));
    }
    let id = NodeId(graph.nodes.len() as u32);
    graph.nodes.push(Node { name, op, inputs: inputs.to_vec(), shape });
    Ok(id)
}

fn refuse(node: &str, reason: String) -> Error {
    Error::Shape { node: node.to_owned(), reason }
}
