//! Fused operations: an operation, called the head, with a chain of functions. Each element of the
//! head's result goes through the chain before another node reads it.
//!
//! The functions of a chain are called links. They work in place on the rows that the head has just
//! written. If the head allows it, only a few rows are processed at a time. Then the values between
//! links stay in the first-level cache and need no buffer. An operation also becomes a link if it
//! works in the buffer of an operand that no other node reads afterwards. The links use the
//! functions of the separate operations, so the bits are the same.

use super::functions::{with_binary, with_unary, with_unary_grad};
use super::*;
use crate::graph::op::{Fused, Link};
use std::iter::repeat;

/// The number of floats of a result that are processed by the head and the chain at a time.
const BLOCK: usize = 2048;

/// A head with a chain of links.
pub(super) struct FusedChain;

impl OpGroup for FusedChain {
    fn shape(op: &Op, inputs: &[Shape], graph: &Graph) -> ShapeResult {
        let Op::Fused(fused) = op else { return cannot_take(op, inputs) };
        let operands: usize = fused.chain.iter().map(|link| link.inputs()).sum();
        if inputs.len().checked_sub(operands) != Some(fused.head_inputs) {
            return Err(format!(
                "found {} inputs instead of {} and {operands}; give one input for each operand",
                inputs.len(),
                fused.head_inputs
            ));
        }
        if !can_lead(&fused.head) {
            return Err(format!(
                "{} cannot be the head of a fused chain; fuse another operation",
                fused.head.name()
            ));
        }
        let (head, operands) = inputs.split_at(fused.head_inputs);
        let shape = shape(&fused.head, head, graph)?;
        match operands.iter().find(|operand| !is_operand(**operand, shape)) {
            Some(operand) => Err(format!(
                "{operand} does not broadcast to {shape}; give inputs with the same rows and \
                 columns"
            )),
            None => Ok(shape),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
        match op {
            Op::Fused(fused) => forward_chain(fused, tile, inputs, out),
            _ => reject(op),
        }
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        let Op::Fused(fused) = op else { return 0 };
        let head_inputs = &sizes.inputs[..fused.head_inputs.min(sizes.inputs.len())];
        let links: u64 = fused.chain.iter().map(|link| link.flops()).sum();
        flops(&fused.head, &NodeSizes { inputs: head_inputs, ..*sizes }) + links * sizes.out()
    }
}

impl Link {
    /// Returns the number of floating-point operations of each element.
    fn flops(self) -> u64 {
        match self {
            Self::MulAdd | Self::MulAddOf | Self::AddProduct => 2,
            Self::UnaryGrad(_) | Self::PointOf(_) => 2,
            Self::Unary(_) | Self::Binary(_) | Self::BinaryOf(_) => 1,
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

/// Returns whether a link that works on rows of the shape `shape` can read this operand.
pub(crate) fn is_operand(operand: Shape, shape: Shape) -> bool {
    let rows = operand.rows == shape.rows || operand.rows == Dim::Const(1);
    rows && (operand.cols == shape.cols || operand.cols == 1)
}

/// Returns the operation as a link. The input with the index `running` becomes the running value,
/// and the other inputs become the operands, in order. Returns `None` if the operation cannot be a
/// link.
pub(crate) fn link_of(op: &Op, running: usize, inputs: usize) -> Option<Link> {
    match (op, running) {
        (Op::Unary(function), 0) => Some(Link::Unary(*function)),
        (Op::UnaryGrad(function), 0) => Some(Link::UnaryGrad(*function)),
        (Op::UnaryGrad(function), 1) => Some(Link::PointOf(*function)),
        (Op::Binary(function), 0) => Some(Link::Binary(*function)),
        (Op::Binary(function), 1) => Some(Link::BinaryOf(*function)),
        (Op::MulAdd, 0) => Some(Link::MulAdd),
        (Op::MulAdd, 1) => Some(Link::MulAddOf),
        (Op::MulAdd, 2) => Some(Link::AddProduct),
        // The sum is computed from left to right, so only the first two terms may be exchanged.
        (Op::AddN, 0 | 1) if inputs == 2 => Some(Link::Binary(Binary::Add)),
        _ => None,
    }
}

/// Computes a tile of a fused operation.
fn forward_chain(fused: &Fused, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
    let ViewMut { data, stride, cols } = out;
    let (head, operands) = inputs.split_at(fused.head_inputs.min(inputs.len()));
    let whole = chaining(&fused.head) == Chaining::Tile;
    let block = if whole { tile.rows } else { (BLOCK / cols.max(1)).max(1) };
    let mut views = [View::default(); MAX_INPUTS];
    for start in (0..tile.rows).step_by(block.max(1)) {
        let rows = block.min(tile.rows - start);
        for (view, from) in views.iter_mut().zip(head) {
            *view = below(*from, start);
        }
        let mut part = tile.clone();
        (part.first_row, part.rows) = (tile.first_row + start, rows);
        let views = &views[..head.len()];
        // The kernels of products themselves can apply the most common first link.
        let (in_head, rest) = match (&fused.head, fused.chain.as_slice()) {
            (Op::Linear, [Link::Unary(Unary::Relu), rest @ ..]) => {
                (linear::forward_relu(&part, views, from(data, start, stride, cols)), rest)
            }
            (&Op::LinearRest { start: begun }, [Link::Unary(Unary::Relu), rest @ ..]) => {
                resumed::forward_relu(begun, &part, views, from(data, start, stride, cols));
                (true, rest)
            }
            (_, chain) => (false, chain),
        };
        if in_head {
            apply(rest, rows, start, operands, &mut from(data, start, stride, cols));
        } else {
            forward(&fused.head, &part, views, from(data, start, stride, cols));
            let mut out = from(data, start, stride, cols);
            apply(&fused.chain, rows, start, operands, &mut out);
        }
    }
}

/// Computes a tile of an operation in the buffer that contains the rows of the input `running`.
/// `inputs` has a view of every input, but the view of the running input is not read.
pub(crate) fn compute_in_place(
    op: &Op,
    tile: &Tile<'_>,
    running: usize,
    inputs: &[View<'_>],
    out: ViewMut<'_>,
) {
    let (head, head_inputs, chain) = match op {
        Op::Fused(fused) => (&fused.head, fused.head_inputs, fused.chain.as_slice()),
        op => (op, inputs.len(), [].as_slice()),
    };
    let Some(first) = link_of(head, running, head_inputs) else { return reject(op) };
    let mut views = [View::default(); MAX_INPUTS];
    let others = (0..head_inputs).filter(|&input| input != running);
    for (view, input) in views.iter_mut().zip(others) {
        *view = inputs[input];
    }
    let ViewMut { data, stride, cols } = out;
    let block = if chain.is_empty() { tile.rows } else { (BLOCK / cols.max(1)).max(1) };
    for start in (0..tile.rows).step_by(block.max(1)) {
        let rows = block.min(tile.rows - start);
        let mut out = ViewMut { data: &mut data[start * stride..], stride, cols };
        apply(std::slice::from_ref(&first), rows, start, &views, &mut out);
        apply(chain, rows, start, &inputs[head_inputs..], &mut out);
    }
}

/// Applies the links of a chain to `rows` rows. The first of them is row `start` of the tile. The
/// views in `operands` cover the whole tile.
pub(super) fn apply(
    chain: &[Link],
    rows: usize,
    start: usize,
    operands: &[View<'_>],
    out: &mut ViewMut<'_>,
) {
    let mut operands = operands.iter().map(|&operand| below(operand, start));
    let mut next = || operands.next().unwrap_or_default();
    for link in chain {
        match *link {
            Link::Unary(function) => with_unary!(function, each1(rows, out)),
            Link::UnaryGrad(function) => {
                let x = next();
                with_unary_grad!(function, each2(rows, x, out));
            }
            Link::PointOf(function) => {
                let x = next();
                with_unary_grad!(function, each2_of(rows, x, out));
            }
            Link::Binary(function) => {
                let x = next();
                with_binary!(function, each2(rows, x, out));
            }
            Link::BinaryOf(function) => {
                let x = next();
                with_binary!(function, each2_of(rows, x, out));
            }
            Link::MulAdd | Link::MulAddOf => {
                let (x, y) = (next(), next());
                simd!({ each3(rows, x, y, out, |o, x, y| o * x + y) });
            }
            Link::AddProduct => {
                let (x, y) = (next(), next());
                simd!({ each3(rows, x, y, out, |o, x, y| x * y + o) });
            }
        }
    }
}

/// Returns the rows of a result from the row `start` on.
fn from(data: &mut [f32], start: usize, stride: usize, cols: usize) -> ViewMut<'_> {
    ViewMut { data: &mut data[start * stride..], stride, cols }
}

/// Returns the rows of a view from the row `start` on. A single row that is broadcast is returned
/// unchanged.
fn below(view: View<'_>, start: usize) -> View<'_> {
    View { data: view.data.get(start * view.stride..).unwrap_or_default(), ..view }
}

/// Computes `out = f(out)` in place.
#[inline(always)]
fn each1(rows: usize, out: &mut ViewMut<'_>, f: impl Fn(f32) -> f32) {
    for i in 0..rows {
        for o in out.row(i) {
            *o = f(*o);
        }
    }
}

/// Computes `out = f(out, x)` in place. If `x` has one column, the column is broadcast.
#[inline(always)]
fn each2(rows: usize, x: View<'_>, out: &mut ViewMut<'_>, f: impl Fn(f32, f32) -> f32) {
    let narrow = x.cols == 1 && out.cols > 1;
    for i in 0..rows {
        let (x, out) = (x.row(i), out.row(i));
        if narrow {
            out.iter_mut().for_each(|o| *o = f(*o, x[0]));
        } else {
            out.iter_mut().zip(x).for_each(|(o, &x)| *o = f(*o, x));
        }
    }
}

/// Computes `out = f(x, out)` in place.
#[inline(always)]
fn each2_of(rows: usize, x: View<'_>, out: &mut ViewMut<'_>, f: impl Fn(f32, f32) -> f32) {
    each2(rows, x, out, |o, x| f(x, o));
}

/// Computes `out = f(out, x, y)` in place. If `x` or `y` has one column, the column is broadcast.
#[inline(always)]
fn each3(
    rows: usize,
    x: View<'_>,
    y: View<'_>,
    out: &mut ViewMut<'_>,
    f: impl Fn(f32, f32, f32) -> f32,
) {
    #[inline(always)]
    fn line(
        out: &mut [f32],
        x: impl Iterator<Item = f32>,
        y: impl Iterator<Item = f32>,
        f: &impl Fn(f32, f32, f32) -> f32,
    ) {
        for ((o, x), y) in out.iter_mut().zip(x).zip(y) {
            *o = f(*o, x, y);
        }
    }
    let wide = out.cols > 1;
    for i in 0..rows {
        let (x, y, out) = (x.row(i), y.row(i), out.row(i));
        match (wide && x.len() == 1, wide && y.len() == 1) {
            (false, false) => line(out, x.iter().copied(), y.iter().copied(), &f),
            (true, false) => line(out, repeat(x[0]), y.iter().copied(), &f),
            (false, true) => line(out, x.iter().copied(), repeat(y[0]), &f),
            (true, true) => line(out, repeat(x[0]), repeat(y[0]), &f),
        }
    }
}
