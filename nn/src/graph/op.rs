//! The vocabulary of operations.
//!
//! An operation is a small value. One file of [`ops`](crate::ops) has everything about it: name,
//! shape, kernels, gradient, cost, form in ONNX. Backward operations are operations too.
//!
//! The graph of a version is the serialised form of these types: if a variant or a field is
//! renamed, old versions become unreadable.

use serde::{Deserialize, Serialize};
use zillion_feature::Pooling;

use super::shape::{Dim, ParamId, Shape};

/// A lookup of a part of the rows of one sparse column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gather {
    /// The index of the sparse column.
    pub column: usize,
    /// The first float of the row that is taken.
    pub offset: usize,
    /// The number of floats that are taken.
    pub dim: usize,
    /// The rule by which the rows of a list become one row. A column without lists has one row,
    /// which is pooled alone. With `None` nothing is pooled: each value of the column has a row of
    /// its own, multiplied by its weight if the column has weights.
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

/// The scores of the batch's rows against each other: `by · u_i·v_j`. Different rows with the same
/// value of a column are left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InBatch {
    /// The sparse column, with one value a row, that identifies items.
    pub column: usize,
    /// The factor of the dot products: one over the temperature.
    pub by: f32,
}

/// A binary cross-entropy with a weight for each class and a focus on hard examples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Focal {
    /// The exponent of `1 − p`, with `p` the probability of the true label; 0 gives no focus.
    pub gamma: f32,
    /// The factor of the loss where the label is 1.
    pub positive: f32,
    /// The factor of the loss where the label is 0.
    pub negative: f32,
}

/// A function of each element of a running value. Its operands are the next inputs of the fused
/// operation; they have the value's shape or are broadcast to it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Link {
    /// () → the function `f(value)`.
    Unary(Unary),
    /// (point) → the value as a gradient, times the function's derivative at the point.
    UnaryGrad(Unary),
    /// (gradient) → the operand times the function's derivative at the value.
    PointOf(Unary),
    /// (b) → `value ∘ b`.
    Binary(Binary),
    /// (a) → `a ∘ value`.
    BinaryOf(Binary),
    /// (b, c) → `value·b + c`.
    MulAdd,
    /// (a, c) → `a·value + c`.
    MulAddOf,
    /// (a, b) → `a·b + value`.
    AddProduct,
}

/// An operation with a chain of functions that each element of its result passes through before any
/// other node reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fused {
    /// The operation that makes the rows.
    pub head: Op,
    /// The number of inputs that belong to the head; the links' operands follow.
    pub head_inputs: usize,
    /// The functions of each element, in order.
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

/// The operation of a node. The comment of each variant names its inputs and the shape of its
/// result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// () → `[U, stride]`: the unique rows of a table.
    Rows {
        /// The index of the table.
        table: usize,
    },
    /// () → `[B, n]`: numeric columns side by side.
    Numeric {
        /// The indices of the columns.
        columns: Vec<usize>,
    },
    /// () → `[B, 1]`: a label.
    Label {
        /// The index of the label.
        label: usize,
    },
    /// () → `[B, 1]`: the sample weight (1 in a batch without weights), 0 where the label is
    /// missing.
    Weight {
        /// The label whose mask applies, if any.
        label: Option<usize>,
    },
    /// () → `[rows, cols]`: a parameter.
    Param {
        /// The index of the parameter.
        param: ParamId,
    },
    /// () → `[rows, cols]`: one value everywhere.
    Fill {
        /// The value of every element.
        value: f32,
        /// The shape of the result, which is constant.
        shape: Shape,
    },

    /// (rows) → `[B, dim]`: rows of a column's keys, pooled over each list; without pooling
    /// `[V, dim]`, a row for each value.
    Gather(Gather),
    /// (rows) → `[B, dim]`: for each element of a max pooling, the index of the winning value in
    /// the list.
    GatherArgMax(Gather),
    /// (the gradient of each gather, followed by its arg-max for a max pooling) → `[U, stride]`:
    /// the gradients of a table's rows, each summed over the row's occurrences in ascending order.
    GatherGrad {
        /// The index of the table.
        table: usize,
        /// The gathers, in the order of the inputs.
        gathers: Vec<Gather>,
    },

    /// (x `[r, k]`, w `[k, n]`, optionally b `[1, n]`) → `[r, n]`: `x·w + b`.
    Linear,
    /// (g `[r, n]`, w `[k, n]`) → `[r, k]`: `g·wᵀ`.
    MatMulNt,
    /// (x `[r, k]`, g `[r, n]`) → `[k, n]`: `xᵀ·g`.
    MatMulTn,

    /// (x) → the shape of x: a function of each element.
    Unary(Unary),
    /// (g, x or y) → the shape of g: `g · f'`. The second input is the function's result where
    /// [`Unary::uses_result`], else its argument.
    UnaryGrad(Unary),
    /// (a, b) → the larger shape: a function of each pair of elements.
    Binary(Binary),
    /// (a, b, c) → the shape of a: `a·b + c`.
    MulAdd,
    /// (up to eight values of one shape) → that shape: their sum, from left to right.
    AddN,

    /// (several values of equal rows) → their columns side by side.
    Concat,
    /// (x) → the columns `start .. start + len` of x.
    Slice {
        /// The first column that is taken.
        start: usize,
        /// The number of columns.
        len: usize,
    },
    /// (x) → x as the columns from `start` on of a wider matrix whose other elements are zero.
    Pad {
        /// The first column of x in the result.
        start: usize,
        /// The number of columns of the result.
        total: usize,
    },

    /// (x `[r, n]`) → `[r, 1]`: the sum of each row.
    SumColumns,
    /// (a, b of one shape) → `[r, 1]`: the dot product of each pair of rows.
    RowDot,
    /// (x `[r, n]`) → `[1, n]`: the sum over rows, or the mean.
    SumRows {
        /// Whether the sum is divided by the number of rows.
        mean: bool,
    },
    /// (x `[r, 1]`) → `[r, cols]`: the column repeated.
    BroadcastColumns {
        /// The number of columns of the result.
        cols: usize,
    },
    /// (x `[1, n]`) → `[rows, n]`: the row repeated, divided by the number of rows if `mean`.
    BroadcastRows {
        /// The rows of the result.
        rows: Dim,
        /// Whether each element is divided by the number of rows.
        mean: bool,
    },

    /// (x `[B, n]`) → `[V, n]`: a row of the batch repeated for each value of its list.
    Repeat {
        /// The column of the lists.
        column: usize,
        /// Whether each row is divided by the length of its list.
        mean: bool,
    },
    /// (x `[V, n]`) → `[B, n]`: the sum over each list, or the mean; 0 for an empty list.
    SegmentSum {
        /// The column of the lists.
        column: usize,
        /// Whether the sum is divided by the length of the list.
        mean: bool,
    },
    /// (x `[V, n]`) → `[V, n]`: `e^x` over its sum in the list, for each column of x.
    SegmentSoftmax {
        /// The column of the lists.
        column: usize,
    },
    /// (g, y) → the gradient of x, from the result y of the softmax.
    SegmentSoftmaxGrad {
        /// The column of the lists.
        column: usize,
    },

    /// (x `[r, n]`) → the shape of x: `e^x` over its row's sum.
    SoftmaxColumns,
    /// (g, y) → the gradient of x, where `y` is the softmax of x.
    SoftmaxColumnsGrad,
    /// (x `[r, n]`) → `[r, 1]`: the logarithm of the sum of `e^x`.
    LogSumExpColumns,

    /// (x `[r, n]`) → `[1, 2n]`: the mean and the biased variance of each column over the rows.
    BatchNormStats,
    /// (x, stats `[1, 2n]`, scale `[1, n]`, shift `[1, n]`) → `[r, n]`: x normalised by the
    /// statistics.
    BatchNorm {
        /// The summand of the variance.
        eps: f32,
    },
    /// (g, x, stats) → `[1, 2n]`: the gradients of scale and shift.
    BatchNormReduce {
        /// The summand of the variance.
        eps: f32,
    },
    /// (g, x, stats, scale, reduced `[1, 2n]`) → `[r, n]`: the gradient of x through the batch's
    /// statistics.
    BatchNormGrad {
        /// The summand of the variance.
        eps: f32,
    },
    /// (g, stats, scale) → `[r, n]`: the gradient of x where the statistics are given.
    BatchNormFixedGrad {
        /// The summand of the variance.
        eps: f32,
    },
    /// (running `[1, n]`, stats `[1, 2n]`) → `[1, n]`: the next running mean or (unbiased)
    /// variance.
    BatchNormRunning {
        /// The weight of the new statistics.
        momentum: f32,
        /// Whether this is the variance rather than the mean.
        variance: bool,
    },
    /// (x, scale `[1, n]`, shift `[1, n]`) → the shape of x: each row normalised.
    LayerNorm {
        /// The summand of the variance.
        eps: f32,
    },
    /// (g, x) → `[1, 2n]`: the gradients of scale and shift.
    LayerNormReduce {
        /// The summand of the variance.
        eps: f32,
    },
    /// (g, x, scale) → the gradient of x.
    LayerNormGrad {
        /// The summand of the variance.
        eps: f32,
    },
    /// (x `[r, n]`) → the shape of x: some elements zero, the others scaled by `1 / (1 − rate)`.
    /// Dropout is its own gradient: the mask is a function of (seed, step, salt, row or value,
    /// unit).
    Dropout {
        /// The share of elements that become zero.
        rate: f32,
        /// The number of the layer, so that the layers of one model have different masks.
        salt: u32,
    },

    /// (x `[r, F·dim]`) → `[r, 1]`: the sum of the dot products of all pairs of fields (Rendle
    /// 2010).
    FmInteraction {
        /// The number of floats of a field.
        dim: usize,
    },
    /// (g, x) → the gradient of x.
    FmInteractionGrad {
        /// The number of floats of a field.
        dim: usize,
    },
    /// (x `[r, F·dim]`) → `[r, F(F−1)/2]`: the dot product of each pair `(i, j)`, `j < i`, in the
    /// order (1,0), (2,0), (2,1), … of DLRM (Naumov et al. 2019).
    DotInteraction {
        /// The number of floats of a field.
        dim: usize,
    },
    /// (g, x) → the gradient of x.
    DotInteractionGrad {
        /// The number of floats of a field.
        dim: usize,
    },

    /// (x `[B, n]`) → `[whole B, n]`: x, complete before the next pass, so that every tile can read
    /// all rows.
    Collect,
    /// (u `[B, d]`, v `[whole B, d]`, optionally c `[whole B, 1]`) → `[B, 1]`: for row i the
    /// logarithm of the sum over j of `e^(by·u_i·v_j − c_j)`.
    InBatchLse(InBatch),
    /// (g `[B, 1]`, u, the result `[B, 1]`, whole v, optionally whole c) → the gradient of u.
    InBatchQueryGrad(InBatch),
    /// (v `[B, d]`, whole u, whole result, whole g, optionally c `[B, 1]`) → the gradient of v.
    InBatchItemGrad(InBatch),

    /// (logits, labels, weights, all `[B, 1]`) → `[1, 1]`: the weighted sum of binary
    /// cross-entropies.
    BceSum,
    /// (g `[1, 1]`, logits, labels, weights) → the gradient of the logits.
    BceGrad,
    /// (logits, labels, weights, all `[B, 1]`) → `[1, 1]`: the weighted sum of focal losses.
    FocalSum(Focal),
    /// (g `[1, 1]`, logits, labels, weights) → the gradient of the logits.
    FocalGrad(Focal),

    /// (the head's inputs, then the links' operands) → the head's shape. Passes create this
    /// operation, after autodiff.
    Fused(Box<Fused>),
}

impl Op {
    /// Returns the operation that computes the rows: the head of a fused operation, otherwise the
    /// operation itself.
    pub fn head(&self) -> &Self {
        match self {
            Self::Fused(fused) => &fused.head,
            op => op,
        }
    }
}
