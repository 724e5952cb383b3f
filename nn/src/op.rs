//! The vocabulary of operations.
//!
//! An operation is a small value: what it computes is in [`ops`](crate::ops), one file a group, where
//! shape rule, kernels and gradient rule stand side by side. Backward operations are operations too.

use std::fmt;

use serde::{Deserialize, Serialize};
use zillion_feature::Pooling;

use crate::graph::{Dim, ParamId, Shape};

/// Which part of which column's rows is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gather {
    /// The sparse column.
    pub column: usize,
    /// First float of the row that is taken.
    pub offset: usize,
    /// Number of floats.
    pub dim: usize,
    /// How the rows of a list become one. A column without lists has one row, pooled by itself. `None`:
    /// they do not, and each value of the column has a row of its own, times its weight if it has one.
    pub pooling: Option<Pooling>,
}

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Unary {
    /// `max(x, 0)`; derivative 0 at 0.
    Relu,
    /// `x` where positive, else `slope · x`.
    LeakyRelu {
        /// Slope below zero.
        slope: f32,
    },
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// Gaussian error linear unit in its tanh form (Hendrycks & Gimpel 2016).
    Gelu,
    /// `x · sigmoid(x)`.
    Silu,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `x²`.
    Square,
    /// `√x`.
    Sqrt,
    /// `e^x`.
    Exp,
    /// `ln x`.
    Ln,
    /// `by · x`.
    Scale {
        /// The factor.
        by: f32,
    },
    /// `x + by`.
    Offset {
        /// The summand.
        by: f32,
    },
}

/// A function of two elements. An operand of one row or one column is broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a − b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`.
    Div,
    /// `a / b`, and 0 where `b` is 0: a mean over nothing.
    SafeDiv,
}

/// Scores of the batch's rows against each other: `by · u_i·v_j`, where different rows with the same value
/// of a column are left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InBatch {
    /// The sparse column, of one value a row, that tells items apart.
    pub column: usize,
    /// Factor of the dot products: one over the temperature.
    pub by: f32,
}

/// Binary cross-entropy with weights of the classes and focus on what is hard.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Focal {
    /// The exponent of `1 − p`, with `p` the probability of the label that is there; 0: no focus.
    pub gamma: f32,
    /// Factor where the label is 1.
    pub positive: f32,
    /// Factor where the label is 0.
    pub negative: f32,
}

/// What is done to each element of a running value. Operands are the fused operation's next inputs, of the
/// value's shape or broadcast to it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Link {
    /// `f(value)`.
    Unary(Unary),
    /// (point): the value as a gradient, times the function's derivative there.
    UnaryGrad(Unary),
    /// (gradient): the operand times the function's derivative at the value.
    PointOf(Unary),
    /// (b): `value ∘ b`.
    Binary(Binary),
    /// (a): `a ∘ value`.
    BinaryOf(Binary),
    /// (b, c): `value·b + c`.
    MulAdd,
    /// (a, c): `a·value + c`.
    MulAddOf,
    /// (a, b): `a·b + value`.
    AddProduct,
}

/// An operation, and what happens to each element of its result before anybody sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fused {
    /// What makes the rows.
    pub head: Op,
    /// How many of the inputs are its own; the links' operands follow.
    pub head_inputs: usize,
    /// What they go through, in order.
    pub chain: Vec<Link>,
}

impl Link {
    /// How many operands it has.
    pub fn inputs(self) -> usize {
        match self {
            Self::Unary(_) => 0,
            Self::UnaryGrad(_) | Self::PointOf(_) | Self::Binary(_) | Self::BinaryOf(_) => 1,
            Self::MulAdd | Self::MulAddOf | Self::AddProduct => 2,
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unary(unary) => write!(f, "{}", Op::Unary(unary)),
            Self::UnaryGrad(unary) | Self::PointOf(unary) => write!(f, "{}", Op::UnaryGrad(unary)),
            Self::Binary(binary) | Self::BinaryOf(binary) => write!(f, "{}", Op::Binary(binary)),
            Self::MulAdd | Self::MulAddOf => write!(f, "mul_add"),
            Self::AddProduct => write!(f, "add_product"),
        }
    }
}

/// What a node computes. The comment of each names its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// () → `[U, stride]`: the unique rows of a table.
    Rows {
        /// The table.
        table: usize,
    },
    /// () → `[B, n]`: numeric columns side by side.
    Numeric {
        /// Indices of the columns.
        columns: Vec<usize>,
    },
    /// () → `[B, 1]`: a label.
    Label {
        /// Index of the label.
        label: usize,
    },
    /// () → `[B, 1]`: the sample weight (1 where the batch has none), 0 where the label is missing.
    Weight {
        /// Whose mask applies, if any.
        label: Option<usize>,
    },
    /// () → `[rows, cols]`: a parameter.
    Param {
        /// Which.
        param: ParamId,
    },
    /// () → `[rows, cols]`: one value everywhere.
    Fill {
        /// The value.
        value: f32,
        /// The shape, constant.
        shape: Shape,
    },

    /// (rows) → `[B, dim]`: rows of a column's keys, pooled over each list; without pooling
    /// `[V, dim]`, a row for each value.
    Gather(Gather),
    /// (rows) → `[B, dim]`: for each element of a max pooling, which value of the list won.
    GatherArgMax(Gather),
    /// (gradient of each gather, after a max pooling's its arg-max) → `[U, stride]`: the gradient of
    /// a table's rows, each summed over its occurrences in ascending order.
    GatherGrad {
        /// The table.
        table: usize,
        /// The gathers, in input order.
        gathers: Vec<Gather>,
    },

    /// (x `[r, k]`, w `[k, n]`, optionally b `[1, n]`) → `[r, n]`: `x·w + b`.
    Linear,
    /// (g `[r, n]`, w `[k, n]`) → `[r, k]`: `g·wᵀ`.
    MatMulNt,
    /// (x `[r, k]`, g `[r, n]`) → `[k, n]`: `xᵀ·g`.
    MatMulTn,

    /// (x) → same shape.
    Unary(Unary),
    /// (g, x or y) → same shape: `g · f'`; the second input is the function's result where
    /// [`Unary::uses_result`], else its argument.
    UnaryGrad(Unary),
    /// (a, b) → the larger shape.
    Binary(Binary),
    /// (a, b, c) → shape of a: `a·b + c`.
    MulAdd,
    /// (up to eight of one shape) → that shape: their sum, from left to right.
    AddN,

    /// (several of equal rows) → side by side.
    Concat,
    /// (x) → columns `start .. start + len` of x.
    Slice {
        /// First column.
        start: usize,
        /// Number of columns.
        len: usize,
    },
    /// (x) → x as columns `start ..` of a wider matrix of zeros.
    Pad {
        /// First column.
        start: usize,
        /// Columns of the result.
        total: usize,
    },

    /// (x `[r, n]`) → `[r, 1]`.
    SumColumns,
    /// (a, b of one shape) → `[r, 1]`: the dot product of each pair of rows.
    RowDot,
    /// (x `[r, n]`) → `[1, n]`: the sum over rows, or the mean.
    SumRows {
        /// Divide by the number of rows.
        mean: bool,
    },
    /// (x `[r, 1]`) → `[r, cols]`.
    BroadcastColumns {
        /// Columns of the result.
        cols: usize,
    },
    /// (x `[1, n]`) → `[rows, n]`, divided by the number of rows if `mean`.
    BroadcastRows {
        /// Rows of the result.
        rows: Dim,
        /// Divide by the number of rows.
        mean: bool,
    },

    /// (x `[B, n]`) → `[V, n]`: a row of the batch again for each value of its list.
    Repeat {
        /// The column whose lists they are.
        column: usize,
        /// Divide by the length of the list.
        mean: bool,
    },
    /// (x `[V, n]`) → `[B, n]`: the sum over each list, or the mean; 0 of an empty list.
    SegmentSum {
        /// The column whose lists they are.
        column: usize,
        /// Divide by the length of the list.
        mean: bool,
    },
    /// (x `[V, n]`) → `[V, n]`: `e^x` over its sum in the list, for each column of x.
    SegmentSoftmax {
        /// The column whose lists they are.
        column: usize,
    },
    /// (g, y) → gradient of x, from the softmax' result y.
    SegmentSoftmaxGrad {
        /// The column whose lists they are.
        column: usize,
    },

    /// (x `[r, n]`) → same shape: `e^x` over its row's sum.
    SoftmaxColumns,
    /// (g, y) → gradient of x, where `y` is the softmax of x.
    SoftmaxColumnsGrad,
    /// (x `[r, n]`) → `[r, 1]`: the logarithm of the sum of `e^x`.
    LogSumExpColumns,

    /// (x `[r, n]`) → `[1, 2n]`: mean and biased variance of each column over the rows.
    BatchNormStats,
    /// (x, stats `[1, 2n]`, scale `[1, n]`, shift `[1, n]`) → `[r, n]`.
    BatchNorm {
        /// Added to the variance.
        eps: f32,
    },
    /// (g, x, stats) → `[1, 2n]`: gradients of scale and shift.
    BatchNormReduce {
        /// Added to the variance.
        eps: f32,
    },
    /// (g, x, stats, scale, reduced `[1, 2n]`) → `[r, n]`: gradient of x through the batch's statistics.
    BatchNormGrad {
        /// Added to the variance.
        eps: f32,
    },
    /// (g, stats, scale) → `[r, n]`: gradient of x where the statistics are given.
    BatchNormFixedGrad {
        /// Added to the variance.
        eps: f32,
    },
    /// (running `[1, n]`, stats `[1, 2n]`) → `[1, n]`: the next running mean or (unbiased) variance.
    BatchNormRunning {
        /// Weight of the new statistics.
        momentum: f32,
        /// The variance rather than the mean.
        variance: bool,
    },
    /// (x, scale `[1, n]`, shift `[1, n]`) → same shape as x.
    LayerNorm {
        /// Added to the variance.
        eps: f32,
    },
    /// (g, x) → `[1, 2n]`: gradients of scale and shift.
    LayerNormReduce {
        /// Added to the variance.
        eps: f32,
    },
    /// (g, x, scale) → gradient of x.
    LayerNormGrad {
        /// Added to the variance.
        eps: f32,
    },
    /// (x `[r, n]`) → same shape: some elements zero, the others scaled by `1 / (1 − rate)`. Its own
    /// gradient: the mask is a function of (seed, step, salt, row or value, unit).
    Dropout {
        /// Share of zeros.
        rate: f32,
        /// Tells the layers of one model apart.
        salt: u32,
    },

    /// (x `[r, F·dim]`) → `[r, 1]`: the sum of the dot products of all pairs of fields (Rendle 2010).
    FmInteraction {
        /// Floats a field.
        dim: usize,
    },
    /// (g, x) → gradient of x.
    FmInteractionGrad {
        /// Floats a field.
        dim: usize,
    },
    /// (x `[r, F·dim]`) → `[r, F(F−1)/2]`: the dot product of each pair `(i, j)`, `j < i`, in the order
    /// (1,0), (2,0), (2,1), … as DLRM has it (Naumov et al. 2019).
    DotInteraction {
        /// Floats a field.
        dim: usize,
    },
    /// (g, x) → gradient of x.
    DotInteractionGrad {
        /// Floats a field.
        dim: usize,
    },

    /// (x `[B, n]`) → `[whole B, n]`: the same, complete before the next pass, for all rows to read.
    Collect,
    /// (u `[B, d]`, v `[whole B, d]`, optionally c `[whole B, 1]`) → `[B, 1]`: for row i the logarithm of
    /// the sum over j of `e^(by·u_i·v_j − c_j)`.
    InBatchLse(InBatch),
    /// (g `[B, 1]`, u, the result `[B, 1]`, whole v, optionally whole c) → gradient of u.
    InBatchQueryGrad(InBatch),
    /// (v `[B, d]`, whole u, whole result, whole g, optionally c `[B, 1]`) → gradient of v.
    InBatchItemGrad(InBatch),

    /// (logits, labels, weights, all `[B, 1]`) → `[1, 1]`: the weighted sum of binary cross-entropies.
    BceSum,
    /// (g `[1, 1]`, logits, labels, weights) → gradient of the logits.
    BceGrad,
    /// (logits, labels, weights, all `[B, 1]`) → `[1, 1]`: the weighted sum of focal losses.
    FocalSum(Focal),
    /// (g `[1, 1]`, logits, labels, weights) → gradient of the logits.
    FocalGrad(Focal),

    /// (the head's inputs, then the links' operands) → the head's shape. Made by passes, after autodiff.
    Fused(Box<Fused>),
}

impl Unary {
    /// Whether the derivative is a function of the result rather than of the argument.
    pub fn uses_result(self) -> bool {
        matches!(
            self,
            Self::Relu | Self::Sigmoid | Self::Tanh | Self::Sqrt | Self::Exp | Self::Scale { .. }
        )
    }

    fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::LeakyRelu { .. } => "leaky_relu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::Gelu => "gelu",
            Self::Silu => "silu",
            Self::Softplus => "softplus",
            Self::Square => "square",
            Self::Sqrt => "sqrt",
            Self::Exp => "exp",
            Self::Ln => "ln",
            Self::Scale { .. } => "scale",
            Self::Offset { .. } => "offset",
        }
    }

    fn grad_name(self) -> &'static str {
        match self {
            Self::Relu => "relu_grad",
            Self::LeakyRelu { .. } => "leaky_relu_grad",
            Self::Sigmoid => "sigmoid_grad",
            Self::Tanh => "tanh_grad",
            Self::Gelu => "gelu_grad",
            Self::Silu => "silu_grad",
            Self::Softplus => "softplus_grad",
            Self::Square => "square_grad",
            Self::Sqrt => "sqrt_grad",
            Self::Exp => "exp_grad",
            Self::Ln => "ln_grad",
            Self::Scale { .. } => "scale_grad",
            Self::Offset { .. } => "offset_grad",
        }
    }
}

impl Op {
    /// What makes the rows: of a fused operation its head, else the operation itself.
    pub fn head(&self) -> &Self {
        match self {
            Self::Fused(fused) => &fused.head,
            op => op,
        }
    }

    /// The operation's name, without its attributes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rows { .. } => "rows",
            Self::Numeric { .. } => "numeric",
            Self::Label { .. } => "label",
            Self::Weight { .. } => "weight",
            Self::Param { .. } => "param",
            Self::Fill { .. } => "fill",
            Self::Gather(_) => "gather",
            Self::GatherArgMax(_) => "gather_arg_max",
            Self::GatherGrad { .. } => "gather_grad",
            Self::Linear => "linear",
            Self::MatMulNt => "matmul_nt",
            Self::MatMulTn => "matmul_tn",
            Self::Unary(unary) => unary.name(),
            Self::UnaryGrad(unary) => unary.grad_name(),
            Self::Binary(Binary::Add) => "add",
            Self::Binary(Binary::Sub) => "sub",
            Self::Binary(Binary::Mul) => "mul",
            Self::Binary(Binary::Div) => "div",
            Self::Binary(Binary::SafeDiv) => "safe_div",
            Self::MulAdd => "mul_add",
            Self::AddN => "add_n",
            Self::Concat => "concat",
            Self::Slice { .. } => "slice",
            Self::Pad { .. } => "pad",
            Self::SumColumns => "sum_columns",
            Self::RowDot => "row_dot",
            Self::SumRows { mean: false } => "sum_rows",
            Self::SumRows { mean: true } => "mean_rows",
            Self::BroadcastColumns { .. } => "broadcast_columns",
            Self::BroadcastRows { .. } => "broadcast_rows",
            Self::Repeat { mean: false, .. } => "repeat",
            Self::Repeat { mean: true, .. } => "repeat_mean",
            Self::SegmentSum { mean: false, .. } => "segment_sum",
            Self::SegmentSum { mean: true, .. } => "segment_mean",
            Self::SegmentSoftmax { .. } => "segment_softmax",
            Self::SegmentSoftmaxGrad { .. } => "segment_softmax_grad",
            Self::SoftmaxColumns => "softmax_columns",
            Self::SoftmaxColumnsGrad => "softmax_columns_grad",
            Self::LogSumExpColumns => "log_sum_exp_columns",
            Self::BatchNormStats => "batch_norm_stats",
            Self::BatchNorm { .. } => "batch_norm",
            Self::BatchNormReduce { .. } => "batch_norm_reduce",
            Self::BatchNormGrad { .. } => "batch_norm_grad",
            Self::BatchNormFixedGrad { .. } => "batch_norm_fixed_grad",
            Self::BatchNormRunning { .. } => "batch_norm_running",
            Self::LayerNorm { .. } => "layer_norm",
            Self::LayerNormReduce { .. } => "layer_norm_reduce",
            Self::LayerNormGrad { .. } => "layer_norm_grad",
            Self::Dropout { .. } => "dropout",
            Self::FmInteraction { .. } => "fm",
            Self::FmInteractionGrad { .. } => "fm_grad",
            Self::DotInteraction { .. } => "dot_interaction",
            Self::DotInteractionGrad { .. } => "dot_interaction_grad",
            Self::Collect => "collect",
            Self::InBatchLse(_) => "in_batch_log_sum_exp",
            Self::InBatchQueryGrad(_) => "in_batch_query_grad",
            Self::InBatchItemGrad(_) => "in_batch_item_grad",
            Self::BceSum => "bce_sum",
            Self::BceGrad => "bce_grad",
            Self::FocalSum(_) => "focal_sum",
            Self::FocalGrad(_) => "focal_grad",
            Self::Fused(fused) => fused.head.name(),
        }
    }
}

/// The name, and in brackets what else tells this operation from another of its kind.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Fused(fused) = self {
            write!(f, "{}", fused.head)?;
            return fused.chain.iter().try_for_each(|link| write!(f, "+{link}"));
        }
        f.write_str(self.name())?;
        match self {
            Self::Rows { table } => write!(f, "[table {table}]"),
            Self::Numeric { columns } => write!(f, "{columns:?}"),
            Self::Label { label } | Self::Weight { label: Some(label) } => {
                write!(f, "[label {label}]")
            }
            Self::Param { param } => write!(f, "[{}]", param.0),
            Self::Fill { value, .. } => write!(f, "[{value}]"),
            Self::Gather(gather) | Self::GatherArgMax(gather) => {
                let Gather { column, offset, dim, pooling } = gather;
                let pooling = match pooling {
                    Some(pooling) => format!("{pooling:?}").to_lowercase(),
                    None => "values".to_owned(),
                };
                write!(f, "[column {column}, {offset}..{}, {pooling}]", offset + dim)
            }
            Self::GatherGrad { table, .. } => write!(f, "[table {table}]"),
            Self::Unary(unary) | Self::UnaryGrad(unary) => match unary {
                Unary::LeakyRelu { slope } => write!(f, "[{slope}]"),
                Unary::Scale { by } | Unary::Offset { by } => write!(f, "[{by}]"),
                _ => Ok(()),
            },
            Self::Repeat { column, .. }
            | Self::SegmentSum { column, .. }
            | Self::SegmentSoftmax { column }
            | Self::SegmentSoftmaxGrad { column } => write!(f, "[column {column}]"),
            Self::Slice { start, len } => write!(f, "[{start}..{}]", start + len),
            Self::Pad { start, total } => write!(f, "[{start} of {total}]"),
            Self::Dropout { rate, .. } => write!(f, "[{rate}]"),
            Self::FmInteraction { dim }
            | Self::FmInteractionGrad { dim }
            | Self::DotInteraction { dim }
            | Self::DotInteractionGrad { dim } => write!(f, "[{dim}]"),
            Self::FocalSum(Focal { gamma, positive, negative })
            | Self::FocalGrad(Focal { gamma, positive, negative }) => {
                write!(f, "[{gamma}, {positive} : {negative}]")
            }
            Self::BatchNormRunning { variance, .. } => {
                f.write_str(if *variance { "[variance]" } else { "[mean]" })
            }
            _ => Ok(()),
        }
    }
}
