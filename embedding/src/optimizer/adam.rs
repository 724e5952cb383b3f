//! The rule Adam by PyTorch's formulas (`torch.optim.Adam` without `amsgrad` and `weight_decay`).

use zillion_feature::Step;

use crate::optimizer::{Gradient, RowKernel, decimal};

#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamKernel {
    pub(super) beta2: f32,
    pub(super) one_minus_beta1: f32,
    pub(super) one_minus_beta2: f32,
    pub(super) eps: f32,
    /// The learning rate with the first bias correction: `lr / (1 - beta1^t)`.
    pub(super) step_size: f32,
    /// The second bias correction: `sqrt(1 - beta2^t)`.
    pub(super) correction2_sqrt: f32,
}

impl AdamKernel {
    pub(super) fn new(rate: f64, beta1: f32, beta2: f32, eps: f32, step: Step) -> Self {
        let (beta1, beta2) = (decimal(beta1), decimal(beta2));
        let t = step.0 as f64;
        Self {
            beta2: beta2 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            eps,
            step_size: (rate / (1.0 - beta1.powf(t))) as f32,
            correction2_sqrt: (1.0 - beta2.powf(t)).sqrt() as f32,
        }
    }
}

impl RowKernel for AdamKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        let (first, second) = state.split_at_mut(weights.len());
        for (((w, m), v), &g) in weights.iter_mut().zip(first).zip(second).zip(raw) {
            let g = gradient.of(g, *w);
            *m += self.one_minus_beta1 * (g - *m);
            *v = self.beta2 * *v + self.one_minus_beta2 * (g * g);
            let denominator = v.sqrt() / self.correction2_sqrt + self.eps;
            *w -= self.step_size * (*m / denominator);
        }
    }
}
