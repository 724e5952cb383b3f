//! Columns side by side, and parts of them. Where they can, these are views that cost nothing: see
//! [`placement`](crate::placement).

use super::kernel::{Tile, View, ViewMut};
use crate::autodiff::Backward;
use crate::error::Result;
use crate::graph::{NodeId, Shape};
use crate::op::Op;

pub(super) fn shape(op: &Op, inputs: &[Shape]) -> std::result::Result<Shape, String> {
    match (op, inputs) {
        (Op::Concat, [first, ..]) => {
            if inputs.iter().any(|s| s.rows != first.rows) {
                return Err(format!("rows of {} differ", super::list(inputs)));
            }
            Ok(Shape { rows: first.rows, cols: inputs.iter().map(|s| s.cols).sum() })
        }
        (Op::Slice { start, len }, [x]) => match start.checked_add(*len) {
            Some(end) if end <= x.cols => Ok(Shape { rows: x.rows, cols: *len }),
            _ => Err(format!("{x} has no {len} columns from {start}")),
        },
        (Op::Pad { start, total }, [x]) => match start.checked_add(x.cols) {
            Some(end) if end <= *total => Ok(Shape { rows: x.rows, cols: *total }),
            _ => Err(format!("{x} at column {start} does not fit {total} columns")),
        },
        _ => Err(format!("{} cannot take {}", op.name(), super::list(inputs))),
    }
}

pub(super) fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
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
        _ => super::unfit(op),
    }
}

/// One part of a concatenation, where it could not be written in place.
pub(crate) fn copy_part(rows: usize, x: View<'_>, out: &mut ViewMut<'_>, start: usize) {
    for i in 0..rows {
        out.row(i)[start..start + x.cols].copy_from_slice(x.row(i));
    }
}

pub(super) fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
    let node = cx.node(id).clone();
    match (&node.op, node.inputs.as_slice()) {
        (Op::Concat, parts) => {
            let mut start = 0;
            for &part in parts {
                let len = cx.shape(part).cols;
                if cx.wants(part) {
                    let gp = cx.push(id, "grad", Op::Slice { start, len }, &[g])?;
                    cx.give(part, gp);
                }
                start += len;
            }
        }
        (Op::Slice { start, .. }, &[x]) if cx.wants(x) => {
            let total = cx.shape(x).cols;
            let gx = cx.push(id, "grad", Op::Pad { start: *start, total }, &[g])?;
            cx.give(x, gx);
        }
        (Op::Pad { start, .. }, &[x]) if cx.wants(x) => {
            let len = cx.shape(x).cols;
            let gx = cx.push(id, "grad", Op::Slice { start: *start, len }, &[g])?;
            cx.give(x, gx);
        }
        _ => {}
    }
    Ok(())
}
