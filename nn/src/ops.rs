//! What operations compute: one file a group, with shape rule, kernels and gradient rule together.
//!
//! Kernels are plain loops over the rows of one tile, run inside a frame compiled for the machine's
//! widest registers; products call [`zillion_device::matmul`]. Three kinds of work:
//!
//! * [`forward`] writes a tile of a result from the same tile of its inputs (or all of a constant);
//! * [`accumulate`] adds a tile's rows to a lane's partial of a sum over the batch, and [`combine`]
//!   makes the sum from the lanes' partials, in lane order;
//! * gradients of table rows are summed row by row once the batch's gradients are complete.

pub(crate) mod chain;
mod columns;
mod dropout;
mod elementwise;
mod focal;
mod functions;
mod gather;
mod interaction;
pub(crate) mod kernel;
mod linear;
mod loss;
mod norm;
mod reduce;
mod segment;
mod softmax;
mod source;
mod whole;

pub use dropout::dropout_keeps;
pub use kernel::StepSeed;

pub(crate) use columns::copy_part;
pub(crate) use gather::{BatchRows, GatherSource, add_row_gradients};
use kernel::{Tile, View, ViewMut};

use zillion_device::matmul::Scratch;

use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{Dim, Graph, NodeId, Shape};
use crate::op::Op;

/// The most inputs that an operation other than [`Op::Concat`] and [`Op::GatherGrad`] has.
pub(crate) const MAX_INPUTS: usize = 8;

/// How a node is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Given: rows of tables, parameters.
    Given,
    /// A tile of the result needs the same tile of the batch's inputs and complete constants.
    RowWise,
    /// A constant from the batch's rows: partial sums of lanes.
    BatchReduce,
    /// All rows of a value of the batch, as a constant.
    Collect,
    /// A constant from constants.
    Global,
    /// Over the unique rows of a table: their gradient from the complete batch, and nothing else yet.
    Unique,
}

/// How a node of this operation and these shapes is executed.
pub(crate) fn class(op: &Op, shape: Shape, inputs: &[Shape]) -> Class {
    match (op, shape.rows) {
        (Op::Rows { .. } | Op::Param { .. }, _) => Class::Given,
        (_, Dim::Batch | Dim::Values(_)) => Class::RowWise,
        (_, Dim::Whole) => Class::Collect,
        (_, Dim::Unique(_)) => Class::Unique,
        (_, Dim::Const(_)) if inputs.iter().any(|s| matches!(s.rows, Dim::Unique(_))) => {
            Class::Unique
        }
        (_, Dim::Const(_)) if inputs.iter().any(|s| s.is_tiled()) => Class::BatchReduce,
        (_, Dim::Const(_)) => Class::Global,
    }
}

/// The shape of a node's result, or why there is none.
pub(crate) fn shape(
    op: &Op,
    inputs: &[Shape],
    graph: &Graph,
) -> std::result::Result<Shape, String> {
    let many = matches!(op, Op::Concat | Op::GatherGrad { .. });
    if !many && inputs.len() > MAX_INPUTS {
        return Err(format!("{} takes at most {MAX_INPUTS} inputs", op.name()));
    }
    match op {
        Op::Rows { .. }
        | Op::Numeric { .. }
        | Op::Label { .. }
        | Op::Weight { .. }
        | Op::Param { .. }
        | Op::Fill { .. } => source::shape(op, inputs, graph),
        Op::Gather(_) | Op::GatherArgMax(_) | Op::GatherGrad { .. } => {
            gather::shape(op, inputs, graph)
        }
        Op::Linear | Op::MatMulNt | Op::MatMulTn => linear::shape(op, inputs),
        Op::Unary(_) | Op::UnaryGrad(_) | Op::Binary(_) | Op::MulAdd | Op::AddN => {
            elementwise::shape(op, inputs)
        }
        Op::Concat | Op::Slice { .. } | Op::Pad { .. } => columns::shape(op, inputs),
        Op::SumColumns
        | Op::RowDot
        | Op::SumRows { .. }
        | Op::BroadcastColumns { .. }
        | Op::BroadcastRows { .. } => reduce::shape(op, inputs),
        Op::Repeat { .. }
        | Op::SegmentSum { .. }
        | Op::SegmentSoftmax { .. }
        | Op::SegmentSoftmaxGrad { .. } => segment::shape(op, inputs, graph),
        Op::SoftmaxColumns | Op::SoftmaxColumnsGrad | Op::LogSumExpColumns => {
            softmax::shape(op, inputs)
        }
        Op::BatchNormStats
        | Op::BatchNorm { .. }
        | Op::BatchNormReduce { .. }
        | Op::BatchNormGrad { .. }
        | Op::BatchNormFixedGrad { .. }
        | Op::BatchNormRunning { .. }
        | Op::LayerNorm { .. }
        | Op::LayerNormReduce { .. }
        | Op::LayerNormGrad { .. } => norm::shape(op, inputs),
        Op::Dropout { .. } => dropout::shape(op, inputs),
        Op::FmInteraction { .. }
        | Op::FmInteractionGrad { .. }
        | Op::DotInteraction { .. }
        | Op::DotInteractionGrad { .. } => interaction::shape(op, inputs),
        Op::Collect | Op::InBatchLse(_) | Op::InBatchQueryGrad(_) | Op::InBatchItemGrad(_) => {
            whole::shape(op, inputs, graph)
        }
        Op::BceSum | Op::BceGrad => loss::shape(op, inputs),
        Op::FocalSum(_) | Op::FocalGrad(_) => focal::shape(op, inputs),
        Op::Fused(fused) => chain::shape(fused, inputs, graph),
    }
}

/// Writes the rows of a row-wise or global operation.
pub(crate) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
    match op {
        Op::Numeric { .. } | Op::Label { .. } | Op::Weight { .. } | Op::Fill { .. } => {
            source::forward(op, tile, out);
        }
        Op::Gather(_) | Op::GatherArgMax(_) => gather::forward(op, tile, inputs, out),
        Op::Linear | Op::MatMulNt | Op::MatMulTn => linear::forward(op, tile, inputs, out),
        Op::Unary(_) | Op::UnaryGrad(_) | Op::Binary(_) | Op::MulAdd | Op::AddN => {
            elementwise::forward(op, tile, inputs, out);
        }
        Op::Slice { .. } | Op::Pad { .. } => columns::forward(op, tile, inputs, out),
        Op::SumColumns
        | Op::RowDot
        | Op::SumRows { .. }
        | Op::BroadcastColumns { .. }
        | Op::BroadcastRows { .. } => reduce::forward(op, tile, inputs, out),
        Op::Repeat { .. }
        | Op::SegmentSum { .. }
        | Op::SegmentSoftmax { .. }
        | Op::SegmentSoftmaxGrad { .. } => segment::forward(op, tile, inputs, out),
        Op::SoftmaxColumns | Op::SoftmaxColumnsGrad | Op::LogSumExpColumns => {
            softmax::forward(op, tile, inputs, out);
        }
        Op::BatchNorm { .. }
        | Op::BatchNormGrad { .. }
        | Op::BatchNormFixedGrad { .. }
        | Op::BatchNormRunning { .. }
        | Op::LayerNorm { .. }
        | Op::LayerNormGrad { .. }
        | Op::LayerNormReduce { .. } => norm::forward(op, tile, inputs, out),
        Op::Dropout { .. } => dropout::forward(op, tile, inputs, out),
        Op::FmInteraction { .. }
        | Op::FmInteractionGrad { .. }
        | Op::DotInteraction { .. }
        | Op::DotInteractionGrad { .. } => interaction::forward(op, tile, inputs, out),
        Op::BceGrad => loss::forward(op, tile, inputs, out),
        Op::FocalGrad(_) => focal::forward(op, tile, inputs, out),
        Op::Fused(fused) => chain::forward(fused, tile, inputs, out),
        Op::InBatchLse(_) | Op::InBatchQueryGrad(_) | Op::InBatchItemGrad(_) => {
            whole::forward(op, tile, inputs, out);
        }
        Op::Rows { .. }
        | Op::Param { .. }
        | Op::GatherGrad { .. }
        | Op::Concat
        | Op::Collect
        | Op::BatchNormStats
        | Op::BatchNormReduce { .. }
        | Op::BceSum
        | Op::FocalSum(_) => unfit(op),
    }
}

/// Floats of a lane's partial of a sum over the batch.
pub(crate) fn partial_len(op: &Op, shape: Shape) -> usize {
    let len = shape.const_len().unwrap_or(0);
    if *op == Op::BatchNormStats { norm::stats_partial_len(shape.cols / 2) } else { len }
}

/// Adds a tile to its lane's partial. `rows_before` are the rows that the lane has added already;
/// with none, what the partial held is not read.
pub(crate) fn accumulate(
    op: &Op,
    tile: &Tile<'_>,
    rows_before: usize,
    inputs: &[View<'_>],
    partial: &mut [f32],
    scratch: &mut Scratch,
) {
    let first = rows_before == 0;
    match op {
        Op::MatMulTn => linear::accumulate(tile, inputs, partial, first, scratch),
        Op::SumRows { .. } => reduce::accumulate(tile, inputs, partial, first),
        Op::BatchNormStats | Op::BatchNormReduce { .. } | Op::LayerNormReduce { .. } => {
            norm::accumulate(op, tile, rows_before, inputs, partial);
        }
        Op::BceSum => loss::accumulate(tile, inputs, partial, first),
        Op::FocalSum(spec) => focal::accumulate(*spec, tile, inputs, partial, first),
        _ => unfit(op),
    }
}

/// Whether [`combine`] treats each element by itself, so that ranges can be combined apart.
pub(crate) fn combines_by_element(op: &Op) -> bool {
    *op != Op::BatchNormStats
}

/// Makes the elements of a sum over the batch from the lanes' partials, given with their rows in lane
/// order: elements `start ..` where [`combines_by_element`], else all. `total_rows` are those of all
/// lanes; a column may have no values in some, or in none.
pub(crate) fn combine<'a>(
    op: &Op,
    partials: impl Iterator<Item = (usize, &'a [f32])>,
    start: usize,
    total_rows: usize,
    out: &mut [f32],
) {
    if total_rows == 0 {
        return out.fill(0.0);
    }
    if *op == Op::BatchNormStats {
        return norm::combine_stats(partials, out);
    }
    for (lane, (_, partial)) in partials.enumerate() {
        let partial = &partial[start..start + out.len()];
        if lane == 0 {
            out.copy_from_slice(partial);
        } else {
            kernel::simd!({ kernel::add(out, partial) });
        }
    }
    if let Op::SumRows { mean } = op {
        reduce::finish(*mean, total_rows, out);
    }
}

/// Emits a node's gradient: `g` is the gradient of its result, of the same shape.
pub(crate) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    match &cx.node(id).op {
        Op::Rows { .. }
        | Op::Numeric { .. }
        | Op::Label { .. }
        | Op::Weight { .. }
        | Op::Param { .. }
        | Op::Fill { .. } => Ok(()),
        Op::Gather(_) => gather::gradient(cx, id, g),
        Op::Linear | Op::MatMulNt | Op::MatMulTn => linear::gradient(cx, id, g),
        Op::Unary(_) | Op::Binary(_) | Op::MulAdd | Op::AddN => elementwise::gradient(cx, id, g),
        Op::Concat | Op::Slice { .. } | Op::Pad { .. } => columns::gradient(cx, id, g),
        Op::SumColumns
        | Op::RowDot
        | Op::SumRows { .. }
        | Op::BroadcastColumns { .. }
        | Op::BroadcastRows { .. } => reduce::gradient(cx, id, g),
        Op::Repeat { .. } | Op::SegmentSum { .. } | Op::SegmentSoftmax { .. } => {
            segment::gradient(cx, id, g)
        }
        Op::SoftmaxColumns | Op::LogSumExpColumns => softmax::gradient(cx, id, g),
        Op::BatchNorm { .. } | Op::LayerNorm { .. } => norm::gradient(cx, id, g),
        Op::Dropout { .. } => dropout::gradient(cx, id, g),
        Op::FmInteraction { .. } | Op::DotInteraction { .. } => interaction::gradient(cx, id, g),
        Op::BceSum => loss::gradient(cx, id, g),
        Op::FocalSum(_) => focal::gradient(cx, id, g),
        Op::InBatchLse(_) => whole::gradient(cx, id, g),
        // Batch norm's rule differentiates through its statistics; for other uses of them and for
        // backward operations there is none.
        _ => Err(cx.no_rule(id)),
    }
}

/// Shapes, for messages.
fn list(shapes: &[Shape]) -> String {
    let shapes: Vec<String> = shapes.iter().map(Shape::to_string).collect();
    if shapes.is_empty() { "nothing".into() } else { shapes.join(" and ") }
}

/// A kernel was called with operands that the shape rule or the class of the operation excludes.
#[cold]
fn unfit(op: &Op) {
    debug_assert!(false, "{} was executed in a way that its shape rule excludes", op.name());
}
