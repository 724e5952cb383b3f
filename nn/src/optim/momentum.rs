//! Momentum, in its plain form and in Nesterov's form (Sutskever et al. 2013), as in PyTorch.

use zillion_device::gpu::kernels::DenseRule;

use super::shaping::Shaping;

/// The numbers of a step that are the same for all elements. The plain form is `b = momentum * b +
/// g; w -= lr * b`. In Nesterov's form, the weights change by `w -= lr * (g + momentum * b)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Momentum {
    rate: f32,
    momentum: f32,
    nesterov: bool,
}

impl Momentum {
    pub(super) fn at(rate: f64, momentum: f64, nesterov: bool) -> Self {
        Self { rate: rate as f32, momentum: momentum as f32, nesterov }
    }

    /// Returns the rule as the kernels of a GPU read it.
    pub(super) fn to_device(self) -> DenseRule {
        DenseRule {
            kind: DenseRule::MOMENTUM,
            rate: self.rate,
            a: self.momentum,
            b: f32::from(u8::from(self.nesterov)),
            ..DenseRule::default()
        }
    }

    #[inline(always)]
    pub(super) fn update(
        self,
        weights: &mut [f32],
        first: &mut [f32],
        raw: &[f32],
        shaping: Shaping,
    ) {
        let Self { rate, momentum, nesterov } = self;
        for ((w, b), &g) in weights.iter_mut().zip(first).zip(raw) {
            let g = shaping.gradient(g, *w);
            *b = momentum * *b + g;
            *w -= rate * if nesterov { g + momentum * *b } else { *b };
        }
    }
}
