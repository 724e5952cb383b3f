//! AdaGrad with one accumulator a row segment.

use super::{Gradient, RowKernel, sum_of_squares_of};

#[derive(Clone, Copy, Debug)]
pub(crate) struct RowwiseAdagradKernel {
    pub(super) lr: f32,
    pub(super) eps: f32,
}

impl RowKernel for RowwiseAdagradKernel {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        let mut sums = [state[0]];
        let [step] = self.steps(&mut sums, [self.squares(weights, raw, gradient)], weights.len());
        [state[0]] = sums;
        self.advance(weights, raw, step, gradient);
    }

    #[inline(always)]
    fn rowwise(&self) -> Option<&RowwiseAdagradKernel> {
        Some(self)
    }
}

impl RowwiseAdagradKernel {
    /// The sum of the squares of a row's gradient.
    #[inline(always)]
    pub(crate) fn squares(&self, weights: &[f32], raw: &[f32], gradient: impl Gradient) -> f32 {
        sum_of_squares_of(&raw[..weights.len()], weights, |g, w| gradient.of(g, w))
    }

    /// Adds the squares of some rows of `dim` weights to their accumulators; returns the rows' step sizes.
    #[inline(always)]
    pub(crate) fn steps<const N: usize>(
        &self,
        sums: &mut [f32; N],
        squares: [f32; N],
        dim: usize,
    ) -> [f32; N] {
        let mut steps = [0.0; N];
        for ((step, sum), squares) in steps.iter_mut().zip(sums).zip(squares) {
            *sum += squares / dim as f32;
            *step = self.lr / (sum.sqrt() + self.eps);
        }
        steps
    }

    /// Moves a row by its step size.
    #[inline(always)]
    pub(crate) fn advance(
        &self,
        weights: &mut [f32],
        raw: &[f32],
        step: f32,
        gradient: impl Gradient,
    ) {
        for (w, &g) in weights.iter_mut().zip(raw) {
            *w -= step * gradient.of(g, *w);
        }
    }
}
