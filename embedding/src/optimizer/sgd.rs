//! Plain stochastic gradient descent.

use super::{RowKernel, Shaping};

#[derive(Clone, Copy, Debug)]
pub(crate) struct SgdKernel {
    pub(super) lr: f32,
}

impl RowKernel for SgdKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], _state: &mut [f32], raw: &[f32], shaping: Shaping) {
        for (w, &g) in weights.iter_mut().zip(raw) {
            *w -= self.lr * shaping.gradient(g, *w);
        }
    }
}
