//! The rule of plain stochastic gradient descent.

use crate::optimizer::{Gradient, RowKernel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct SgdKernel {
    pub(super) lr: f32,
}

impl RowKernel for SgdKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], _state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        for (w, &g) in weights.iter_mut().zip(raw) {
            *w -= self.lr * gradient.of(g, *w);
        }
    }
}
