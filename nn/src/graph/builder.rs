//! Models from named layers.
//!
//! A layer creates its parameters under its name (`mlp.0` has `mlp.0.weight` and `mlp.0.bias`), and
//! every refusal names the layer. The same definition is built twice, for training and for
//! inference; both declare the same parameters in the same order.

use std::collections::HashSet;

use zillion_feature::Pooling;

use crate::error::{Error, Result};
use crate::graph::op::{Binary, Gather, Op, Unary};
use crate::graph::shape::{Dim, NodeId, ParamId, Shape};
use crate::graph::{Graph, GraphInputs, Node, ParamInit, ParamSpec};
use crate::ops;

/// Added to the variance by batch and layer norm, as in torch.
pub const NORM_EPS: f32 = 1e-5;
/// Weight of a batch's statistics in batch norm's running ones, as in torch.
pub const NORM_MOMENTUM: f32 = 0.1;

/// What a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Dropout drops, batch norm uses the batch's statistics and moves the running ones.
    Train,
    /// Dropout does nothing, batch norm uses the running statistics.
    Infer,
}

/// Builds a [`Graph`], node by node.
///
/// ```
/// use zillion_nn::{Dim, GraphBuilder, GraphInputs, Mode};
///
/// let inputs = GraphInputs { numeric: vec!["age".into(), "price".into()], ..GraphInputs::default() };
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
    /// An empty graph over the given inputs.
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

    /// How weights of linear layers made from now on begin (Xavier normal unless told).
    pub fn set_linear_init(&mut self, init: ParamInit) {
        self.linear_init = init;
    }

    /// What the graph is built for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What the graph is built over.
    pub fn inputs(&self) -> &GraphInputs {
        &self.graph.inputs
    }

    /// Parameters made so far.
    pub fn params(&self) -> &[ParamSpec] {
        &self.graph.params
    }

    /// A node's shape.
    pub fn shape(&self, id: NodeId) -> Shape {
        self.graph.shape(id)
    }

    /// A node's columns.
    pub fn cols(&self, id: NodeId) -> usize {
        self.shape(id).cols
    }

    /// The graph as built so far, given away.
    pub fn finish(self) -> Graph {
        self.graph
    }

    /// Names a result.
    pub fn output(&mut self, name: &str, id: NodeId) -> Result<()> {
        if self.graph.output(name).is_some() {
            return Err(Error::DuplicateName { node: name.to_owned() });
        }
        self.graph.outputs.push((name.to_owned(), id));
        Ok(())
    }

    /// Gives a node a further name, unless it has that one already.
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

    /// Adds any operation. The methods below are this, with parameters created and attributes named.
    pub fn push(&mut self, name: &str, op: Op, inputs: &[NodeId]) -> Result<NodeId> {
        if !self.names.insert(name.to_owned()) {
            return Err(Error::DuplicateName { node: name.to_owned() });
        }
        push_node(&mut self.graph, name.to_owned(), op, inputs)
    }

    /// A parameter, also as a node.
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

    // Inputs.

    /// Floats `offset .. offset + dim` of the rows of a column's keys, pooled: `[B, dim]`.
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

    /// Floats `offset .. offset + dim` of the row of each of a column's keys, times the key's weight
    /// where the column has weights: `[V, dim]`.
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
            return Err(refuse(name, format!("there is no sparse column {column}")));
        };
        let rows = match self.rows.get(table).copied() {
            None => return Err(refuse(name, format!("there is no table {table}"))),
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

    /// Numeric columns side by side: `[B, n]`.
    pub fn numeric(&mut self, name: &str, columns: &[usize]) -> Result<NodeId> {
        self.push(name, Op::Numeric { columns: columns.to_vec() }, &[])
    }

    /// A label: `[B, 1]`.
    pub fn label(&mut self, name: &str, label: usize) -> Result<NodeId> {
        self.push(name, Op::Label { label }, &[])
    }

    /// The sample weight, 0 where the given label is missing: `[B, 1]`.
    pub fn weight(&mut self, name: &str, label: Option<usize>) -> Result<NodeId> {
        self.push(name, Op::Weight { label }, &[])
    }

    /// One value everywhere.
    pub fn fill(&mut self, name: &str, rows: usize, cols: usize, value: f32) -> Result<NodeId> {
        self.push(name, Op::Fill { value, shape: Shape::constant(rows, cols) }, &[])
    }

    // Layers with parameters.

    /// `x·W + b`, with `W [in, out]` Xavier normal (see [`Self::set_linear_init`]) and `b` zero.
    pub fn linear(&mut self, name: &str, x: NodeId, out: usize) -> Result<NodeId> {
        let weight = self.weight_of(name, x, out)?;
        let zero = ParamInit::Constant { value: 0.0 };
        let (_, bias) = self.param(&format!("{name}.bias"), (1, out), zero, true)?;
        self.push(name, Op::Linear, &[x, weight, bias])
    }

    /// `x·W` without a bias.
    pub fn linear_no_bias(&mut self, name: &str, x: NodeId, out: usize) -> Result<NodeId> {
        let weight = self.weight_of(name, x, out)?;
        self.push(name, Op::Linear, &[x, weight])
    }

    fn weight_of(&mut self, name: &str, x: NodeId, out: usize) -> Result<NodeId> {
        let shape = (self.cols(x), out);
        let (_, weight) = self.param(&format!("{name}.weight"), shape, self.linear_init, true)?;
        Ok(weight)
    }

    /// `x + b`, with `b [1, n]` zero at first.
    pub fn bias(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let shape = (1, self.cols(x));
        let zero = ParamInit::Constant { value: 0.0 };
        let (_, bias) = self.param(&format!("{name}.bias"), shape, zero, true)?;
        self.add(name, x, bias)
    }

    /// Batch norm over the rows (Ioffe & Szegedy 2015), with torch's constants. Training normalises by
    /// the batch's mean and biased variance and moves the running ones, the variance unbiased.
    pub fn batch_norm(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let (scale, shift) = self.scale_and_shift(name, self.cols(x))?;
        self.normalised(name, x, scale, shift)
    }

    /// Batch norm by a given scale and shift.
    fn normalised(
        &mut self,
        name: &str,
        x: NodeId,
        scale: NodeId,
        shift: NodeId,
    ) -> Result<NodeId> {
        let n = self.cols(x);
        let zero = ParamInit::Constant { value: 0.0 };
        let one = ParamInit::Constant { value: 1.0 };
        let mean_name = format!("{name}.running_mean");
        let var_name = format!("{name}.running_var");
        let (mean_param, mean) = self.param(&mean_name, (1, n), zero, false)?;
        let (var_param, var) = self.param(&var_name, (1, n), one, false)?;
        let stats_name = format!("{name}.stats");
        let stats = match self.mode {
            Mode::Infer => self.concat(&stats_name, &[mean, var])?,
            Mode::Train => {
                let stats = self.push(&stats_name, Op::BatchNormStats, &[x])?;
                for (param, running, variance) in
                    [(mean_param, mean, false), (var_param, var, true)]
                {
                    let next = format!("{}.next", if variance { &var_name } else { &mean_name });
                    let op = Op::BatchNormRunning { momentum: NORM_MOMENTUM, variance };
                    let next = self.push(&next, op, &[running, stats])?;
                    self.graph.updates.push((param, next));
                }
                stats
            }
        };
        self.push(name, Op::BatchNorm { eps: NORM_EPS }, &[x, stats, scale, shift])
    }

    /// Layer norm over the columns (Ba, Kiros & Hinton 2016).
    pub fn layer_norm(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let (scale, shift) = self.scale_and_shift(name, self.cols(x))?;
        self.push(name, Op::LayerNorm { eps: NORM_EPS }, &[x, scale, shift])
    }

    fn scale_and_shift(&mut self, name: &str, n: usize) -> Result<(NodeId, NodeId)> {
        let one = ParamInit::Constant { value: 1.0 };
        let zero = ParamInit::Constant { value: 0.0 };
        let (_, scale) = self.param(&format!("{name}.weight"), (1, n), one, true)?;
        let (_, shift) = self.param(&format!("{name}.bias"), (1, n), zero, true)?;
        Ok((scale, shift))
    }

    /// `max(x, 0) + a · min(x, 0)` with one `a` a column, 0.25 at first (He et al. 2015).
    pub fn prelu(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let init = ParamInit::Constant { value: 0.25 };
        let (_, slope) = self.param(&format!("{name}.weight"), (1, self.cols(x)), init, true)?;
        let positive = self.relu(&format!("{name}.positive"), x)?;
        let negative = self.sub(&format!("{name}.negative"), x, positive)?;
        self.mul_add(name, negative, slope, positive)
    }

    /// `p · x + (1 − p) · a · x` with `p` the sigmoid of x normalised over the rows, without scale and
    /// shift, and one `a` a column, 0 at first (Zhou et al. 2018).
    pub fn dice(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let n = self.cols(x);
        let zero = ParamInit::Constant { value: 0.0 };
        let (_, slope) = self.param(&format!("{name}.weight"), (1, n), zero, true)?;
        let one = self.fill(&format!("{name}.one"), 1, n, 1.0)?;
        let none = self.fill(&format!("{name}.none"), 1, n, 0.0)?;
        let normal = self.normalised(&format!("{name}.norm"), x, one, none)?;
        let share = self.sigmoid(&format!("{name}.share"), normal)?;
        let kept = self.mul(&format!("{name}.kept"), x, share)?;
        let rest = self.sub(&format!("{name}.rest"), x, kept)?;
        self.mul_add(name, rest, slope, kept)
    }

    /// A cross layer of DCN: `x0 · (x·w) + b + x` (Wang et al. 2017).
    pub fn cross(&mut self, name: &str, x0: NodeId, x: NodeId) -> Result<NodeId> {
        let weight = self.weight_of(name, x, 1)?;
        let projected = self.matmul(&format!("{name}.projected"), x, weight)?;
        let crossed = self.mul_add(&format!("{name}.crossed"), x0, projected, x)?;
        self.bias(name, crossed)
    }

    /// A cross layer of DCN v2: `x0 ∘ (x·W + b) + x` (Wang et al. 2021).
    pub fn cross_v2(&mut self, name: &str, x0: NodeId, x: NodeId) -> Result<NodeId> {
        let projected = self.linear(&format!("{name}.projected"), x, self.cols(x))?;
        self.mul_add(name, x0, projected, x)
    }

    /// A cross layer of DCN v2 of low rank: `x0 ∘ (x·V·U + b) + x`.
    pub fn cross_v2_low_rank(
        &mut self,
        name: &str,
        x0: NodeId,
        x: NodeId,
        rank: usize,
    ) -> Result<NodeId> {
        let narrow = self.linear_no_bias(&format!("{name}.narrow"), x, rank)?;
        let projected = self.linear(&format!("{name}.projected"), narrow, self.cols(x))?;
        self.mul_add(name, x0, projected, x)
    }

    // Layers without parameters.

    /// Zeroes a share `rate` of the elements and scales the others by `1 / (1 − rate)` in training;
    /// does nothing in inference.
    pub fn dropout(&mut self, name: &str, x: NodeId, rate: f32) -> Result<NodeId> {
        if !(0.0..1.0).contains(&rate) {
            return Err(refuse(name, format!("a dropout rate is in 0 .. 1, not {rate}")));
        }
        self.dropouts += 1;
        if self.mode == Mode::Infer || rate == 0.0 {
            return Ok(x);
        }
        self.push(name, Op::Dropout { rate, salt: self.dropouts }, &[x])
    }

    /// `x·w`.
    pub fn matmul(&mut self, name: &str, x: NodeId, w: NodeId) -> Result<NodeId> {
        self.push(name, Op::Linear, &[x, w])
    }

    /// A function of each element.
    pub fn unary(&mut self, name: &str, function: Unary, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::Unary(function), &[x])
    }

    /// `max(x, 0)`.
    pub fn relu(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.unary(name, Unary::Relu, x)
    }

    /// `1 / (1 + e^-x)`: logits to probabilities.
    pub fn sigmoid(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.unary(name, Unary::Sigmoid, x)
    }

    /// `by · x`.
    pub fn scale(&mut self, name: &str, x: NodeId, by: f32) -> Result<NodeId> {
        self.unary(name, Unary::Scale { by }, x)
    }

    /// A function of two elements, with broadcast.
    pub fn binary(&mut self, name: &str, function: Binary, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.push(name, Op::Binary(function), &[a, b])
    }

    /// `a + b`.
    pub fn add(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.binary(name, Binary::Add, a, b)
    }

    /// `a − b`.
    pub fn sub(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.binary(name, Binary::Sub, a, b)
    }

    /// `a · b`.
    pub fn mul(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.binary(name, Binary::Mul, a, b)
    }

    /// `a / b`.
    pub fn div(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.binary(name, Binary::Div, a, b)
    }

    /// `a·b + c`, in the shape of `a`.
    pub fn mul_add(&mut self, name: &str, a: NodeId, b: NodeId, c: NodeId) -> Result<NodeId> {
        self.push(name, Op::MulAdd, &[a, b, c])
    }

    /// Side by side. One node alone is returned as it is.
    pub fn concat(&mut self, name: &str, parts: &[NodeId]) -> Result<NodeId> {
        match parts {
            [only] => Ok(*only),
            _ => self.push(name, Op::Concat, parts),
        }
    }

    /// Columns `start .. start + len`.
    pub fn slice(&mut self, name: &str, x: NodeId, start: usize, len: usize) -> Result<NodeId> {
        self.push(name, Op::Slice { start, len }, &[x])
    }

    /// The sum of each row.
    pub fn sum_columns(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::SumColumns, &[x])
    }

    /// The mean of each row.
    pub fn mean_columns(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let sum = self.sum_columns(&format!("{name}.sum"), x)?;
        self.scale(name, sum, 1.0 / self.cols(x) as f32)
    }

    /// The softmax of each row.
    pub fn softmax_columns(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::SoftmaxColumns, &[x])
    }

    /// The logarithm of each row's sum of exponentials.
    pub fn log_sum_exp_columns(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::LogSumExpColumns, &[x])
    }

    /// The sum of each column.
    pub fn sum_rows(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::SumRows { mean: false }, &[x])
    }

    /// The mean of each column.
    pub fn mean_rows(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        self.push(name, Op::SumRows { mean: true }, &[x])
    }

    /// The dot product of each pair of rows.
    pub fn row_dot(&mut self, name: &str, a: NodeId, b: NodeId) -> Result<NodeId> {
        self.push(name, Op::RowDot, &[a, b])
    }

    // Lists.

    /// A row of the batch again for each value of its list in a column: `[B, n]` to `[V, n]`.
    pub fn repeat(&mut self, name: &str, x: NodeId, column: usize) -> Result<NodeId> {
        self.push(name, Op::Repeat { column, mean: false }, &[x])
    }

    /// The sum over each list: `[V, n]` to `[B, n]`, 0 of an empty list.
    pub fn segment_sum(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let column = self.lists_of(name, x)?;
        self.push(name, Op::SegmentSum { column, mean: false }, &[x])
    }

    /// The mean over each list: `[V, n]` to `[B, n]`, 0 of an empty list.
    pub fn segment_mean(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let column = self.lists_of(name, x)?;
        self.push(name, Op::SegmentSum { column, mean: true }, &[x])
    }

    /// The softmax over each list, each column of `x [V, n]` by itself.
    pub fn segment_softmax(&mut self, name: &str, x: NodeId) -> Result<NodeId> {
        let column = self.lists_of(name, x)?;
        self.push(name, Op::SegmentSoftmax { column }, &[x])
    }

    /// The column whose values the rows of `x` are.
    fn lists_of(&self, name: &str, x: NodeId) -> Result<usize> {
        match self.shape(x) {
            Shape { rows: Dim::Values(column), .. } => Ok(column),
            other => {
                Err(refuse(name, format!("{other} has no lists, only values of a column have")))
            }
        }
    }

    /// Second-order interaction of fields of `dim` floats: `½ Σ ((Σ v)² − Σ v²)`.
    pub fn fm(&mut self, name: &str, x: NodeId, dim: usize) -> Result<NodeId> {
        self.push(name, Op::FmInteraction { dim }, &[x])
    }

    /// The dot product of each pair of fields of `dim` floats.
    pub fn dot_interaction(&mut self, name: &str, x: NodeId, dim: usize) -> Result<NodeId> {
        self.push(name, Op::DotInteraction { dim }, &[x])
    }

    /// Binary cross-entropy of logits against a label, averaged by sample weight over the rows that
    /// have the label: `Σ w·l / Σ w`, 0 where no row has it.
    pub fn bce_with_logits(&mut self, name: &str, logits: NodeId, label: usize) -> Result<NodeId> {
        let labels = self.label(&format!("{name}.label"), label)?;
        let weights = self.weight(&format!("{name}.weight"), Some(label))?;
        self.weighted_bce(name, logits, labels, weights)
    }

    /// Binary cross-entropy of logits against labels of 0 and 1, averaged by weight: `Σ w·l / Σ w`, 0
    /// where every weight is; all `[B, 1]`. What stands in a row of weight 0 is not looked at.
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

/// Appends a node after checking its shape. Its name must be new.
pub(crate) fn push_node(
    graph: &mut Graph,
    name: String,
    op: Op,
    inputs: &[NodeId],
) -> Result<NodeId> {
    if let Some(unknown) = inputs.iter().find(|i| i.0 as usize >= graph.nodes.len()) {
        return Err(refuse(&name, format!("there is no node {unknown}")));
    }
    let shapes: Vec<Shape> = inputs.iter().map(|&i| graph.shape(i)).collect();
    let shape = ops::shape(&op, &shapes, graph).map_err(|reason| refuse(&name, reason))?;
    // What is complete for the batch is read by operations made for it alone.
    let made_for_it = matches!(
        op,
        Op::Collect | Op::InBatchLse(_) | Op::InBatchQueryGrad(_) | Op::InBatchItemGrad(_)
    );
    if !made_for_it && shapes.iter().any(|s| s.rows == Dim::Whole) {
        return Err(refuse(&name, format!("{} cannot read a whole batch", op.name())));
    }
    if shape.cols == 0 || shape.rows == Dim::Const(0) {
        return Err(refuse(&name, format!("a matrix of no elements, {shape}")));
    }
    let id = NodeId(graph.nodes.len() as u32);
    graph.nodes.push(Node { name, op, inputs: inputs.to_vec(), shape });
    Ok(id)
}

fn refuse(node: &str, reason: String) -> Error {
    Error::Shape { node: node.to_owned(), reason }
}
