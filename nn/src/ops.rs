//! The operations of graphs. Each file contains one group of operations and everything that the
//! crate knows about them, as an [`OpGroup`].
//!
//! To add an operation, add a variant in [`Op`], its name in [`Op::name`], and its arms in the file
//! of its group. A new group also needs a line in `with_group!`. There are no other lists of
//! operations.
//!
//! Kernels are plain loops over the rows of one tile, compiled for the widest registers of the
//! machine; products call [`zillion_device::matmul`]. There are three kinds of work:
//!
//! * [`forward`] computes a tile of the result from the same tile of its inputs (or from a whole
//!   constant);
//! * [`accumulate`] adds the rows of a tile to a lane's partial sum over the batch, and [`combine`]
//!   computes the sum from the partial sums of the lanes, in the order of lanes;
//! * the gradients of table rows are summed row by row after the gradients of the batch are
//!   complete.

mod batch_norm;
mod columns;
mod dropout;
mod elementwise;
mod fake_quantize;
mod functions;
mod fused;
mod gather;
mod group_loss;
mod in_batch_softmax;
mod interaction;
pub(crate) mod kernel;
mod layer_norm;
mod linear;
mod list_column;
mod loss;
mod narrow;
mod packed_weight;
mod reduce;
mod resumed;
mod segment;
mod softmax;
mod source;

pub use dropout::dropout_keeps;
pub use kernel::StepSeed;

pub(crate) use batch_norm::{running_part, weigh_running};
pub(crate) use columns::copy_part;
pub(crate) use dropout::dropout_parameters;
pub(crate) use fused::{compute_in_place, is_operand, link_of};
pub(crate) use gather::{BatchRows, GatherSource, add_row_gradients};
pub(crate) use interaction::is_blocked;
pub(crate) use list_column::{ListColumn, factor_kind};
pub(crate) use narrow::{NarrowProduct, accumulate_narrow, forward_narrow};
pub(crate) use packed_weight::{Packed, PackedWeight};

// The files of the groups import these names with `use super::*`.
use std::fmt;

use zillion_device::matmul::Scratch;
use zillion_device::simd::math;

use crate::autodiff::backward::Backward;
use crate::error::Result;
use crate::graph::Graph;
use crate::graph::op::{Binary, Op, Unary};
use crate::graph::shape::{Dim, NodeId, Shape};
use crate::graph::sizes::NodeSizes;
use crate::onnx::writer::{OnnxNode, Writer};
use kernel::{Tile, View, ViewMut, simd};

/// The maximum number of inputs of an operation, except for [`Op::Concat`] and [`Op::GatherGrad`].
pub(crate) const MAX_INPUTS: usize = 8;

/// The result of a shape rule: a shape, or the reason why the inputs have no valid shape.
pub(crate) type ShapeResult = std::result::Result<Shape, String>;

/// A group of operations in one file, for example a function and its gradient.
///
/// A group is a type without values. For each node and tile, one `match` chooses the group, and so
/// the functions. The loops inside are compiled for one operation, so they contain no such choice.
/// Each function is called only for operations of its group. If a function does not apply to any
/// operation of the group, the group keeps the default.
trait OpGroup {
    /// Writes, in brackets, the attributes that distinguish the operation from others of its kind.
    fn write_attributes(_op: &Op, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }

    /// Returns the shape of the result.
    fn shape(op: &Op, inputs: &[Shape], graph: &Graph) -> ShapeResult;

    /// Computes the rows of a tile, for an operation that works row by row or on constants.
    fn forward(op: &Op, _tile: &Tile<'_>, _inputs: &[View<'_>], _out: ViewMut<'_>) {
        reject(op);
    }

    /// Adds a tile to the partial sum of a lane.
    fn accumulate(op: &Op, _tile: &Tile<'_>, _inputs: &[View<'_>], _partial: &mut Partial<'_>) {
        reject(op);
    }

    /// Returns the number of floats in a lane's partial sum. `len` is the number of elements of the
    /// result.
    fn partial_len(_op: &Op, len: usize) -> usize {
        len
    }

    /// Returns whether [`OpGroup::combine`] treats each element independently, so that ranges of
    /// elements can be combined separately.
    fn combines_by_element(_op: &Op) -> bool {
        true
    }

    /// Computes elements of a sum over the batch, beginning with the element `start`. `partials`
    /// has the number of rows and the partial sum of each lane, in the order of lanes.
    fn combine<'a>(
        _op: &Op,
        partials: impl Iterator<Item = (usize, &'a [f32])>,
        start: usize,
        _total_rows: usize,
        out: &mut [f32],
    ) {
        add_partials(partials, start, out);
    }

    /// Returns whether the operation sums over the rows of its first input. If the inputs of such
    /// an operation are constants, the operation works on the rows of the input. Any other
    /// operation works on the rows of its result.
    fn sums_rows(_op: &Op) -> bool {
        false
    }

    /// Returns the way in which the operation can be the first operation of a chain of fused
    /// functions.
    fn chaining(_op: &Op) -> Chaining {
        Chaining::None
    }

    /// Appends the gradients of the node's inputs. `g` is the gradient of the node's result.
    fn gradient(cx: &mut Backward, id: NodeId, _g: NodeId) -> Result<()> {
        Err(cx.refuse_gradient(id))
    }

    /// Returns the number of floating-point operations. An addition, a multiplication or a function
    /// of one element counts as one operation. Moving values counts as no operation.
    fn flops(_op: &Op, _sizes: &NodeSizes<'_>) -> u64 {
        0
    }

    /// Writes the node as ONNX and returns the name of its value, or `None` if ONNX cannot
    /// represent the operation.
    fn onnx(_op: &Op, _node: &OnnxNode<'_>, _writer: &mut Writer<'_>) -> Result<Option<String>> {
        Ok(None)
    }
}

/// The way in which an operation can be the head, which is the first operation of a chain of fused
/// functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chaining {
    /// The operation cannot be the head of a chain, because it reads the inputs of the batch or the
    /// bounds of lists.
    None,
    /// The operation can compute a few rows of a tile at a time, without doing any work twice.
    Rows,
    /// The operation must compute the whole tile at once. It is a product, or it needs factors of a
    /// column that are computed once per call.
    Tile,
}

/// A lane's partial sum over the batch.
pub(crate) struct Partial<'a> {
    /// The number of rows of the lane that were added before.
    pub(crate) rows_before: usize,
    /// The floats of the partial sum. They are undefined while `rows_before` is 0.
    pub(crate) values: &'a mut [f32],
    /// The memory into which products pack their operands.
    pub(crate) scratch: Scratch,
}

impl<'a> Partial<'a> {
    /// Creates a partial sum without rows.
    fn new(values: &'a mut [f32]) -> Self {
        Self { rows_before: 0, values, scratch: Scratch::default() }
    }

    /// Returns whether no rows have been added yet.
    fn is_new(&self) -> bool {
        self.rows_before == 0
    }

    /// Returns the first `len` floats, which are set to zero if no rows have been added yet.
    fn zeroed(&mut self, len: usize) -> &mut [f32] {
        if self.is_new() {
            self.values[..len].fill(0.0);
        }
        &mut self.values[..len]
    }
}

/// Evaluates an expression in which `$group` is the group of an operation. This macro has the only
/// list of groups.
macro_rules! with_group {
    ($op:expr, $group:ident => $body:expr) => {
        with_group! {
            $op, $group => $body,
            Op::Rows { .. } | Op::Numeric { .. } | Op::Label { .. }
            | Op::Weight { .. } | Op::Param { .. } | Op::Fill { .. } => source::Source,
            Op::Gather(_) | Op::GatherArgMax(_) | Op::GatherGrad { .. } => gather::Lookup,
            Op::Linear | Op::MatMulNt | Op::MatMulTn => linear::Product,
            Op::Unary(_) | Op::UnaryGrad(_) | Op::Binary(_)
            | Op::MulAdd | Op::AddN => elementwise::Elementwise,
            Op::Concat | Op::Slice { .. } | Op::Pad { .. } => columns::Columns,
            Op::SumColumns | Op::RowDot | Op::SumRows { .. }
            | Op::BroadcastColumns { .. } | Op::BroadcastRows { .. } => reduce::Reduction,
            Op::Repeat { .. } | Op::SegmentSum { .. }
            | Op::SegmentSoftmax { .. } | Op::SegmentSoftmaxGrad { .. } => segment::Segment,
            Op::SoftmaxColumns | Op::SoftmaxColumnsGrad
            | Op::LogSumExpColumns => softmax::Softmax,
            Op::BatchNormStats | Op::BatchNorm { .. }
            | Op::BatchNormReduce { .. } | Op::BatchNormGrad { .. }
            | Op::BatchNormFixedGrad { .. } | Op::BatchNormRunning { .. } => batch_norm::BatchNorm,
            Op::LayerNorm { .. } | Op::LayerNormReduce { .. }
            | Op::LayerNormGrad { .. } => layer_norm::LayerNorm,
            Op::Dropout { .. } => dropout::Dropout,
            Op::FakeQuantize { .. } => fake_quantize::FakeQuantize,
            Op::FmInteraction { .. } | Op::FmInteractionGrad { .. }
            | Op::DotInteraction { .. } | Op::DotInteractionGrad { .. } => interaction::Interaction,
            Op::Collect | Op::InBatchLse(_)
            | Op::InBatchQueryGrad(_) | Op::InBatchItemGrad(_) => in_batch_softmax::InBatchSoftmax,
            Op::BceSum
            | Op::BceGrad
            | Op::FocalSum(_)
            | Op::FocalGrad(_)
            | Op::DistanceSum(_)
            | Op::DistanceGrad(_) => loss::Loss,
            Op::GroupLoss(_) | Op::GroupWeight(_) | Op::GroupGrad(_) => group_loss::InGroups,
            Op::LinearState | Op::LinearRest { .. } | Op::FmState { .. } | Op::FmRest { .. }
            | Op::DotInteractionRest { .. } => resumed::Resumed,
            Op::Fused(_) => fused::FusedChain,
        }
    };
    ($op:expr, $group:ident => $body:expr, $($pattern:pat => $type:ty,)*) => {
        match $op {
            $($pattern => {
                type $group = $type;
                $body
            })*
        }
    };
}

/// Returns the shape of a node's result, or the reason why there is none.
pub(crate) fn shape(op: &Op, inputs: &[Shape], graph: &Graph) -> ShapeResult {
    let many = matches!(op, Op::Concat | Op::GatherGrad { .. });
    if !many && inputs.len() > MAX_INPUTS {
        return Err(format!(
            "{} takes at most {MAX_INPUTS} inputs; join some of them first",
            op.name()
        ));
    }
    with_group!(op, Group => Group::shape(op, inputs, graph))
}

/// Computes the rows of a tile, for an operation that works row by row or on constants.
pub(crate) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
    with_group!(op, Group => Group::forward(op, tile, inputs, out));
}

/// Returns the number of floats in a lane's partial sum over the batch.
pub(crate) fn partial_len(op: &Op, shape: Shape) -> usize {
    let len = shape.const_len().unwrap_or(0);
    with_group!(op, Group => Group::partial_len(op, len))
}

/// Adds a tile to the partial sum of its lane.
pub(crate) fn accumulate(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], partial: &mut Partial<'_>) {
    with_group!(op, Group => Group::accumulate(op, tile, inputs, partial));
}

/// Returns whether [`combine`] treats each element independently. Ranges of elements can then be
/// combined separately.
pub(crate) fn combines_by_element(op: &Op) -> bool {
    with_group!(op, Group => Group::combines_by_element(op))
}

/// Computes a sum over the batch from the partial sums of the lanes. `partials` has the number of
/// rows and the partial sum of each lane, in the order of lanes. If [`combines_by_element`] is
/// true, only the elements from `start` on are computed. Otherwise, all elements are computed.
/// `total_rows` is the number of rows of all lanes. In a column, some or all lanes may have no
/// values.
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
    with_group!(op, Group => Group::combine(op, partials, start, total_rows, out));
}

/// Returns whether the operation sums over the rows of its first input. If the inputs of such an
/// operation are constants, the operation works on the rows of the input. Any other operation works
/// on the rows of its result.
pub(crate) fn sums_rows(op: &Op) -> bool {
    with_group!(op, Group => Group::sums_rows(op))
}

/// Returns whether an operation can be the first operation of a chain of fused functions.
pub(crate) fn can_lead(op: &Op) -> bool {
    chaining(op) != Chaining::None
}

fn chaining(op: &Op) -> Chaining {
    with_group!(op, Group => Group::chaining(op))
}

/// Appends the gradients of a node's inputs. `g` is the gradient of the node's result and has its
/// shape.
pub(crate) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    with_group!(&cx.node(id).op, Group => Group::gradient(cx, id, g))
}

/// Returns the number of floating-point operations of a node.
pub(crate) fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
    with_group!(op, Group => Group::flops(op, sizes))
}

/// Writes a node as ONNX and returns the name of its value, or `None` if ONNX cannot represent the
/// operation.
pub(crate) fn onnx(
    op: &Op,
    node: &OnnxNode<'_>,
    writer: &mut Writer<'_>,
) -> Result<Option<String>> {
    with_group!(op, Group => Group::onnx(op, node, writer))
}

impl Op {
    /// Returns the operation's name, without its attributes.
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
            Self::Unary(function) => function.names().0,
            Self::UnaryGrad(function) => function.names().1,
            Self::Binary(function) => function.name(),
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
            Self::FakeQuantize { .. } => "fake_quantize",
            Self::FmInteraction { .. } => "fm",
            Self::FmInteractionGrad { .. } => "fm_grad",
            Self::DotInteraction { .. } => "dot_interaction",
            Self::DotInteractionGrad { .. } => "dot_interaction_grad",
            Self::Collect => "collect",
            Self::GroupLoss(_) => "group_loss",
            Self::GroupWeight(_) => "group_weight",
            Self::GroupGrad(_) => "group_grad",
            Self::InBatchLse(_) => "in_batch_log_sum_exp",
            Self::InBatchQueryGrad(_) => "in_batch_query_grad",
            Self::InBatchItemGrad(_) => "in_batch_item_grad",
            Self::BceSum => "bce_sum",
            Self::BceGrad => "bce_grad",
            Self::FocalSum(_) => "focal_sum",
            Self::FocalGrad(_) => "focal_grad",
            Self::DistanceSum(_) => "distance_sum",
            Self::DistanceGrad(_) => "distance_grad",
            Self::LinearState => "linear_state",
            Self::LinearRest { .. } => "linear_rest",
            Self::FmState { .. } => "fm_state",
            Self::FmRest { .. } => "fm_rest",
            Self::DotInteractionRest { .. } => "dot_interaction_rest",
            Self::Fused(fused) => fused.head.name(),
        }
    }
}

/// Writes the printed form: the name and, in brackets, the attributes that distinguish the
/// operation from others of its kind.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Fused(fused) = self {
            write!(f, "{}", fused.head)?;
            return fused.chain.iter().try_for_each(|link| write!(f, "+{link}"));
        }
        f.write_str(self.name())?;
        with_group!(self, Group => Group::write_attributes(self, f))
    }
}

/// Adds up the partial sums of the lanes, element by element, in the order of lanes.
fn add_partials<'a>(
    partials: impl Iterator<Item = (usize, &'a [f32])>,
    start: usize,
    out: &mut [f32],
) {
    for (lane, (_, partial)) in partials.enumerate() {
        let partial = &partial[start..start + out.len()];
        if lane == 0 {
            out.copy_from_slice(partial);
        } else {
            simd!({ kernel::add(out, partial) });
        }
    }
}

/// Returns the error for inputs that do not fit an operation.
fn cannot_take(op: &Op, inputs: &[Shape]) -> ShapeResult {
    Err(format!(
        "{} cannot read inputs of these shapes: {}; give inputs of other shapes",
        op.name(),
        format_shapes(inputs)
    ))
}

/// Formats shapes for messages.
fn format_shapes(shapes: &[Shape]) -> String {
    let shapes: Vec<String> = shapes.iter().map(Shape::to_string).collect();
    if shapes.is_empty() { "no inputs".into() } else { shapes.join(" and ") }
}

/// Reports a defect: a kernel was called for an operation or with operands that it does not
/// support.
#[cold]
fn reject(op: &Op) {
    debug_assert!(false, "{} was executed in a way that its shape rule excludes", op.name());
}
