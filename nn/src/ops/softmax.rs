//! The softmax over the columns of each row, and the logarithm of its divisor, the sum of
//! exponentials. Both operations subtract the largest element of the row first, so that no
//! exponential overflows.

use super::kernel::{dot, sum_by};
use super::*;
use crate::onnx::proto::AttributeProto;

/// The softmax over the columns of each row, and the logarithm of its divisor.
pub(super) struct Softmax;

impl OpGroup for Softmax {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        match (op, inputs) {
            (Op::SoftmaxColumns, [x]) => Ok(*x),
            (Op::SoftmaxColumnsGrad, [g, y]) if g == y => Ok(*y),
            (Op::LogSumExpColumns, [x]) => Ok(Shape { rows: x.rows, cols: 1 }),
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
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
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        match (&node.op, node.inputs.as_slice()) {
            (Op::SoftmaxColumns, &[x]) => {
                cx.push_gradient(id, x, Op::SoftmaxColumnsGrad, &[g, id])?
            }
            (Op::LogSumExpColumns, &[x]) if cx.needs_gradient(x) => {
                let share = cx.push(id, "share", Op::SoftmaxColumns, &[x])?;
                cx.push_gradient(id, x, Op::Binary(Binary::Mul), &[share, g])?;
            }
            (Op::SoftmaxColumnsGrad, _) => return Err(cx.refuse_gradient(id)),
            _ => {}
        }
        Ok(())
    }

    fn chaining(op: &Op) -> Chaining {
        match op {
            Op::SoftmaxColumns | Op::SoftmaxColumnsGrad => Chaining::Rows,
            _ => Chaining::None,
        }
    }

    fn flops(_op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        4 * sizes.input(0)
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        Ok(Some(match (op, node.inputs) {
            (Op::SoftmaxColumns, [x]) => {
                writer.emitter.op("Softmax", &[x], vec![AttributeProto::int("axis", 1)])
            }
            (Op::LogSumExpColumns, [x]) => writer.reduce("ReduceLogSumExp", x, 1),
            _ => return Ok(None),
        }))
    }
}

#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    x.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a })
}
