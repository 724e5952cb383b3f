//! The operations of a graph.
//!
//! An operation is a small value. One file of [`ops`](crate::ops) contains everything about it
//! except its name: its shape, kernels, gradient, cost and ONNX form. The operations of the
//! backward pass are operations too.
//!
//! The graph of a version is the serialised form of these types: if a variant or a field is
//! renamed, old versions become unreadable.

mod losses;

use serde::{Deserialize, Serialize};
use zillion_feature::Pooling;

use super::shape::{Dim, ParamId, Shape};
pub use losses::{Distance, Focal, GroupLoss};

/// A lookup of some floats of each row that a sparse column refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gather {
    /// The index of the sparse column.
    pub column: usize,
    /// The index in the row of the first float that is read.
    pub offset: usize,
    /// The number of floats that are read.
    pub dim: usize,
    /// The rule by which the rows of a list become one row. In a column without lists, each list
    /// has one value. With `None`, the rows are not pooled. Then the result has one row for each
    /// value of the column, multiplied by the value's weight if the column has weights.
    pub pooling: Option<Pooling>,
}

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Unary {
    /// The function `max(x, 0)`, with derivative 0 at 0.
    Relu,
    /// The function `x` where `x` is positive, and `slope · x` elsewhere.
    LeakyRelu {
        /// The slope below zero.
        slope: f32,
    },
    /// The logistic function `1 / (1 + e^-x)`.
    Sigmoid,
    /// The hyperbolic tangent of x.
    Tanh,
    /// The Gaussian error linear unit in its tanh form (Hendrycks & Gimpel 2016).
    Gelu,
    /// The function `x · sigmoid(x)`.
    Silu,
    /// The function `ln(1 + e^x)`.
    Softplus,
    /// The square `x²` of the element.
    Square,
    /// The square root `√x` of the element.
    Sqrt,
    /// The exponential `e^x` of the element.
    Exp,
    /// The natural logarithm `ln x`.
    Ln,
    /// The product `by · x`.
    Scale {
        /// The factor of every element.
        by: f32,
    },
    /// The sum `x + by`.
    Offset {
        /// The summand of every element.
        by: f32,
    },
}

/// A function of two elements. An operand of one row or one column is broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Binary {
    /// The sum `a + b`.
    Add,
    /// The difference `a − b`.
    Sub,
    /// The product `a · b`.
    Mul,
    /// The quotient `a / b`.
    Div,
    /// The quotient `a / b`, and 0 where `b` is 0: the mean over an empty list is 0.
    SafeDiv,
}

/// The scores `by · u_i·v_j` of the rows of a batch against each other. If two different rows have
/// the same value of a column, their score is left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InBatch {
    /// The index of the sparse column that identifies items, which has one value in each row.
    pub column: usize,
    /// The factor of the dot products, which is one divided by the temperature.
    pub by: f32,
}

/// A function in a chain that is applied to each element of a running value. Its operands are the
/// next inputs of the fused operation. An operand has the shape of the value, or is broadcast to
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Link {
    /// The function of the running value, without an operand.
    Unary(Unary),
    /// The product of the running value, which is a gradient, and the function's derivative at the
    /// operand.
    UnaryGrad(Unary),
    /// The product of the operand, which is a gradient, and the function's derivative at the
    /// running value.
    PointOf(Unary),
    /// The function of the running value and the operand `b`, in this order.
    Binary(Binary),
    /// The function of the operand `a` and the running value, in this order.
    BinaryOf(Binary),
    /// The sum `value·b + c` with the operands b and c.
    MulAdd,
    /// The sum `a·value + c` with the operands a and c.
    MulAddOf,
    /// The sum `a·b + value` with the operands a and b.
    AddProduct,
}

/// An operation with a chain of functions. Each element of its result goes through the chain before
/// another node reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fused {
    /// The operation that computes the rows, called the head.
    pub head: Op,
    /// The number of inputs of the head. The operands of the links follow them.
    pub head_inputs: usize,
    /// The functions that each element goes through, in order.
    pub chain: Vec<Link>,
}

impl Link {
    /// Returns the number of operands of the link.
    pub fn inputs(self) -> usize {
        match self {
            Self::Unary(_) => 0,
            Self::UnaryGrad(_) | Self::PointOf(_) | Self::Binary(_) | Self::BinaryOf(_) => 1,
            Self::MulAdd | Self::MulAddOf | Self::AddProduct => 2,
        }
    }
}

/// The operation of a node. The comment of each variant describes its result. Then it gives the
/// inputs and the shape of the result: (inputs) → shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// The unique rows of a table: () → `[U, stride]`.
    Rows {
        /// The index of the table.
        table: usize,
    },
    /// The values of numeric columns, one column of the result for each: () → `[B, n]`.
    Numeric {
        /// The indices of the columns.
        columns: Vec<usize>,
    },
    /// The values of a label: () → `[B, 1]`.
    Label {
        /// The index of the label.
        label: usize,
    },
    /// The sample weight (1 in a batch without weights), and 0 where the label is missing:
    /// () → `[B, 1]`.
    Weight {
        /// The label whose missing rows get weight 0, or `None` if no label is considered.
        label: Option<usize>,
    },
    /// The value of a parameter: () → `[rows, cols]`.
    Param {
        /// The index of the parameter.
        param: ParamId,
    },
    /// A constant with the same value in every element: () → `[rows, cols]`.
    Fill {
        /// The value of every element.
        value: f32,
        /// The shape of the result, which is constant.
        shape: Shape,
    },

    /// The rows of a column's keys. With pooling, the rows of each list become one row: (rows) →
    /// `[B, dim]`. Without pooling, each value has its own row: (rows) → `[V, dim]`.
    Gather(Gather),
    /// The positions of the maxima of a max pooling. Each element of the result is the position in
    /// its list of the row with the largest value: (rows) → `[B, dim]`.
    GatherArgMax(Gather),
    /// The gradients of a table's rows. The gradient of a row is the sum over its occurrences in
    /// ascending order: (the gradient of each gather, followed by its arg-max for a max pooling) →
    /// `[U, stride]`.
    GatherGrad {
        /// The index of the table.
        table: usize,
        /// The gathers, in the order of the inputs.
        gathers: Vec<Gather>,
    },

    /// The product `x·w + b`: (x `[r, k]`, w `[k, n]`, optionally b `[1, n]`) → `[r, n]`.
    Linear,
    /// The product `g·wᵀ`: (g `[r, n]`, w `[k, n]`) → `[r, k]`.
    MatMulNt,
    /// The product `xᵀ·g`: (x `[r, k]`, g `[r, n]`) → `[k, n]`.
    MatMulTn,

    /// A function of each element: (x) → the shape of x.
    Unary(Unary),
    /// The gradient `g · f'` of a function: (g, x or y) → the shape of g. The second input is the
    /// function's result if [`Unary::uses_result`], otherwise its argument.
    UnaryGrad(Unary),
    /// A function of each pair of elements: (a, b) → the larger shape.
    Binary(Binary),
    /// The sum `a·b + c` of each element: (a, b, c) → the shape of a.
    MulAdd,
    /// The sum of values from left to right: (up to eight values of the same shape) → that shape.
    AddN,

    /// The concatenation of columns: (several values with the same rows) → all their columns, in
    /// order.
    Concat,
    /// The columns `start .. start + len` of a value: (x) → `[r, len]`.
    Slice {
        /// The index of the first column of the slice.
        start: usize,
        /// The number of columns.
        len: usize,
    },
    /// A wider matrix with x as its columns from `start` on and zeros elsewhere: (x) → `[r,
    /// total]`.
    Pad {
        /// The first column of x in the result.
        start: usize,
        /// The number of columns of the result.
        total: usize,
    },

    /// The sum of each row: (x `[r, n]`) → `[r, 1]`.
    SumColumns,
    /// The dot product of each pair of rows: (a, b of one shape) → `[r, 1]`.
    RowDot,
    /// The sum or the mean of each column: (x `[r, n]`) → `[1, n]`.
    SumRows {
        /// Whether the sum is divided by the number of rows.
        mean: bool,
    },
    /// The repetition of a single column: (x `[r, 1]`) → `[r, cols]`.
    BroadcastColumns {
        /// The number of columns of the result.
        cols: usize,
    },
    /// The repetition of a single row: (x `[1, n]`) → `[rows, n]`. With `mean`, each row is divided
    /// by the number of rows.
    BroadcastRows {
        /// The rows of the result.
        rows: Dim,
        /// Whether each element is divided by the number of rows.
        mean: bool,
    },

    /// The repetition of each row of the batch, once for each value of its list: (x `[B, n]`) →
    /// `[V, n]`.
    Repeat {
        /// The index of the column with the lists.
        column: usize,
        /// Whether each row is divided by the length of its list.
        mean: bool,
    },
    /// The sum or the mean over each list, and 0 for an empty list: (x `[V, n]`) → `[B, n]`.
    SegmentSum {
        /// The index of the column with the lists.
        column: usize,
        /// Whether the sum is divided by the length of the list.
        mean: bool,
    },
    /// The softmax over each list, for each column of x: (x `[V, n]`) → `[V, n]`.
    SegmentSoftmax {
        /// The index of the column with the lists.
        column: usize,
    },
    /// The gradient of the softmax over each list, computed from its result y: (g, y) → the shape
    /// of y.
    SegmentSoftmaxGrad {
        /// The index of the column with the lists.
        column: usize,
    },

    /// The softmax of each row: (x `[r, n]`) → the shape of x.
    SoftmaxColumns,
    /// The gradient of the softmax of each row, computed from its result y: (g, y) → the shape of
    /// y.
    SoftmaxColumnsGrad,
    /// The logarithm of the sum of `e^x` over each row: (x `[r, n]`) → `[r, 1]`.
    LogSumExpColumns,

    /// The mean and the biased variance of each column over the rows: (x `[r, n]`) → `[1, 2n]`.
    BatchNormStats,
    /// The normalisation of x by given statistics: (x, stats `[1, 2n]`, scale `[1, n]`, shift `[1,
    /// n]`) → `[r, n]`.
    BatchNorm {
        /// The number that is added to the variance.
        eps: f32,
    },
    /// The gradients of batch norm's scale and shift: (g, x, stats) → `[1, 2n]`.
    BatchNormReduce {
        /// The number that is added to the variance.
        eps: f32,
    },
    /// The gradient of batch norm's x, including the path through the batch's statistics: (g, x,
    /// stats, scale, reduced `[1, 2n]`) → `[r, n]`.
    BatchNormGrad {
        /// The number that is added to the variance.
        eps: f32,
    },
    /// The gradient of batch norm's x if the statistics are constants: (g, stats, scale) →
    /// `[r, n]`.
    BatchNormFixedGrad {
        /// The number that is added to the variance.
        eps: f32,
    },
    /// The next running mean, or the next unbiased running variance: (running `[1, n]`, stats `[1,
    /// 2n]`) → `[1, n]`.
    BatchNormRunning {
        /// The share of the new statistics in the result.
        momentum: f32,
        /// Whether this is the running variance. Otherwise it is the running mean.
        variance: bool,
    },
    /// The normalisation of each row: (x, scale `[1, n]`, shift `[1, n]`) → the shape of x.
    LayerNorm {
        /// The number that is added to the variance.
        eps: f32,
    },
    /// The gradients of layer norm's scale and shift: (g, x) → `[1, 2n]`.
    LayerNormReduce {
        /// The number that is added to the variance.
        eps: f32,
    },
    /// The gradient of layer norm's x: (g, x, scale) → the shape of x.
    LayerNormGrad {
        /// The number that is added to the variance.
        eps: f32,
    },
    /// Dropout, which sets some elements to zero and scales the others by `1 / (1 − rate)`: (x `[r,
    /// n]`) → the shape of x. The same operation computes its gradient, because the mask depends
    /// only on the seed, the step, the salt, the row or value, and the unit.
    Dropout {
        /// The share of elements that become zero.
        rate: f32,
        /// The number of the layer. It gives each layer of a model its own mask.
        salt: u32,
    },
    /// The values that 8-bit integers with a scale for each row or column stand for: (x `[r, n]`) →
    /// the shape of x. The gradient goes straight through. Only training has it.
    FakeQuantize {
        /// Whether each column has a scale, as in a weight. Otherwise each row has one, as in an
        /// input.
        columns: bool,
    },

    /// The sum of the dot products of all pairs of fields (Rendle 2010): (x `[r, F·dim]`) →
    /// `[r, 1]`.
    FmInteraction {
        /// The number of floats of a field.
        dim: usize,
    },
    /// The gradient of [`Op::FmInteraction`]: (g, x) → the shape of x.
    FmInteractionGrad {
        /// The number of floats of a field.
        dim: usize,
    },
    /// The dot product of each pair of fields `(i, j)`, `j < i`, in DLRM's order (1,0), (2,0),
    /// (2,1), … (Naumov et al. 2019): (x `[r, F·dim]`) → `[r, F(F−1)/2]`.
    DotInteraction {
        /// The number of floats of a field.
        dim: usize,
    },
    /// The gradient of [`Op::DotInteraction`]: (g, x) → the shape of x.
    DotInteractionGrad {
        /// The number of floats of a field.
        dim: usize,
    },

    /// All rows of x. They are complete before the next pass begins, so every tile can read all of
    /// them: (x `[B, n]`) → `[whole B, n]`.
    Collect,
    /// The logarithm of the sum of `e^(by·u_i·v_j − c_j)` over j, for each row i: (u `[B, d]`, v
    /// `[whole B, d]`, optionally c `[whole B, 1]`) → `[B, 1]`.
    InBatchLse(InBatch),
    /// The gradient of [`Op::InBatchLse`]'s u: (g `[B, 1]`, u, the result `[B, 1]`, whole v,
    /// optionally whole c) → the shape of u.
    InBatchQueryGrad(InBatch),
    /// The gradient of [`Op::InBatchLse`]'s v: (v `[B, d]`, whole u, whole result, whole g,
    /// optionally c `[B, 1]`) → the shape of v.
    InBatchItemGrad(InBatch),

    /// The weighted sum of binary cross-entropies: (logits, labels, weights, all `[B, 1]`) →
    /// `[1, 1]`.
    BceSum,
    /// The gradient of [`Op::BceSum`]'s logits: (g `[1, 1]`, logits, labels, weights) → `[B, 1]`.
    BceGrad,
    /// The weighted sum of focal losses: (logits, labels, weights, all `[B, 1]`) → `[1, 1]`.
    FocalSum(Focal),
    /// The gradient of [`Op::FocalSum`]'s logits: (g `[1, 1]`, logits, labels, weights) → `[B, 1]`.
    FocalGrad(Focal),
    /// The weighted sum of the losses of numbers: (scores, labels, weights, all `[B, 1]`) →
    /// `[1, 1]`.
    DistanceSum(Distance),
    /// The gradient of [`Op::DistanceSum`]'s scores: (g `[1, 1]`, scores, labels, weights) →
    /// `[B, 1]`.
    DistanceGrad(Distance),
    /// The weighted loss of each row of label 1 against the rows of its group: (scores `[B, 1]`,
    /// then whole columns `[whole B, 1]`: scores, labels, weights, numbers of groups) → `[B, 1]`.
    GroupLoss(GroupLoss),
    /// The weight of each row's [`Op::GroupLoss`]: (whole columns: labels, weights, numbers of
    /// groups) → `[B, 1]`.
    GroupWeight(GroupLoss),
    /// The gradient of [`Op::GroupLoss`]'s scores: (scores `[B, 1]`, then whole columns: scores,
    /// labels, weights, numbers of groups, gradients) → `[B, 1]`.
    GroupGrad(GroupLoss),

    /// The state of a product `x·w` after the first columns of x, which all rows share: (x `[1,
    /// p]`, w `[k, n]`) → `[1, 2n]`. The first n columns are the sum of the complete blocks of the
    /// product, and the others are the chain of the block that is not complete. Only the pass for
    /// shared columns creates this operation and the next four.
    LinearState,
    /// The product `x·w + b` of rows whose first columns have been multiplied: (the other columns x
    /// `[r, k − start]`, w `[k, n]`, state `[1, 2n]`, optionally b `[1, n]`) → `[r, n]`.
    LinearRest {
        /// The number of columns that have been multiplied.
        start: usize,
    },
    /// The state of [`Op::FmInteraction`] after the first fields, which all rows share: (x
    /// `[1, F·dim]`) → `[1, 2·dim]`, the sums of the vectors and of their squares.
    FmState {
        /// The number of floats of a field.
        dim: usize,
    },
    /// [`Op::FmInteraction`] of rows whose first fields have been added: (the other fields x `[r,
    /// F·dim]`, state `[1, 2·dim]`) → `[r, 1]`.
    FmRest {
        /// The number of floats of a field.
        dim: usize,
    },
    /// The dot products of [`Op::DotInteraction`] without the pairs of two of the first fields: (x
    /// `[r, F·dim]`) → one column for each other pair.
    DotInteractionRest {
        /// The number of floats of a field.
        dim: usize,
        /// The number of fields whose pairs are left out.
        first: usize,
    },

    /// An operation with a chain of fused links: (the inputs of the head, then the operands of the
    /// links) → the shape of the head. Only passes create this operation, after differentiation.
    Fused(Box<Fused>),
}

impl Op {
    /// Returns the operation that computes the rows. For a fused operation, this is the head. For
    /// any other operation, it is the operation itself.
    pub fn head(&self) -> &Self {
        match self {
            Self::Fused(fused) => &fused.head,
            op => op,
        }
    }
}
