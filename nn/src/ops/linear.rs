//! Matrix products, forward and backward.

use super::kernel::{add_scaled, dot, map2};
use super::packed_weight::exact_weight;
use super::*;
use crate::onnx::proto::AttributeProto;
use zillion_device::matmul::{self, Epilogue, Panel, Right};

/// Matrix products, forward and backward.
pub(super) struct Product;

impl OpGroup for Product {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        match (op, inputs) {
            (Op::Linear, [x, w, bias @ ..]) if bias.len() <= 1 => {
                if w.rows != Dim::Const(x.cols) {
                    return Err(format!(
                        "the input {x} cannot be multiplied by a weight {w}; give an input with \
                         as many columns as the weight has rows"
                    ));
                }
                if bias.iter().any(|&b| b != Shape::constant(1, w.cols)) {
                    return Err(format!(
                        "a bias {} does not fit a weight {w}; give a bias with the columns of the \
                         weight",
                        format_shapes(bias)
                    ));
                }
                Ok(Shape { rows: x.rows, cols: w.cols })
            }
            (Op::MatMulNt, [g, w]) => match w.rows {
                Dim::Const(k) if w.cols == g.cols => Ok(Shape { rows: g.rows, cols: k }),
                _ => Err(format!(
                    "the input {g} cannot be multiplied by the transpose of {w}; give an input \
                     with the columns of the weight"
                )),
            },
            (Op::MatMulTn, [x, g]) if x.rows == g.rows => Ok(Shape::constant(x.cols, g.cols)),
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
        match (op, inputs) {
            (Op::Linear, &[x, w]) => linear(tile, x, w, None, false, out),
            (Op::Linear, &[x, w, bias]) => linear(tile, x, w, Some(bias), false, out),
            (Op::MatMulNt, &[g, w]) => matmul_nt(tile, g, w, out),
            (Op::MatMulTn, &[x, g]) => matmul_tn(tile.rows, x, g, &mut Partial::new(out.data)),
            _ => reject(op),
        }
    }

    fn accumulate(_op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], partial: &mut Partial<'_>) {
        if let &[x, g] = inputs {
            matmul_tn(tile.rows, x, g, partial);
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        match (&node.op, node.inputs.as_slice()) {
            (Op::Linear, &[x, w, ref bias @ ..]) => {
                cx.push_gradient(id, x, Op::MatMulNt, &[g, w])?;
                cx.push_gradient(id, w, Op::MatMulTn, &[x, g])?;
                if let [bias] = *bias {
                    cx.push_gradient(id, bias, Op::SumRows { mean: false }, &[g])?;
                }
            }
            (Op::MatMulNt, &[a, w]) => {
                // y = a·wᵀ: da = g·w, dw = gᵀ·a.
                cx.push_gradient(id, a, Op::Linear, &[g, w])?;
                cx.push_gradient(id, w, Op::MatMulTn, &[g, a])?;
            }
            (Op::MatMulTn, &[x, b]) => {
                // y = xᵀ·b: dx = b·gᵀ, db = x·g.
                cx.push_gradient(id, x, Op::MatMulNt, &[b, g])?;
                cx.push_gradient(id, b, Op::Linear, &[x, g])?;
            }
            _ => {}
        }
        Ok(())
    }

    fn sums_rows(op: &Op) -> bool {
        *op == Op::MatMulTn
    }

    fn chaining(op: &Op) -> Chaining {
        match op {
            Op::Linear | Op::MatMulNt => Chaining::Tile,
            _ => Chaining::None,
        }
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        let (out, bias) = (sizes.out(), sizes.inputs.len() > 2);
        match op {
            Op::Linear => 2 * out * sizes.cols(0) + if bias { out } else { 0 },
            Op::MatMulNt => 2 * out * sizes.cols(0),
            _ => 2 * sizes.input(0) * sizes.cols(1),
        }
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        let e = &mut writer.emitter;
        Ok(Some(match (op, node.inputs) {
            (Op::Linear, [x, w]) => e.op("MatMul", &[x, w], vec![]),
            (Op::Linear, [x, w, b]) => {
                let product = e.op("MatMul", &[x, w], vec![]);
                e.op("Add", &[&product, b], vec![])
            }
            (Op::MatMulNt, [a, w]) => e.op("Gemm", &[a, w], vec![AttributeProto::int("transB", 1)]),
            _ => return Ok(None),
        }))
    }
}

/// Computes a linear layer and its relu together. The relu is applied to the sums before they are
/// written, and the result has the same bits as the two separate operations. Returns `false`, and
/// computes nothing, if the layer has only one column, because these kernels need more columns.
pub(super) fn forward_relu(tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) -> bool {
    match *inputs {
        _ if out.cols == 1 => return false,
        [x, w] => linear(tile, x, w, None, true, out),
        [x, w, bias] => linear(tile, x, w, Some(bias), true, out),
        _ => return false,
    }
    true
}

fn linear(
    tile: &Tile<'_>,
    x: View<'_>,
    w: View<'_>,
    bias: Option<View<'_>>,
    relu: bool,
    out: ViewMut<'_>,
) {
    if out.cols == 1 && w.stride == 1 {
        debug_assert!(!relu, "a column has no epilogue");
        let bias = bias.map_or(0.0, |b| b.at(0));
        simd!({
            for i in 0..tile.rows {
                out.data[i * out.stride] = dot(x.row(i), &w.data[..x.cols]) + bias;
            }
        });
        return;
    }
    let bias = bias.map(|bias| bias.row(0));
    let epilogue = Epilogue { bias, relu, ..Epilogue::default() };
    let x = matrix(tile.rows, x);
    if let Some(packed) = tile.packed
        && packed.multiply_rounded(0, x, epilogue, out.data, out.stride)
    {
        return;
    }
    let plain = matmul::View::new(w.data, x.columns(), out.cols, w.stride);
    matmul::linear(x, exact_weight(tile.packed, plain), epilogue, out.data, out.stride);
}

/// Converts rows to the view type that the product kernels read.
pub(super) fn matrix(rows: usize, view: View<'_>) -> matmul::View<'_> {
    matmul::View::new(view.data, rows, view.cols, view.stride)
}

fn matmul_nt(tile: &Tile<'_>, g: View<'_>, w: View<'_>, mut out: ViewMut<'_>) {
    let (n, k) = (g.cols, out.cols);
    if n == 1 && w.stride == 1 {
        let w = View { data: w.data, stride: 0, cols: k };
        simd!({ map2(tile.rows, w, g, &mut out, |w, g| g * w) });
        return;
    }
    if let Some(panels) = tile.packed.and_then(Packed::exact) {
        let right = Right::Packed(panels);
        let epilogue = Epilogue::default();
        return matmul::linear(matrix(tile.rows, g), right, epilogue, out.data, out.stride);
    }
    // The weight is itself a computed value, so it is packed for each tile. The definition of the
    // product is the same.
    let turned = matmul::View::new(w.data, k, n, w.stride).transposed();
    let mut panels = Panel::list(n, k);
    panels.iter_mut().for_each(|panel| panel.fill(turned));
    let right = Right::Packed(&panels);
    matmul::linear(matrix(tile.rows, g), right, Epilogue::default(), out.data, out.stride);
}

fn matmul_tn(rows: usize, x: View<'_>, g: View<'_>, partial: &mut Partial<'_>) {
    let n = g.cols;
    if n == 1 {
        let out = partial.zeroed(x.cols);
        simd!({
            for i in 0..rows {
                add_scaled(out, x.row(i), g.at(i));
            }
        });
        return;
    }
    let adds = !partial.is_new();
    let Partial { values, scratch, .. } = partial;
    matmul::outer_product(matrix(rows, x), matrix(rows, g), adds, values, n, scratch);
}
