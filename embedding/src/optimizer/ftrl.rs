//! The rule FTRL-Proximal, after Algorithm 1 of McMahan et al. (KDD 2013).
//!
//! The paper computes a weight from `z` at every use. Here the weight is stored, because a pull
//! reads only weights. If the stored weight is not zero, an update first computes `z` from the
//! weight. With a constant learning rate the results are the same up to rounding. In two cases this
//! form is better than the paper's: a row can start from its seeded initial weights instead of
//! zero, and a lower learning rate from a schedule does not shrink every weight at its next push.

use crate::optimizer::{Gradient, RowKernel};

#[derive(Clone, Copy, Debug)]
pub(crate) struct FtrlKernel {
    pub(super) inverse_alpha: f32,
    pub(super) beta: f32,
    pub(super) l1: f32,
    pub(super) l2: f32,
}

impl RowKernel for FtrlKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        let (z, n) = state.split_at_mut(weights.len());
        for (((w, z), n), &g) in weights.iter_mut().zip(z).zip(n).zip(raw) {
            let g = gradient.of(g, *w);
            let root = n.sqrt();
            *n += g * g;
            let next_root = n.sqrt();
            let curvature = (self.beta + root) * self.inverse_alpha + self.l2;
            let implied = -(*w * curvature + self.l1.copysign(*w));
            let before = if *w == 0.0 { *z } else { implied };
            let sigma = (next_root - root) * self.inverse_alpha;
            let after = before + (g - sigma * *w);
            let next_curvature = (self.beta + next_root) * self.inverse_alpha + self.l2;
            let shrunk = (self.l1.copysign(after) - after) / next_curvature;
            *z = after;
            *w = if after.abs() <= self.l1 { 0.0 } else { shrunk };
        }
    }
}
