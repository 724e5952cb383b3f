//! The rule AdaGrad with one accumulator for each weight.

use crate::optimizer::{Gradient, RowKernel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct AdagradKernel {
    pub(super) lr: f32,
    pub(super) eps: f32,
}

impl RowKernel for AdagradKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        for ((w, a), &g) in weights.iter_mut().zip(state).zip(raw) {
            let g = gradient.of(g, *w);
            *a += g * g;
            *w -= self.lr * g / (a.sqrt() + self.eps);
        }
    }
}
