//! Adam (Kingma, Ba 2015). The moments are corrected for their start at zero, and `eps` is added
//! outside of the root. AdamW (Loshchilov, Hutter 2019) decays the weights by `w -= lr *
//! weight_decay * w` before Adam's step. Plain Adam is AdamW with a decay of 0, which gives the
//! same bits.

use zillion_device::gpu::kernels::DenseRule;

use super::shaping::Shaping;

/// The numbers of a step that are the same for all elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adam {
    /// The factor by which the weight decay multiplies a weight.
    kept: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// The factor `lr / (1 - beta1^t)`.
    step_size: f32,
    /// The divisor `sqrt(1 - beta2^t)`.
    correction2_sqrt: f32,
    eps: f32,
}

impl Adam {
    pub(super) fn at(
        rate: f64,
        (beta1, beta2): (f64, f64),
        eps: f64,
        weight_decay: f64,
        step: u64,
    ) -> Self {
        let t = step as f64;
        Self {
            kept: (1.0 - rate * weight_decay) as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            step_size: (rate / (1.0 - beta1.powf(t))) as f32,
            correction2_sqrt: (1.0 - beta2.powf(t)).sqrt() as f32,
            eps: eps as f32,
        }
    }

    /// Returns the rule as the kernels of a GPU read it.
    pub(super) fn to_device(self) -> DenseRule {
        DenseRule {
            kind: DenseRule::ADAM,
            rate: self.step_size,
            eps: self.eps,
            kept: self.kept,
            a: self.beta2,
            b: self.one_minus_beta1,
            c: self.one_minus_beta2,
            d: self.correction2_sqrt,
            ..DenseRule::default()
        }
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
        for (((w, m), v), &g) in weights.iter_mut().zip(first).zip(second).zip(raw) {
            let g = shaping.gradient(g, *w);
            *m += self.one_minus_beta1 * (g - *m);
            *v = self.beta2 * *v + self.one_minus_beta2 * (g * g);
            let denominator = v.sqrt() / self.correction2_sqrt + self.eps;
            *w = *w * self.kept - self.step_size * *m / denominator;
        }
    }
}
