//! The products of layers with factors of bf16 and sums of f32. The bias, the activation and all
//! other functions behind a product are those of f32.

use zillion_device::matmul::bf16::{self, Instructions, Panel, Scratch};
use zillion_device::matmul::{self, Epilogue};

use super::fused::apply;
use super::linear::matrix;
use super::*;
use crate::graph::op::Link;

/// The arithmetic and the memory of one product.
#[derive(Debug)]
pub(crate) struct NarrowProduct<'a> {
    pub(crate) instructions: Instructions,
    /// The packed weight; `None` if the product has none, or if the weight is a computed value.
    pub(crate) panels: Option<&'a [Panel]>,
    pub(crate) scratch: Scratch,
}

/// Computes the rows of a tile of a product with a weight, and the chain of functions behind it.
pub(crate) fn forward_narrow(
    product: &mut NarrowProduct<'_>,
    op: &Op,
    tile: &Tile<'_>,
    inputs: &[View<'_>],
    mut out: ViewMut<'_>,
) {
    let (head, head_inputs, chain) = match op {
        Op::Fused(fused) => (&fused.head, fused.head_inputs, fused.chain.as_slice()),
        op => (op, inputs.len(), [].as_slice()),
    };
    let (head_views, operands) = inputs.split_at(head_inputs.min(inputs.len()));
    let (x, w, bias) = match *head_views {
        [x, w] => (x, w, None),
        [x, w, bias] => (x, w, Some(bias.row(0))),
        _ => return reject(op),
    };
    let (relu, chain) = match (head, chain) {
        (Op::Linear, [Link::Unary(Unary::Relu), rest @ ..]) => (true, rest),
        (_, chain) => (false, chain),
    };
    let packed;
    let panels = match product.panels {
        Some(panels) => panels,
        None => {
            // The weight is itself a computed value, so it is packed for each tile.
            let weight = match head {
                Op::MatMulNt => matmul::View::new(w.data, out.cols, x.cols, w.stride).transposed(),
                _ => matmul::View::new(w.data, x.cols, out.cols, w.stride),
            };
            let mut panels = Panel::list(x.cols, out.cols);
            panels.iter_mut().for_each(|panel| panel.fill(weight));
            packed = panels;
            &packed
        }
    };
    let epilogue = Epilogue { bias, relu, ..Epilogue::default() };
    let NarrowProduct { instructions, scratch, .. } = product;
    let x = matrix(tile.rows, x);
    bf16::linear(*instructions, x, panels, epilogue, out.data, out.stride, scratch);
    apply(chain, tile.rows, 0, operands, &mut out);
}

/// Adds the rows of a tile to the partial sum of the products `xᵀ·g`.
pub(crate) fn accumulate_narrow(
    product: &mut NarrowProduct<'_>,
    op: &Op,
    tile: &Tile<'_>,
    inputs: &[View<'_>],
    partial: &mut Partial<'_>,
) {
    let &[x, g] = inputs else { return reject(op) };
    let adds = !partial.is_new();
    let (x, columns) = (matrix(tile.rows, x), g.cols);
    let NarrowProduct { instructions, scratch, .. } = product;
    let g = matrix(tile.rows, g);
    bf16::outer_product(*instructions, x, g, adds, partial.values, columns, scratch);
}
