//! Inverted dropout (Srivastava et al. 2014). The mask depends only on the seed, the step, the
//! layer, the row and the unit. So the backward pass computes the mask again instead of reading it
//! from memory.

use super::kernel::StepSeed;
use super::*;
use zillion_feature::random;

/// Dropout, which is also the operation of its gradient.
pub(super) struct Dropout;

impl OpGroup for Dropout {
    fn shape(op: &Op, inputs: &[Shape], _graph: &Graph) -> ShapeResult {
        match inputs {
            [x] if x.is_tiled() => Ok(*x),
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
        let (&Op::Dropout { rate, salt }, &[x]) = (op, inputs) else { return reject(op) };
        let (threshold, factor) = dropout_parameters(rate);
        simd!({
            for i in 0..tile.rows {
                let row = row_stream(tile.seed, salt, tile.first_row + i);
                line(x.row(i), out.row(i), row, threshold, factor);
            }
        })
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        let &[x] = node.inputs.as_slice() else { return Err(cx.refuse_gradient(id)) };
        cx.push_gradient(id, x, node.op, &[g])
    }

    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::Dropout { rate, .. } => write!(f, "[{rate}]"),
            _ => Ok(()),
        }
    }

    fn flops(_op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        sizes.out()
    }
}

/// Returns whether dropout keeps a unit. Tests use this function to compute the expected result.
pub fn dropout_keeps(seed: StepSeed, salt: u32, row: usize, unit: usize, rate: f32) -> bool {
    unit_bits(row_stream(seed, salt, row), unit as u32) >= threshold(rate)
}

#[inline(always)]
fn line(x: &[f32], out: &mut [f32], row: u32, threshold: u32, factor: f32) {
    for (unit, (o, &x)) in out.iter_mut().zip(x).enumerate() {
        *o = if unit_bits(row, unit as u32) >= threshold { x * factor } else { 0.0 };
    }
}

/// Returns the numbers by which an element is dropped or scaled: the smallest bits of an element
/// that is kept, and the factor of such an element.
pub(crate) fn dropout_parameters(rate: f32) -> (u32, f32) {
    (threshold(rate), 1.0 / (1.0 - rate))
}

fn threshold(rate: f32) -> u32 {
    (f64::from(rate) * 4_294_967_296.0) as u32
}

#[inline(always)]
fn row_stream(seed: StepSeed, salt: u32, row: usize) -> u32 {
    let layer = random::combine(random::combine(seed.seed, seed.step), u64::from(salt));
    (random::combine(layer, row as u64) >> 32) as u32
}

#[inline(always)]
fn unit_bits(row: u32, unit: u32) -> u32 {
    // The odd constant spreads neighbouring units over all bits before they are combined with the
    // row.
    random::mix32(row ^ unit.wrapping_mul(0x9e37_79b9))
}
