//! The regularisation and the clipping of gradients, which all rules use, and the norm of the
//! resulting gradients.
//!
//! The row optimizers of `zillion_embedding` use the same formula. But they sum norms in 8 lanes,
//! and this crate sums them in 16 lanes, and the result depends on the number of lanes. The formula
//! is only one line, so it is not worth a separate crate for both.

use zillion_device::simd::vectorised;

/// A part of a parameter, with its gradient and its state. A state that the rule does not use is
/// empty.
pub(super) struct Block<'a> {
    pub(super) weights: &'a mut [f32],
    pub(super) first: &'a mut [f32],
    pub(super) second: &'a mut [f32],
    pub(super) raw: &'a [f32],
}

/// The numbers that convert a raw gradient to the gradient of the update: `(g + l2 * w) * scale`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shaping {
    pub(super) l2: f32,
    pub(super) scale: f32,
}

impl Shaping {
    /// Returns the gradient of the update for a weight.
    #[inline(always)]
    pub(super) fn gradient(self, raw: f32, weight: f32) -> f32 {
        (raw + self.l2 * weight) * self.scale
    }
}

/// The number of partial sums of a squared norm. The result depends on this number.
pub(super) const LANES: usize = 16;

/// Returns the sum of `(g + l2 * w)^2` over a block, in f64.
pub(super) fn sq_norm(weights: &[f32], raw: &[f32], l2: f32) -> f64 {
    vectorised(
        #[inline(always)]
        || square_sum(weights, raw, Shaping { l2, scale: 1.0 }),
    )
}

#[inline(always)]
fn square_sum(weights: &[f32], raw: &[f32], shaping: Shaping) -> f64 {
    let (weight_blocks, weight_tail) = weights.as_chunks::<LANES>();
    let (raw_blocks, raw_tail) = raw.as_chunks::<LANES>();
    let mut lanes = [0.0f64; LANES];
    for (w, g) in weight_blocks.iter().zip(raw_blocks) {
        for lane in 0..LANES {
            let g = f64::from(shaping.gradient(g[lane], w[lane]));
            lanes[lane] += g * g;
        }
    }
    for (lane, (&w, &g)) in weight_tail.iter().zip(raw_tail).enumerate() {
        let g = f64::from(shaping.gradient(g, w));
        lanes[lane] += g * g;
    }
    lanes.iter().sum()
}
