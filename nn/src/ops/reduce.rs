//! Sums over columns and over rows, and the broadcasts that are their gradients.

use super::kernel::{Tile, View, ViewMut, add, dot, simd, sum_by};
use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{Dim, NodeId, Shape};
use crate::op::{Binary, Op};

pub(super) fn shape(op: &Op, inputs: &[Shape]) -> std::result::Result<Shape, String> {
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
        _ => Err(format!("{} cannot take {}", op.name(), super::list(inputs))),
    }
}

pub(super) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
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
            sum_rows(rows, x, out.data, true);
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
        _ => super::unfit(op),
    }
}

/// Adds a tile's sum over rows to the lane's partial, or begins it.
pub(super) fn accumulate(tile: &Tile<'_>, inputs: &[View<'_>], partial: &mut [f32], first: bool) {
    if let &[x] = inputs {
        sum_rows(tile.rows, x, partial, first);
    }
}

/// Turns a sum over rows into what the operation wants.
pub(super) fn finish(mean: bool, rows: usize, out: &mut [f32]) {
    if mean {
        // A column may have no values at all, and its mean is 0.
        let by = 1.0 / rows.max(1) as f32;
        out.iter_mut().for_each(|o| *o *= by);
    }
}

fn sum_rows(rows: usize, x: View<'_>, out: &mut [f32], first: bool) {
    let out = &mut out[..x.cols];
    if first {
        out.fill(0.0);
    }
    simd!({
        for i in 0..rows {
            add(out, x.row(i));
        }
    })
}

pub(super) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    let node = cx.node(id).clone();
    match (&node.op, node.inputs.as_slice()) {
        (Op::SumColumns, &[x]) if cx.wants(x) => {
            let cols = cx.shape(x).cols;
            let gx = if cols == 1 {
                g
            } else {
                cx.push(id, "grad", Op::BroadcastColumns { cols }, &[g])?
            };
            cx.give(x, gx);
        }
        (Op::RowDot, &[a, b]) => {
            for (of, by) in [(a, b), (b, a)] {
                if cx.wants(of) {
                    let gx = cx.push(id, "grad", Op::Binary(Binary::Mul), &[by, g])?;
                    cx.give(of, gx);
                }
            }
        }
        (Op::SumRows { mean }, &[x]) if cx.wants(x) => {
            let op = Op::BroadcastRows { rows: cx.shape(x).rows, mean: *mean };
            let gx = cx.push(id, "grad", op, &[g])?;
            cx.give(x, gx);
        }
        (Op::BroadcastColumns { .. }, &[x]) if cx.wants(x) => {
            let gx = cx.push(id, "grad", Op::SumColumns, &[g])?;
            cx.give(x, gx);
        }
        (Op::BroadcastRows { mean, .. }, &[x]) if cx.wants(x) => {
            let gx = cx.push(id, "grad", Op::SumRows { mean: *mean }, &[g])?;
            cx.give(x, gx);
        }
        _ => {}
    }
    Ok(())
}
