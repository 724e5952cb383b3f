//! Stochastic gradient descent: `w -= lr * g`. SGD with momentum is in the module
//! [`momentum`](super::momentum).

use super::shaping::Shaping;

/// The numbers of a step that are the same for all elements.
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
