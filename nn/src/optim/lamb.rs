//! LAMB: how far a parameter moves is a share of its own length.
//!
//! A step is two passes over a parameter. The first moves the moments and takes the lengths of weights
//! and direction, in f64 by block; when all blocks of a parameter are there, the second moves the weights.
//! The direction is made anew from the moments in the second pass, which costs less than keeping it.

use zillion_device::simd::vectorised;

use super::kernel::{LANES, Shaping};

#[derive(Clone, Copy, Debug)]
pub(super) struct LambScalars {
    rate: f64,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// `1 / (1 - beta1^t)`.
    correction1: f32,
    /// `sqrt(1 - beta2^t)`.
    correction2_sqrt: f32,
    eps: f32,
    weight_decay: f32,
}

/// The squared lengths of a parameter's weights and of the direction that it is to move in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SqLengths {
    pub(super) weights: f64,
    pub(super) direction: f64,
}

impl LambScalars {
    pub(super) fn at(
        rate: f64,
        (beta1, beta2): (f64, f64),
        eps: f64,
        weight_decay: f64,
        step: u64,
    ) -> Self {
        let t = step as f64;
        Self {
            rate,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            correction1: (1.0 / (1.0 - beta1.powf(t))) as f32,
            correction2_sqrt: (1.0 - beta2.powf(t)).sqrt() as f32,
            eps: eps as f32,
            weight_decay: weight_decay as f32,
        }
    }

    /// The factor of a parameter's direction: the learning rate times the trust ratio, which is 1 where
    /// either length is 0. (With weights of 0, as biases begin, the ratio would hold them there for ever.)
    pub(super) fn step_size(&self, lengths: SqLengths) -> f32 {
        let trust = match lengths.weights > 0.0 && lengths.direction > 0.0 {
            true => (lengths.weights / lengths.direction).sqrt(),
            false => 1.0,
        };
        (self.rate * trust) as f32
    }

    #[inline(always)]
    fn direction(&self, weight: f32, m: f32, v: f32) -> f32 {
        let denominator = v.sqrt() / self.correction2_sqrt + self.eps;
        self.correction1 * m / denominator + self.weight_decay * weight
    }
}

/// The first pass: moves the moments of a block.
#[inline(always)]
pub(super) fn moments(
    weights: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    raw: &[f32],
    shaping: Shaping,
    s: LambScalars,
) {
    for (((&w, m), v), &g) in weights.iter().zip(first).zip(second).zip(raw) {
        let g = shaping.gradient(g, w);
        *m += s.one_minus_beta1 * (g - *m);
        *v = s.beta2 * *v + s.one_minus_beta2 * (g * g);
    }
}

/// The lengths of a block, with its moments moved.
pub(super) fn lengths(weights: &[f32], first: &[f32], second: &[f32], s: LambScalars) -> SqLengths {
    let mut sums = ([0.0f64; LANES], [0.0f64; LANES]);
    vectorised(
        #[inline(always)]
        || {
            let chunks = weights.chunks(LANES).zip(first.chunks(LANES)).zip(second.chunks(LANES));
            for ((w, m), v) in chunks {
                for (lane, ((&w, &m), &v)) in w.iter().zip(m).zip(v).enumerate() {
                    let (length, u) = (f64::from(w), f64::from(s.direction(w, m, v)));
                    sums.0[lane] += length * length;
                    sums.1[lane] += u * u;
                }
            }
        },
    );
    SqLengths { weights: sums.0.iter().sum(), direction: sums.1.iter().sum() }
}

/// The second pass: moves the weights of a block.
pub(super) fn move_weights(
    weights: &mut [f32],
    first: &[f32],
    second: &[f32],
    s: LambScalars,
    step_size: f32,
) {
    vectorised(
        #[inline(always)]
        || {
            for ((w, &m), &v) in weights.iter_mut().zip(first).zip(second) {
                *w -= step_size * s.direction(*w, m, v);
            }
        },
    );
}
