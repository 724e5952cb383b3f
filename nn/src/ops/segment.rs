//! The operations that connect the rows of the batch with the values of their lists.
//!
//! The values of a tile are the values in the lists of its rows. They are contiguous. The offsets
//! of the column give the values of each row. An empty list has no values, and its sum is zero.

use super::kernel::add;
use super::*;
use std::ops::Range;

/// The operations that connect the rows of the batch with the values of their lists.
pub(super) struct Segment;

impl OpGroup for Segment {
    fn shape(op: &Op, inputs: &[Shape], graph: &Graph) -> ShapeResult {
        let values = |column: &usize| match graph.inputs.columns.get(*column) {
            Some(_) => Ok(Dim::Values(*column)),
            None => Err(format!("there is no sparse column {column}; name a column of the inputs")),
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
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
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
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        let &[x] = node.inputs.as_slice() else { return Err(cx.refuse_gradient(id)) };
        let (op, inputs) = match node.op {
            Op::Repeat { column, mean } => (Op::SegmentSum { column, mean }, vec![g]),
            Op::SegmentSum { column, mean } => (Op::Repeat { column, mean }, vec![g]),
            Op::SegmentSoftmax { column } => (Op::SegmentSoftmaxGrad { column }, vec![g, id]),
            _ => return Err(cx.refuse_gradient(id)),
        };
        cx.push_gradient(id, x, op, &inputs)
    }

    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::Repeat { column, .. }
            | Op::SegmentSum { column, .. }
            | Op::SegmentSoftmax { column }
            | Op::SegmentSoftmaxGrad { column } => write!(f, "[column {column}]"),
            _ => Ok(()),
        }
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        match op {
            Op::SegmentSum { .. } => sizes.input(0),
            Op::SegmentSoftmax { .. } | Op::SegmentSoftmaxGrad { .. } => 4 * sizes.input(0),
            _ => 0,
        }
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        let (Op::Repeat { column, .. }
        | Op::SegmentSum { column, .. }
        | Op::SegmentSoftmax { column }) = op
        else {
            return Ok(None);
        };
        let [x] = node.inputs else { return Ok(None) };
        let list = writer.list(*column)?;
        writer.emitter.enter(node.id, node.layer);
        let e = &mut writer.emitter;
        Ok(Some(match (op, list) {
            (Op::SegmentSoftmax { .. }, None) => {
                let none = e.op("Sub", &[x, x], vec![]);
                e.op("Exp", &[&none], vec![])
            }
            (_, None) => e.op("Identity", &[x], vec![]),
            (Op::Repeat { mean, .. }, Some(list)) => {
                let x = if *mean {
                    let by = list.inverse_lengths(e);
                    e.op("Mul", &[x, &by], vec![])
                } else {
                    (*x).to_owned()
                };
                list.repeat(e, &x)
            }
            (Op::SegmentSum { mean, .. }, Some(list)) => {
                let sum = list.sum(e, x, node.out_cols);
                if *mean {
                    let by = list.inverse_lengths(e);
                    e.op("Mul", &[&sum, &by], vec![])
                } else {
                    sum
                }
            }
            (_, Some(list)) => list.softmax(e, x, node.out_cols),
        }))
    }
}

/// Returns the range of the values of each row of the tile. The first value of the tile has the
/// index 0.
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

/// Computes the softmax of column `j` of a list. The largest element is subtracted first, so that
/// no exponential overflows.
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

/// Computes `y · (g − Σ g·y)` for column `j` of a list. The sum is over the list.
#[inline(always)]
fn softmax_grad(values: Range<usize>, j: usize, g: View<'_>, y: View<'_>, out: &mut ViewMut<'_>) {
    let sum = values.clone().fold(0.0, |sum, v| sum + g.row(v)[j] * y.row(v)[j]);
    for value in values {
        out.row(value)[j] = y.row(value)[j] * (g.row(value)[j] - sum);
    }
}
