//! Operations that go on from the state of a row-wise operation after its first columns.
//!
//! The columns of the user are the same in all rows of a request. One node computes the state after
//! these columns once, and another node goes on with the other columns of each row. The bits are
//! those of the whole operation, because both use the same order of additions.

use zillion_device::matmul::{self, Begun, Epilogue};

use super::interaction::{dots_from, fm_rest, fm_state, pairs_of};
use super::linear::matrix;
use super::packed_weight::exact_weight;
use super::*;

/// The states after some columns, and the operations that go on from them.
pub(super) struct Resumed;

impl OpGroup for Resumed {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        let fits = |x: &Shape, dim: usize| dim > 0 && x.cols > 0 && x.cols.is_multiple_of(dim);
        match (op, inputs) {
            (Op::LinearState, [x, w]) if x.rows == Dim::Const(1) => match w.rows {
                Dim::Const(k) if x.cols <= k => Ok(Shape::constant(1, 2 * w.cols)),
                _ => cannot_take(op, inputs),
            },
            (Op::LinearRest { start }, [x, w, state, bias @ ..])
                if bias.len() <= 1
                    && start.checked_add(x.cols).is_some_and(|k| w.rows == Dim::Const(k))
                    && w.cols > 1
                    && *state == Shape::constant(1, 2 * w.cols)
                    && bias.iter().all(|&b| b == Shape::constant(1, w.cols)) =>
            {
                Ok(Shape { rows: x.rows, cols: w.cols })
            }
            (&Op::FmState { dim }, [x]) if x.rows == Dim::Const(1) && fits(x, dim) => {
                Ok(Shape::constant(1, 2 * dim))
            }
            (&Op::FmRest { dim }, [x, state])
                if fits(x, dim) && *state == Shape::constant(1, 2 * dim) =>
            {
                Ok(Shape { rows: x.rows, cols: 1 })
            }
            (&Op::DotInteractionRest { dim, first }, [x]) if fits(x, dim) => {
                let fields = x.cols / dim;
                match pairs_of(fields).checked_sub(pairs_of(first.min(fields))) {
                    Some(cols) if cols > 0 => Ok(Shape { rows: x.rows, cols }),
                    _ => cannot_take(op, inputs),
                }
            }
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
        match (op, inputs) {
            (Op::LinearState, &[x, w]) => {
                let (sums, chain) = out.data[..out.cols].split_at_mut(w.cols);
                // The weight has more rows than the state reads.
                let weight = matmul::View::new(w.data, x.cols, w.cols, w.stride);
                matmul::begin(matrix(1, x), weight, sums, chain);
            }
            (&Op::LinearRest { start }, inputs) => forward_rest(start, tile, inputs, false, out),
            (&Op::FmState { dim }, &[x]) => fm_state(x.row(0), dim, out.row(0)),
            (&Op::FmRest { dim }, &[x, state]) => simd!({
                let state = state.row(0);
                for i in 0..tile.rows {
                    out.data[i * out.stride] = fm_rest(x.row(i), dim, state);
                }
            }),
            (&Op::DotInteractionRest { dim, first }, &[x]) => {
                dots_from(tile.rows, x, dim, first, &mut out);
            }
            _ => reject(op),
        }
    }

    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::LinearRest { start } => write!(f, "[{start}..]"),
            Op::FmState { dim } | Op::FmRest { dim } => write!(f, "[{dim}]"),
            Op::DotInteractionRest { dim, first } => write!(f, "[{dim}, from {first}]"),
            _ => Ok(()),
        }
    }

    fn chaining(op: &Op) -> Chaining {
        match op {
            Op::LinearRest { .. } => Chaining::Tile,
            Op::FmRest { .. } | Op::DotInteractionRest { .. } => Chaining::Rows,
            _ => Chaining::None,
        }
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        let out = sizes.out();
        match op {
            Op::LinearState => 2 * sizes.input(0) * sizes.cols(1),
            Op::LinearRest { .. } => {
                let bias = if sizes.inputs.len() > 3 { out } else { 0 };
                2 * out * sizes.cols(0) + bias
            }
            Op::FmState { .. } => 3 * sizes.input(0),
            // The last additions over the floats of a vector are counted here.
            Op::FmRest { .. } => 3 * sizes.input(0) + out * sizes.cols(1),
            Op::DotInteractionRest { dim, .. } => 2 * out * *dim as u64,
            _ => 0,
        }
    }
}

/// Computes the rest of a linear layer and its relu together, as
/// [`linear::forward_relu`](super::linear::forward_relu) does.
pub(super) fn forward_relu(start: usize, tile: &Tile<'_>, inputs: &[View<'_>], out: ViewMut<'_>) {
    forward_rest(start, tile, inputs, true, out);
}

fn forward_rest(start: usize, tile: &Tile<'_>, inputs: &[View<'_>], relu: bool, out: ViewMut<'_>) {
    let &[x, w, state, ref bias @ ..] = inputs else { return };
    let (sums, chain) = state.row(0).split_at(out.cols);
    let begun = Begun { columns: start, sums, chain };
    let bias = bias.first().map(|bias| bias.row(0));
    let x = matrix(tile.rows, x);
    if let Some(packed) = tile.packed.filter(|packed| packed.exact().is_none()) {
        // The product of the shared columns is computed in f32, and is then part of the bias.
        let shared: Vec<f32> = sums.iter().zip(chain).map(|(sum, chain)| sum + chain).collect();
        let bias: Vec<f32> = match bias {
            Some(bias) => shared.iter().zip(bias).map(|(shared, bias)| shared + bias).collect(),
            None => shared,
        };
        let epilogue = Epilogue { bias: Some(&bias), relu, ..Epilogue::default() };
        packed.multiply_rounded(start, x, epilogue, out.data, out.stride);
        return;
    }
    let epilogue = Epilogue { bias, relu, ..Epilogue::default() };
    let plain = matmul::View::new(w.data, start + x.columns(), out.cols, w.stride);
    let right = exact_weight(tile.packed, plain);
    matmul::linear_from(begun, x, right, epilogue, out.data, out.stride);
}
