//! Adam with decoupled weight decay (Loshchilov, Hutter 2019): `w -= lr * weight_decay * w`, then
//! Adam's step.

use super::adam::Adam;
use super::shaping::Shaping;

/// The scalars of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adamw {
    /// The share of a weight that stays.
    kept: f32,
    adam: Adam,
}

impl Adamw {
    pub(super) const STATE: [Option<&'static str>; 2] = [Some("adamw.m"), Some("adamw.v")];

    pub(super) fn at(rate: f64, betas: (f64, f64), eps: f64, weight_decay: f64, step: u64) -> Self {
        let kept = (1.0 - rate * weight_decay) as f32;
        Self { kept, adam: Adam::at(rate, betas, eps, step) }
    }

    #[inline(always)]
    pub(super) fn update(
        self,
        weights: &mut [f32],
        first: &mut [f32],
        second: &mut [f32],
        raw: &[f32],
        shaping: Shaping,
    ) {
        let Self { kept, adam: s } = self;
        for (((w, m), v), &g) in weights.iter_mut().zip(first).zip(second).zip(raw) {
            let g = shaping.gradient(g, *w);
            *m += s.one_minus_beta1 * (g - *m);
            *v = s.beta2 * *v + s.one_minus_beta2 * (g * g);
            let denominator = v.sqrt() / s.correction2_sqrt + s.eps;
            *w = *w * kept - s.step_size * *m / denominator;
        }
    }
}
