//! FTRL-Proximal (McMahan et al. 2013, Algorithm 1), in the same form as the row optimizer `ftrl`
//! of `zillion_embedding`. In this form, a step computes the `z` of a weight from the weight
//! itself, unless the weight is zero. With a constant learning rate, only the rounding differs from
//! the paper. The reasons for this form are given at the row optimizer.

use zillion_device::gpu::kernels::DenseRule;

use super::shaping::Shaping;

/// The numbers of a step that are the same for all elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ftrl {
    inverse_alpha: f32,
    beta: f32,
    l1: f32,
    l2: f32,
}

impl Ftrl {
    pub(super) fn at(rate: f64, beta: f64, l1: f64, l2: f64) -> Self {
        Self { inverse_alpha: (1.0 / rate) as f32, beta: beta as f32, l1: l1 as f32, l2: l2 as f32 }
    }

    /// Returns the rule as the kernels of a GPU read it.
    pub(super) fn to_device(self) -> DenseRule {
        let Self { inverse_alpha, beta, l1, l2 } = self;
        DenseRule {
            kind: DenseRule::FTRL,
            a: inverse_alpha,
            b: beta,
            c: l1,
            d: l2,
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
        let s = self;
        for (((w, z), n), &g) in weights.iter_mut().zip(first).zip(second).zip(raw) {
            let g = shaping.gradient(g, *w);
            let root = n.sqrt();
            *n += g * g;
            let next_root = n.sqrt();
            let curvature = (s.beta + root) * s.inverse_alpha + s.l2;
            let implied = -(*w * curvature + s.l1.copysign(*w));
            let before = if *w == 0.0 { *z } else { implied };
            let sigma = (next_root - root) * s.inverse_alpha;
            let after = before + (g - sigma * *w);
            let next_curvature = (s.beta + next_root) * s.inverse_alpha + s.l2;
            let shrunk = (s.l1.copysign(after) - after) / next_curvature;
            *z = after;
            *w = if after.abs() <= s.l1 { 0.0 } else { shrunk };
        }
    }
}
