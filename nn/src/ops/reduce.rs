//! Sums over columns and over rows, and the broadcasts that are their gradients.

use super::kernel::{add, dot, sum_by};
use super::*;

/// Sums over columns and rows, and the broadcasts that are their gradients.
pub(super) struct Reduction;

impl OpGroup for Reduction {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        match (op, inputs) {
            (Op::SumColumns, [x]) => Ok(Shape { rows: x.rows, cols: 1 }),
            (Op::RowDot, [a, b]) if a == b => Ok(Shape { rows: a.rows, cols: 1 }),
            (Op::SumRows { .. }, [x]) => Ok(Shape::constant(1, x.cols)),
            (Op::BroadcastColumns { cols }, [x]) if x.cols == 1 => {
                Ok(Shape { rows: x.rows, cols: *cols })
            }
            (Op::BroadcastRows { rows, .. }, [x]) if x.rows == Dim::Const(1) => {
                Ok(Shape { rows: *rows, cols: x.cols })
            }
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
        let rows = tile.rows;
        match (op, inputs) {
            (Op::SumColumns, &[x]) => simd!({
                for i in 0..rows {
                    let row = x.row(i);
                    out.data[i * out.stride] = sum_by(row, row, |x, _| x);
                }
            }),
            (Op::RowDot, &[a, b]) => simd!({
                for i in 0..rows {
                    out.data[i * out.stride] = dot(a.row(i), b.row(i));
                }
            }),
            (Op::SumRows { mean }, &[x]) => {
                sum_rows(rows, x, &mut Partial::new(out.data));
                finish(*mean, rows, &mut out.data[..x.cols]);
            }
            (Op::BroadcastColumns { .. }, &[x]) => simd!({
                for i in 0..rows {
                    let value = x.at(i);
                    out.row(i).fill(value);
                }
            }),
            (Op::BroadcastRows { rows: dim, mean }, &[x]) => {
                let count = if dim.is_tiled() { tile.total_rows } else { rows };
                let by = if *mean { 1.0 / count as f32 } else { 1.0 };
                simd!({
                    for i in 0..rows {
                        for (o, &x) in out.row(i).iter_mut().zip(x.row(0)) {
                            *o = by * x;
                        }
                    }
                })
            }
            _ => reject(op),
        }
    }

    fn accumulate(_op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], partial: &mut Partial<'_>) {
        if let &[x] = inputs {
            sum_rows(tile.rows, x, partial);
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        match (&node.op, node.inputs.as_slice()) {
            (Op::SumColumns, &[x]) if cx.shape(x).cols == 1 => cx.add_gradient(x, g),
            (Op::SumColumns, &[x]) => {
                let cols = cx.shape(x).cols;
                cx.push_gradient(id, x, Op::BroadcastColumns { cols }, &[g])?;
            }
            (Op::RowDot, &[a, b]) => {
                for (of, by) in [(a, b), (b, a)] {
                    cx.push_gradient(id, of, Op::Binary(Binary::Mul), &[by, g])?;
                }
            }
            (&Op::SumRows { mean }, &[x]) => {
                let rows = cx.shape(x).rows;
                cx.push_gradient(id, x, Op::BroadcastRows { rows, mean }, &[g])?;
            }
            (Op::BroadcastColumns { .. }, &[x]) => cx.push_gradient(id, x, Op::SumColumns, &[g])?,
            (Op::BroadcastRows { mean, .. }, &[x]) => {
                cx.push_gradient(id, x, Op::SumRows { mean: *mean }, &[g])?
            }
            _ => {}
        }
        Ok(())
    }

    fn combine<'a>(
        op: &Op,
        partials: impl Iterator<Item = (usize, &'a [f32])>,
        start: usize,
        total_rows: usize,
        out: &mut [f32],
    ) {
        add_partials(partials, start, out);
        if let Op::SumRows { mean } = op {
            finish(*mean, total_rows, out);
        }
    }

    fn sums_rows(op: &Op) -> bool {
        matches!(op, Op::SumRows { .. })
    }

    fn chaining(op: &Op) -> Chaining {
        match op {
            Op::RowDot | Op::SumColumns | Op::BroadcastColumns { .. } => Chaining::Rows,
            _ => Chaining::None,
        }
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        match op {
            Op::SumColumns | Op::SumRows { .. } => sizes.input(0),
            Op::RowDot => 2 * sizes.input(0),
            _ => 0,
        }
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        Ok(Some(match (op, node.inputs) {
            (Op::SumColumns, [x]) => writer.reduce("ReduceSum", x, 1),
            (Op::RowDot, [a, b]) => {
                let product = writer.emitter.op("Mul", &[a, b], vec![]);
                writer.reduce("ReduceSum", &product, 1)
            }
            // A sum over the rows of the batch would mix its rows. A sum over the rows of a
            // constant is itself a constant.
            (Op::SumRows { mean }, [x]) if writer.is_constant(node.id) => {
                writer.reduce(if *mean { "ReduceMean" } else { "ReduceSum" }, x, 0)
            }
            (Op::BroadcastColumns { cols }, [x]) => {
                let shape = writer.emitter.ints(&[1, *cols as i64]);
                writer.emitter.op("Expand", &[x, &shape], vec![])
            }
            _ => return Ok(None),
        }))
    }
}

/// Divides a sum over rows by the number of rows if the operation is a mean. Otherwise, does
/// nothing.
pub(super) fn finish(mean: bool, rows: usize, out: &mut [f32]) {
    if mean {
        // A column may have no values. Then the mean is 0.
        let by = 1.0 / rows.max(1) as f32;
        out.iter_mut().for_each(|o| *o *= by);
    }
}

fn sum_rows(rows: usize, x: View<'_>, partial: &mut Partial<'_>) {
    let out = partial.zeroed(x.cols);
    simd!({
        for i in 0..rows {
            add(out, x.row(i));
        }
    })
}
