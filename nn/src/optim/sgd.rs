//! Stochastic gradient descent: `w -= lr * g`. SGD with momentum is in the module
//! [`momentum`](super::momentum).

use zillion_device::gpu::kernels::DenseRule;

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

    /// Returns the rule as the kernels of a GPU read it.
    pub(super) fn to_device(self) -> DenseRule {
        DenseRule { kind: DenseRule::SGD, rate: self.rate, ..DenseRule::default() }
    }

    #[inline(always)]
    pub(super) fn update(self, weights: &mut [f32], raw: &[f32], shaping: Shaping) {
        for (w, &g) in weights.iter_mut().zip(raw) {
            *w -= self.rate * shaping.gradient(g, *w);
        }
    }
}
