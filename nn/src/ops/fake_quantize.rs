//! Fake quantisation, with which training sees the rounding of dense layers in 8-bit integers
//! (Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient
//! Integer-Arithmetic-Only Inference").
//!
//! A value becomes the value that its 8-bit integer stands for, with the scales of serving: one for
//! each row of an input, and one for each column of a weight. The gradient goes straight through
//! (Bengio et al. 2013). No value is cut off, because the scale follows from the largest one, so
//! that no gradient is zero.

use super::linear::matrix;
use super::*;
use zillion_device::matmul::{fake_quantize_columns, fake_quantize_rows};

/// Fake quantisation of rows and of columns.
pub(super) struct FakeQuantize;

impl OpGroup for FakeQuantize {
    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::FakeQuantize { columns: true } => f.write_str("[columns]"),
            _ => f.write_str("[rows]"),
        }
    }

    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        match (op, inputs) {
            (Op::FakeQuantize { columns: false }, [x]) => Ok(*x),
            // The scale of a column needs all rows.
            (Op::FakeQuantize { columns: true }, [w]) if matches!(w.rows, Dim::Const(_)) => Ok(*w),
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
        match (op, inputs) {
            (Op::FakeQuantize { columns: false }, &[x]) => {
                fake_quantize_rows(matrix(tile.rows, x), out.data, out.stride);
            }
            (Op::FakeQuantize { columns: true }, &[w]) => {
                fake_quantize_columns(matrix(tile.rows, w), out.data, out.stride);
            }
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        if let &[x] = cx.node(id).inputs.as_slice() {
            cx.add_gradient(x, g);
        }
        Ok(())
    }

    fn flops(_op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        // The magnitude, two products and the rounding.
        4 * sizes.out()
    }
}
