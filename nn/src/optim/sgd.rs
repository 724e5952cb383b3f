//! Stochastic gradient descent: `w -= lr * g`. With momentum it is the rule of
//! [`momentum`](super::momentum).

use super::shaping::Shaping;

/// The numbers that all elements share in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sgd {
    rate: f32,
}

impl Sgd {
    pub(super) fn at(rate: f64) -> Self {
        Self { rate: rate as f32 }
    }

    #[inline(always)]
    pub(super) fn update(self, weights: &mut [f32], raw: &[f32], shaping: Shaping) {
        for (w, &g) in weights.iter_mut().zip(raw) {
            *w -= self.rate * shaping.gradient(g, *w);
        }
    }
}
