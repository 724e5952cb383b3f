//! Binary cross-entropy on logits: `max(z, 0) − z·y + ln(1 + e^−|z|)`, which cannot overflow.

use super::kernel::{Tile, View, ViewMut};
use super::{OpGroup, ShapeResult};
use crate::autodiff::backward::Backward;
use crate::error::Result;
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::{Dim, NodeId, Shape};
use crate::graph::sizes::NodeSizes;
use zillion_device::matmul::Scratch;
use zillion_device::simd::math;

/// Binary cross-entropy of logits, and its gradient.
pub(super) struct Bce;

impl OpGroup for Bce {
    fn name(op: &Op) -> &'static str {
        match op {
            Op::BceSum => "bce_sum",
            Op::BceGrad => "bce_grad",
            _ => "unknown",
        }
    }

    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        let column = |s: &Shape| s.cols == 1 && s.rows == Dim::Batch;
        let scalar = Shape::constant(1, 1);
        match (op, inputs) {
            (Op::BceSum, [_, _, _]) if inputs.iter().all(column) => Ok(scalar),
            (Op::BceGrad, [g, rest @ ..])
                if rest.len() == 3 && *g == scalar && rest.iter().all(column) =>
            {
                Ok(Shape::batch(1))
            }
            _ => super::cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
        let (Op::BceGrad, &[g, z, y, w]) = (op, inputs) else { return super::reject(op) };
        let g = g.at(0);
        for i in 0..tile.rows {
            let (z, y, w) = (z.at(i), y.at(i), w.at(i));
            out.data[i * out.stride] = if w == 0.0 { 0.0 } else { g * w * (math::sigmoid(z) - y) };
        }
    }

    fn accumulate(
        _op: &Op,
        tile: &Tile<'_>,
        rows_before: usize,
        inputs: &[View<'_>],
        partial: &mut [f32],
        _scratch: &mut Scratch,
    ) {
        let first = rows_before == 0;
        let &[z, y, w] = inputs else { return };
        let sum: f64 = (0..tile.rows)
            .map(|i| {
                let (z, y, w) = (z.at(i), y.at(i), w.at(i));
                // The label of a row with weight 0 may be missing, and its value may then be any
                // number.
                let loss = z.max(0.0) - z * y + math::ln_1p(math::exp(-z.abs()));
                if w == 0.0 { 0.0 } else { f64::from(w * loss) }
            })
            .sum();
        partial[0] = if first { sum as f32 } else { partial[0] + sum as f32 };
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        match (&node.op, node.inputs.as_slice()) {
            (Op::BceSum, &[z, y, w]) => {
                if cx.wants(y) || cx.wants(w) {
                    return Err(cx.refuse_gradient(id));
                }
                let gz = cx.push(id, "grad", Op::BceGrad, &[g, z, y, w])?;
                cx.give(z, gz);
            }
            _ => return Err(cx.refuse_gradient(id)),
        }
        Ok(())
    }

    fn flops(_op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        8 * sizes.sizes.rows as u64
    }
}
