//! The rule of stochastic gradient descent with momentum, by PyTorch's formulas (`torch.optim.SGD`
//! without dampening).
//!
//! The learning rate multiplies the whole velocity, so a schedule that lowers the rate also reduces
//! the effect of earlier gradients.

use crate::optimizer::{Gradient, RowKernel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct MomentumKernel {
    pub(super) lr: f32,
    pub(super) momentum: f32,
    /// Whether a step uses the velocity after the next update (Nesterov 1983).
    pub(super) nesterov: bool,
}

impl RowKernel for MomentumKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        for ((w, v), &g) in weights.iter_mut().zip(state).zip(raw) {
            let g = gradient.of(g, *w);
            *v = self.momentum * *v + g;
            let step = if self.nesterov { g + self.momentum * *v } else { *v };
            *w -= self.lr * step;
        }
    }
}
