//! Softmax over the columns of each row, and the logarithm of the sum of exponentials that it divides
//! by. Both subtract the row's largest element first, so that nothing overflows.

use zillion_device::simd::math;

use super::kernel::{Tile, View, ViewMut, dot, simd, sum_by};
use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{NodeId, Shape};
use crate::op::{Binary, Op};

pub(super) fn shape(op: &Op, inputs: &[Shape]) -> std::result::Result<Shape, String> {
    match (op, inputs) {
        (Op::SoftmaxColumns, [x]) => Ok(*x),
        (Op::SoftmaxColumnsGrad, [g, y]) if g == y => Ok(*y),
        (Op::LogSumExpColumns, [x]) => Ok(Shape { rows: x.rows, cols: 1 }),
        _ => Err(format!("{} cannot take {}", op.name(), super::list(inputs))),
    }
}

pub(super) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
    let rows = tile.rows;
    match (op, inputs) {
        (Op::SoftmaxColumns, &[x]) => simd!({
            for i in 0..rows {
                let (x, out) = (x.row(i), out.row(i));
                let most = largest(x);
                for (o, &x) in out.iter_mut().zip(x) {
                    *o = math::exp(x - most);
                }
                let by = 1.0 / sum_by(out, out, |x, _| x);
                out.iter_mut().for_each(|o| *o *= by);
            }
        }),
        (Op::SoftmaxColumnsGrad, &[g, y]) => simd!({
            for i in 0..rows {
                let (g, y) = (g.row(i), y.row(i));
                let mean = dot(g, y);
                for ((o, &g), &y) in out.row(i).iter_mut().zip(g).zip(y) {
                    *o = y * (g - mean);
                }
            }
        }),
        (Op::LogSumExpColumns, &[x]) => simd!({
            for i in 0..rows {
                let x = x.row(i);
                let most = largest(x);
                let sum = sum_by(x, x, |x, _| math::exp(x - most));
                out.data[i * out.stride] = most + math::ln(sum);
            }
        }),
        _ => super::unfit(op),
    }
}

#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    x.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}

pub(super) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    let node = cx.node(id).clone();
    match (&node.op, node.inputs.as_slice()) {
        (Op::SoftmaxColumns, &[x]) if cx.wants(x) => {
            let gx = cx.push(id, "grad", Op::SoftmaxColumnsGrad, &[g, id])?;
            cx.give(x, gx);
        }
        (Op::LogSumExpColumns, &[x]) if cx.wants(x) => {
            let share = cx.push(id, "share", Op::SoftmaxColumns, &[x])?;
            let gx = cx.push(id, "grad", Op::Binary(Binary::Mul), &[share, g])?;
            cx.give(x, gx);
        }
        _ => {}
    }
    Ok(())
}
