//! The concatenation and the slicing of columns. If possible, the results are views, which cost
//! nothing: see [`placement`](crate::cpu::placement).

use super::*;

/// The concatenation and the slicing of columns.
pub(super) struct Columns;

impl OpGroup for Columns {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        match (op, inputs) {
            (Op::Concat, [first, ..]) => {
                if inputs.iter().any(|s| s.rows != first.rows) {
                    return Err(format!(
                        "the rows of {} differ; give inputs with the same rows",
                        format_shapes(inputs)
                    ));
                }
                Ok(Shape { rows: first.rows, cols: inputs.iter().map(|s| s.cols).sum() })
            }
            (Op::Slice { start, len }, [x]) => match start.checked_add(*len) {
                Some(end) if end <= x.cols => Ok(Shape { rows: x.rows, cols: *len }),
                _ => Err(format!(
                    "the input {x} has no columns {start}..{}; name columns that it has",
                    start.saturating_add(*len)
                )),
            },
            (Op::Pad { start, total }, [x]) => match start.checked_add(x.cols) {
                Some(end) if end <= *total => Ok(Shape { rows: x.rows, cols: *total }),
                _ => Err(format!(
                    "the input {x} from column {start} on does not fit into {total} columns; \
                     raise the number of columns"
                )),
            },
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
        match (op, inputs) {
            (Op::Slice { start, len }, &[x]) => {
                for i in 0..tile.rows {
                    out.row(i).copy_from_slice(&x.row(i)[*start..start + len]);
                }
            }
            (Op::Pad { start, .. }, &[x]) => {
                for i in 0..tile.rows {
                    let out = out.row(i);
                    out[..*start].fill(0.0);
                    out[*start..start + x.cols].copy_from_slice(x.row(i));
                    out[start + x.cols..].fill(0.0);
                }
            }
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        match (&node.op, node.inputs.as_slice()) {
            (Op::Concat, parts) => {
                let mut start = 0;
                for &part in parts {
                    let len = cx.shape(part).cols;
                    cx.push_gradient(id, part, Op::Slice { start, len }, &[g])?;
                    start += len;
                }
            }
            (&Op::Slice { start, .. }, &[x]) => {
                let total = cx.shape(x).cols;
                cx.push_gradient(id, x, Op::Pad { start, total }, &[g])?;
            }
            (&Op::Pad { start, .. }, &[x]) => {
                let len = cx.shape(x).cols;
                cx.push_gradient(id, x, Op::Slice { start, len }, &[g])?;
            }
            _ => {}
        }
        Ok(())
    }

    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::Slice { start, len } => write!(f, "[{start}..{}]", start + len),
            Op::Pad { start, total } => write!(f, "[{start} of {total}]"),
            _ => Ok(()),
        }
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        Ok(Some(match (op, node.inputs) {
            (Op::Concat, parts) => writer.concat(parts),
            (Op::Slice { start, len }, [x]) => {
                let e = &mut writer.emitter;
                let (from, to) = (e.int(*start as i64), e.int((start + len) as i64));
                let axis = e.int(1);
                e.op("Slice", &[x, &from, &to, &axis], vec![])
            }
            (Op::Pad { start, total }, [x]) => {
                let behind = total - start - node.cols(0);
                let pads = writer.emitter.ints(&[0, *start as i64, 0, behind as i64]);
                writer.emitter.op("Pad", &[x, &pads], vec![])
            }
            _ => return Ok(None),
        }))
    }
}

/// Copies one part of a concatenation into its columns. Does nothing if the part was written there
/// directly.
pub(crate) fn copy_part(rows: usize, x: View<'_>, out: &mut ViewMut<'_>, start: usize) {
    for i in 0..rows {
        out.row(i)[start..start + x.cols].copy_from_slice(x.row(i));
    }
}
