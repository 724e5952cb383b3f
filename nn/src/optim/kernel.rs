//! The update rules over a block of floats.
//!
//! Scalars of a step (learning rate, bias corrections) are computed once, in f64, and rounded once.
//! The loops are plain and vectorise; every instruction set gives the same bits.

use zillion_device::simd::vectorised;

use super::lamb::{self, LambScalars};
use super::spec::DenseOptimizerSpec;

/// A rule with the scalars of one step in it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Sgd {
        rate: f32,
    },
    Momentum {
        rate: f32,
        momentum: f32,
    },
    Nesterov {
        rate: f32,
        momentum: f32,
    },
    Adagrad {
        rate: f32,
        eps: f32,
    },
    Adam(AdamScalars),
    /// What of a weight stays, then Adam.
    Adamw {
        kept: f32,
        adam: AdamScalars,
    },
    Lamb(LambScalars),
    Ftrl(FtrlScalars),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct AdamScalars {
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// `lr / (1 - beta1^t)`.
    step_size: f32,
    /// `sqrt(1 - beta2^t)`.
    correction2_sqrt: f32,
    eps: f32,
}

impl AdamScalars {
    fn at(rate: f64, (beta1, beta2): (f64, f64), eps: f64, step: u64) -> Self {
        let t = step as f64;
        Self {
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            step_size: (rate / (1.0 - beta1.powf(t))) as f32,
            correction2_sqrt: (1.0 - beta2.powf(t)).sqrt() as f32,
            eps: eps as f32,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FtrlScalars {
    inverse_alpha: f32,
    beta: f32,
    l1: f32,
    l2: f32,
}

/// How a raw gradient becomes the one that is applied: `(g + l2 * w) * scale`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shaping {
    pub(super) l2: f32,
    pub(super) scale: f32,
}

impl Shaping {
    #[inline(always)]
    pub(super) fn gradient(self, raw: f32, weight: f32) -> f32 {
        (raw + self.l2 * weight) * self.scale
    }
}

impl Rule {
    /// The rule for step `step`, counted from 1.
    pub(super) fn at(spec: &DenseOptimizerSpec, step: u64, rate_scale: f32) -> Self {
        let rate = spec.lr() * f64::from(rate_scale);
        match *spec {
            DenseOptimizerSpec::Sgd { momentum, .. } if momentum > 0.0 => {
                Self::Momentum { rate: rate as f32, momentum: momentum as f32 }
            }
            DenseOptimizerSpec::Sgd { .. } => Self::Sgd { rate: rate as f32 },
            DenseOptimizerSpec::Adagrad { eps, .. } => {
                Self::Adagrad { rate: rate as f32, eps: eps as f32 }
            }
            DenseOptimizerSpec::Adam { beta1, beta2, eps, .. } => {
                Self::Adam(AdamScalars::at(rate, (beta1, beta2), eps, step))
            }
            DenseOptimizerSpec::Momentum { momentum, nesterov: false, .. } => {
                Self::Momentum { rate: rate as f32, momentum: momentum as f32 }
            }
            DenseOptimizerSpec::Momentum { momentum, nesterov: true, .. } => {
                Self::Nesterov { rate: rate as f32, momentum: momentum as f32 }
            }
            DenseOptimizerSpec::Adamw { beta1, beta2, eps, weight_decay, .. } => Self::Adamw {
                kept: (1.0 - rate * weight_decay) as f32,
                adam: AdamScalars::at(rate, (beta1, beta2), eps, step),
            },
            DenseOptimizerSpec::Lamb { beta1, beta2, eps, weight_decay, .. } => {
                Self::Lamb(LambScalars::at(rate, (beta1, beta2), eps, weight_decay, step))
            }
            DenseOptimizerSpec::Ftrl { beta, l1, l2, .. } => Self::Ftrl(FtrlScalars {
                inverse_alpha: (1.0 / rate) as f32,
                beta: beta as f32,
                l1: l1 as f32,
                l2: l2 as f32,
            }),
        }
    }

    /// Updates a block. `first` and `second` are the block's part of the state, empty where the rule
    /// has none. LAMB moves its moments only: weights follow when the whole parameter's lengths are known.
    pub(super) fn apply(
        self,
        weights: &mut [f32],
        first: &mut [f32],
        second: &mut [f32],
        raw: &[f32],
        shaping: Shaping,
    ) {
        vectorised(
            #[inline(always)]
            || match self {
                Self::Sgd { rate } => sgd(weights, raw, shaping, rate),
                Self::Momentum { rate, momentum } => {
                    with_momentum(weights, first, raw, shaping, rate, momentum);
                }
                Self::Adagrad { rate, eps } => adagrad(weights, first, raw, shaping, rate, eps),
                Self::Adam(scalars) => adam(weights, first, second, raw, shaping, scalars),
                Self::Nesterov { rate, momentum } => {
                    nesterov(weights, first, raw, shaping, rate, momentum);
                }
                Self::Adamw { kept, adam: scalars } => {
                    adamw(weights, first, second, raw, shaping, kept, scalars);
                }
                Self::Lamb(scalars) => {
                    lamb::moments(weights, first, second, raw, shaping, scalars);
                }
                Self::Ftrl(scalars) => ftrl(weights, first, second, raw, shaping, scalars),
            },
        );
    }
}

#[inline(always)]
fn sgd(weights: &mut [f32], raw: &[f32], shaping: Shaping, rate: f32) {
    for (w, &g) in weights.iter_mut().zip(raw) {
        *w -= rate * shaping.gradient(g, *w);
    }
}

#[inline(always)]
fn with_momentum(
    weights: &mut [f32],
    direction: &mut [f32],
    raw: &[f32],
    shaping: Shaping,
    rate: f32,
    momentum: f32,
) {
    for ((w, b), &g) in weights.iter_mut().zip(direction).zip(raw) {
        *b = momentum * *b + shaping.gradient(g, *w);
        *w -= rate * *b;
    }
}

#[inline(always)]
fn adagrad(
    weights: &mut [f32],
    sums: &mut [f32],
    raw: &[f32],
    shaping: Shaping,
    rate: f32,
    eps: f32,
) {
    for ((w, a), &g) in weights.iter_mut().zip(sums).zip(raw) {
        let g = shaping.gradient(g, *w);
        *a += g * g;
        *w -= rate * g / (a.sqrt() + eps);
    }
}

#[inline(always)]
fn adam(
    weights: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    raw: &[f32],
    shaping: Shaping,
    s: AdamScalars,
) {
    for (((w, m), v), &g) in weights.iter_mut().zip(first).zip(second).zip(raw) {
        let g = shaping.gradient(g, *w);
        *m += s.one_minus_beta1 * (g - *m);
        *v = s.beta2 * *v + s.one_minus_beta2 * (g * g);
        let denominator = v.sqrt() / s.correction2_sqrt + s.eps;
        *w -= s.step_size * *m / denominator;
    }
}

#[inline(always)]
fn nesterov(
    weights: &mut [f32],
    direction: &mut [f32],
    raw: &[f32],
    shaping: Shaping,
    rate: f32,
    momentum: f32,
) {
    for ((w, b), &g) in weights.iter_mut().zip(direction).zip(raw) {
        let g = shaping.gradient(g, *w);
        *b = momentum * *b + g;
        *w -= rate * (g + momentum * *b);
    }
}

#[inline(always)]
fn adamw(
    weights: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    raw: &[f32],
    shaping: Shaping,
    kept: f32,
    s: AdamScalars,
) {
    for (((w, m), v), &g) in weights.iter_mut().zip(first).zip(second).zip(raw) {
        let g = shaping.gradient(g, *w);
        *m += s.one_minus_beta1 * (g - *m);
        *v = s.beta2 * *v + s.one_minus_beta2 * (g * g);
        let denominator = v.sqrt() / s.correction2_sqrt + s.eps;
        *w = *w * kept - s.step_size * *m / denominator;
    }
}

/// The rule that tables have (`zillion_embedding`'s `ftrl`), for the reasons given there: `z` is taken back
/// from a weight that is not zero, which with a constant rate changes nothing but the rounding.
#[inline(always)]
fn ftrl(
    weights: &mut [f32],
    z: &mut [f32],
    n: &mut [f32],
    raw: &[f32],
    shaping: Shaping,
    s: FtrlScalars,
) {
    for (((w, z), n), &g) in weights.iter_mut().zip(z).zip(n).zip(raw) {
        let g = shaping.gradient(g, *w);
        let root = n.sqrt();
        *n += g * g;
        let next_root = n.sqrt();
        let curvature = (s.beta + root) * s.inverse_alpha + s.l2;
        let implied = -(*w * curvature + s.l1.copysign(*w));
        let before = if *w == 0.0 { *z } else { implied };
        let sigma = (next_root - root) * s.inverse_alpha;
        let after = before + (g - sigma * *w);
        let next_curvature = (s.beta + next_root) * s.inverse_alpha + s.l2;
        let shrunk = (s.l1.copysign(after) - after) / next_curvature;
        *z = after;
        *w = if after.abs() <= s.l1 { 0.0 } else { shrunk };
    }
}

/// Partial sums of a squared norm: their number is part of the result.
pub(super) const LANES: usize = 16;

/// The sum of `(g + l2 * w)^2` over a block, in f64.
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
