//! Binary cross-entropy on logits: `max(z, 0) − z·y + ln(1 + e^−|z|)`, which cannot overflow.

use zillion_device::simd::math;

use super::kernel::{Tile, View, ViewMut};
use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{Dim, NodeId, Shape};
use crate::op::Op;

pub(super) fn shape(op: &Op, inputs: &[Shape]) -> std::result::Result<Shape, String> {
    let column = |s: &Shape| s.cols == 1 && s.rows == Dim::Batch;
    let scalar = Shape::constant(1, 1);
    match (op, inputs) {
        (Op::BceSum, [_, _, _]) if inputs.iter().all(column) => Ok(scalar),
        (Op::BceGrad, [g, rest @ ..])
            if rest.len() == 3 && *g == scalar && rest.iter().all(column) =>
        {
            Ok(Shape::batch(1))
        }
        _ => Err(format!("{} cannot take {}", op.name(), super::list(inputs))),
    }
}

/// A tile's sum is in f64, so that the loss that people read does not depend on the tile's size in
/// the digits they look at.
pub(super) fn accumulate(tile: &Tile<'_>, inputs: &[View<'_>], partial: &mut [f32], first: bool) {
    let &[z, y, w] = inputs else { return };
    let sum: f64 = (0..tile.rows)
        .map(|i| {
            let (z, y, w) = (z.at(i), y.at(i), w.at(i));
            // A row without weight may have no label, and then whatever stands there.
            let loss = z.max(0.0) - z * y + math::ln_1p(math::exp(-z.abs()));
            if w == 0.0 { 0.0 } else { f64::from(w * loss) }
        })
        .sum();
    partial[0] = if first { sum as f32 } else { partial[0] + sum as f32 };
}

pub(super) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
    let (Op::BceGrad, &[g, z, y, w]) = (op, inputs) else { return super::unfit(op) };
    let g = g.at(0);
    for i in 0..tile.rows {
        let (z, y, w) = (z.at(i), y.at(i), w.at(i));
        out.data[i * out.stride] = if w == 0.0 { 0.0 } else { g * w * (math::sigmoid(z) - y) };
    }
}

pub(super) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    let node = cx.node(id).clone();
    match (&node.op, node.inputs.as_slice()) {
        (Op::BceSum, &[z, y, w]) => {
            if cx.wants(y) || cx.wants(w) {
                return Err(cx.no_rule(id));
            }
            let gz = cx.push(id, "grad", Op::BceGrad, &[g, z, y, w])?;
            cx.give(z, gz);
        }
        _ => return Err(cx.no_rule(id)),
    }
    Ok(())
}
