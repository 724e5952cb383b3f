//! The rule FTRL-Proximal with the sparse group lasso (Yue et al. 2021, "Adaptive Optimizers with
//! Sparse Group Lasso for Neural Networks in CTR Prediction"). If the sums `z` of a row segment are
//! small, the whole segment is zero.
//!
//! Let `s` be the sums `z` after the L1 threshold, and let `t = l21 * sqrt(dim)`. The segment is
//! zero if `|s| <= t`. Otherwise `w = -(1 - t / |s|) * s / curvature`. With dimension 1, this is a
//! second L1 term.
//!
//! As in `ftrl.rs`, an update first computes `z` from the weights that are not zero. To do so, it
//! also undoes the shrinkage of the group: the length of `u = -w * curvature` is `|s| - t`, so `s =
//! u * (1 + t / |u|)`.

use crate::optimizer::{FtrlKernel, Gradient, RowKernel, sum_of_squares};

#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupFtrlKernel {
    pub(super) ftrl: FtrlKernel,
    pub(super) l21: f32,
}

impl RowKernel for GroupFtrlKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        let FtrlKernel { inverse_alpha, beta, l1, l2 } = self.ftrl;
        let dim = weights.len();
        let threshold = self.l21 * (dim as f32).sqrt();
        let curvature = |root: f32| (beta + root) * inverse_alpha + l2;
        let soft = |z: f32| if z.abs() <= l1 { 0.0 } else { z - l1.copysign(z) };
        let (z, n) = state.split_at_mut(dim);
        let (n, raw) = (&mut n[..dim], &raw[..dim]);
        let length = sum_of_squares::<f32>(dim, |i| weights[i] * curvature(n[i].sqrt())).sqrt();
        // From a segment of zeros, `z` cannot be computed back, and the products with this factor
        // are not used.
        let grown = if length > 0.0 { 1.0 + threshold / length } else { 1.0 };
        for i in 0..dim {
            let w = weights[i];
            let g = gradient.of(raw[i], w);
            let root = n[i].sqrt();
            n[i] += g * g;
            let implied = -(w * curvature(root) * grown + l1.copysign(w));
            let before = if w == 0.0 { z[i] } else { implied };
            let sigma = (n[i].sqrt() - root) * inverse_alpha;
            z[i] = before + (g - sigma * w);
        }
        let length = sum_of_squares::<f32>(dim, |i| soft(z[i])).sqrt();
        let kept = if length > threshold { 1.0 - threshold / length } else { 0.0 };
        for i in 0..dim {
            let s = soft(z[i]);
            let is_zero = kept == 0.0 || s == 0.0;
            weights[i] = if is_zero { 0.0 } else { -(kept * s) / curvature(n[i].sqrt()) };
        }
    }
}
