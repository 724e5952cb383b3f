//! Between rows of the batch and the values of their lists.
//!
//! A tile of rows owns the values of its rows' lists, which stand together: the column's offsets say
//! which belong to which row. An empty list has no values to write and sums to zero.

use std::ops::Range;

use zillion_device::simd::math;

use super::kernel::{Tile, View, ViewMut, add, simd};
use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{Dim, Graph, NodeId, Shape};
use crate::op::Op;

pub(super) fn shape(
    op: &Op,
    inputs: &[Shape],
    graph: &Graph,
) -> std::result::Result<Shape, String> {
    let values = |column: &usize| match graph.inputs.columns.get(*column) {
        Some(_) => Ok(Dim::Values(*column)),
        None => Err(format!("there is no sparse column {column}")),
    };
    match (op, inputs) {
        (Op::Repeat { column, .. }, [x]) if x.rows == Dim::Batch => {
            Ok(Shape { rows: values(column)?, cols: x.cols })
        }
        (Op::SegmentSum { column, .. }, [x]) if x.rows == values(column)? => {
            Ok(Shape::batch(x.cols))
        }
        (Op::SegmentSoftmax { column }, [x]) if x.rows == values(column)? => Ok(*x),
        (Op::SegmentSoftmaxGrad { column }, [g, y]) if g == y && y.rows == values(column)? => {
            Ok(*y)
        }
        _ => Err(format!("{} cannot take {}", op.name(), super::list(inputs))),
    }
}

pub(super) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
    match (op, inputs) {
        (&Op::Repeat { column, mean }, &[x]) => simd!({
            for (i, values) in lists(tile, column).enumerate() {
                let by = factor(mean, values.len());
                for value in values {
                    for (o, &x) in out.row(value).iter_mut().zip(x.row(i)) {
                        *o = by * x;
                    }
                }
            }
        }),
        (&Op::SegmentSum { column, mean }, &[x]) => simd!({
            for (i, values) in lists(tile, column).enumerate() {
                let by = factor(mean, values.len());
                let out = out.row(i);
                out.fill(0.0);
                for value in values {
                    add(out, x.row(value));
                }
                out.iter_mut().for_each(|o| *o *= by);
            }
        }),
        (&Op::SegmentSoftmax { column }, &[x]) => simd!({
            for values in lists(tile, column) {
                for j in 0..x.cols {
                    softmax(values.clone(), j, x, &mut out);
                }
            }
        }),
        (&Op::SegmentSoftmaxGrad { column }, &[g, y]) => simd!({
            for values in lists(tile, column) {
                for j in 0..y.cols {
                    softmax_grad(values.clone(), j, g, y, &mut out);
                }
            }
        }),
        _ => super::unfit(op),
    }
}

/// The values of each row of the tile, counted from the tile's first.
fn lists<'a>(tile: &Tile<'a>, column: usize) -> impl Iterator<Item = Range<usize>> + use<'a> {
    let column = &tile.inputs.columns[column];
    let batch = tile.batch.clone();
    let first = column.values_before(batch.start);
    batch.map(move |row| {
        let values = column.values_of(row);
        values.start - first..values.end - first
    })
}

#[inline(always)]
fn factor(mean: bool, len: usize) -> f32 {
    if mean && len > 0 { 1.0 / len as f32 } else { 1.0 }
}

/// Less the largest, so that nothing overflows.
#[inline(always)]
fn softmax(values: Range<usize>, j: usize, x: View<'_>, out: &mut ViewMut<'_>) {
    let largest = values.clone().fold(f32::NEG_INFINITY, |a, v| a.max(x.row(v)[j]));
    let mut sum = 0.0;
    for value in values.clone() {
        let e = math::exp(x.row(value)[j] - largest);
        out.row(value)[j] = e;
        sum += e;
    }
    let by = 1.0 / sum;
    for value in values {
        out.row(value)[j] *= by;
    }
}

/// `y · (g − Σ g·y)`, the sum over the list.
#[inline(always)]
fn softmax_grad(values: Range<usize>, j: usize, g: View<'_>, y: View<'_>, out: &mut ViewMut<'_>) {
    let sum = values.clone().fold(0.0, |sum, v| sum + g.row(v)[j] * y.row(v)[j]);
    for value in values {
        out.row(value)[j] = y.row(value)[j] * (g.row(value)[j] - sum);
    }
}

pub(super) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    let node = cx.node(id).clone();
    let &[x] = node.inputs.as_slice() else { return Err(cx.no_rule(id)) };
    if !cx.wants(x) {
        return Ok(());
    }
    let gx = match node.op {
        Op::Repeat { column, mean } => {
            cx.push(id, "grad", Op::SegmentSum { column, mean }, &[g])?
        }
        Op::SegmentSum { column, mean } => {
            cx.push(id, "grad", Op::Repeat { column, mean }, &[g])?
        }
        Op::SegmentSoftmax { column } => {
            cx.push(id, "grad", Op::SegmentSoftmaxGrad { column }, &[g, id])?
        }
        _ => return Err(cx.no_rule(id)),
    };
    cx.give(x, gx);
    Ok(())
}
