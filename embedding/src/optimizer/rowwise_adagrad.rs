//! The rule AdaGrad with one accumulator for each row segment.

use crate::optimizer::{Gradient, RowKernel, sum_of_squares_of};

#[derive(Clone, Copy, Debug)]
pub(crate) struct RowwiseAdagradKernel {
    pub(super) lr: f32,
    pub(super) eps: f32,
}

impl RowKernel for RowwiseAdagradKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        let dim = weights.len();
        let squares = sum_of_squares_of(&raw[..dim], weights, |g, w| gradient.of(g, w));
        state[0] += squares / dim as f32;
        let step = self.lr / (state[0].sqrt() + self.eps);
        for (w, &g) in weights.iter_mut().zip(raw) {
            *w -= step * gradient.of(g, *w);
        }
    }
}
