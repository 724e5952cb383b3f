//! LAMB (You et al. 2019). The distance by which a step changes a parameter is proportional to the
//! length of the parameter's weights.
//!
//! A step is two passes over a parameter. The first pass updates the moments. It also computes the
//! lengths of the weights and of the direction, in f64 and block by block. After all blocks of a
//! parameter are ready, the second pass updates the weights. It computes the direction from the
//! moments again, because this costs less than storing the direction.

use zillion_device::gpu::kernels::DenseRule;
use zillion_device::simd::vectorised;

use super::shaping::{Block, LANES, Shaping};

/// The numbers of a step that are the same for all elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lamb {
    rate: f64,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// The factor `1 / (1 - beta1^t)`.
    correction1: f32,
    /// The divisor `sqrt(1 - beta2^t)`.
    correction2_sqrt: f32,
    eps: f32,
    weight_decay: f32,
}

/// The squared lengths of a parameter's weights and of the direction of its update.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SqLengths {
    pub(super) weights: f64,
    pub(super) direction: f64,
}

impl Lamb {
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

    /// Returns the factor of a parameter's direction: the learning rate multiplied by the trust
    /// ratio. The ratio is 1 if the length of the weights or of the direction is 0. (Biases are
    /// initially 0, and with a ratio of 0 they would never change.)
    pub(super) fn step_size(&self, lengths: SqLengths) -> f32 {
        let trust = match lengths.weights > 0.0 && lengths.direction > 0.0 {
            true => (lengths.weights / lengths.direction).sqrt(),
            false => 1.0,
        };
        (self.rate * trust) as f32
    }

    /// Returns the rule as the kernels of a GPU read it.
    pub(super) fn to_device(self) -> DenseRule {
        DenseRule {
            kind: DenseRule::LAMB,
            eps: self.eps,
            a: self.beta2,
            b: self.one_minus_beta1,
            c: self.one_minus_beta2,
            d: self.correction2_sqrt,
            correction1: self.correction1,
            weight_decay: self.weight_decay,
            lamb_rate: self.rate,
            ..DenseRule::default()
        }
    }

    #[inline(always)]
    fn direction(&self, weight: f32, m: f32, v: f32) -> f32 {
        let denominator = v.sqrt() / self.correction2_sqrt + self.eps;
        self.correction1 * m / denominator + self.weight_decay * weight
    }

    /// Makes the first pass over a block, which updates the moments of the block.
    #[inline(always)]
    pub(super) fn update_moments(
        self,
        weights: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        raw: &[f32],
        shaping: Shaping,
    ) {
        for (((&w, m), v), &g) in weights.iter().zip(first).zip(second).zip(raw) {
            let g = shaping.gradient(g, w);
            *m += self.one_minus_beta1 * (g - *m);
            *v = self.beta2 * *v + self.one_minus_beta2 * (g * g);
        }
    }

    /// Returns the squared lengths of a block whose moments have been updated.
    pub(super) fn sq_lengths(self, block: &Block<'_>) -> SqLengths {
        let mut sums = ([0.0f64; LANES], [0.0f64; LANES]);
        let (weights, first, second) = (&*block.weights, &*block.first, &*block.second);
        vectorised(
            #[inline(always)]
            || {
                let chunks =
                    weights.chunks(LANES).zip(first.chunks(LANES)).zip(second.chunks(LANES));
                for ((w, m), v) in chunks {
                    for (lane, ((&w, &m), &v)) in w.iter().zip(m).zip(v).enumerate() {
                        let (length, u) = (f64::from(w), f64::from(self.direction(w, m, v)));
                        sums.0[lane] += length * length;
                        sums.1[lane] += u * u;
                    }
                }
            },
        );
        SqLengths { weights: sums.0.iter().sum(), direction: sums.1.iter().sum() }
    }

    /// Makes the second pass over a block, which updates the weights of the block.
    pub(super) fn update_weights(self, block: &mut Block<'_>, step_size: f32) {
        let (weights, first, second) = (&mut *block.weights, &*block.first, &*block.second);
        vectorised(
            #[inline(always)]
            || {
                for ((w, &m), &v) in weights.iter_mut().zip(first).zip(second) {
                    *w -= step_size * self.direction(*w, m, v);
                }
            },
        );
    }
}
