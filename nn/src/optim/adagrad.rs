//! AdaGrad (Duchi, Hazan, Singer 2011): `a += g^2; w -= lr * g / (sqrt(a) + eps)`.

use zillion_device::gpu::kernels::DenseRule;

use super::shaping::Shaping;

/// The numbers of a step that are the same for all elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adagrad {
    rate: f32,
    eps: f32,
}

impl Adagrad {
    pub(super) fn at(rate: f64, eps: f64) -> Self {
        Self { rate: rate as f32, eps: eps as f32 }
    }

    /// Returns the rule as the kernels of a GPU read it.
    pub(super) fn to_device(self) -> DenseRule {
        let Self { rate, eps } = self;
        DenseRule { kind: DenseRule::ADAGRAD, rate, eps, ..DenseRule::default() }
    }

    #[inline(always)]
    pub(super) fn update(
        self,
        weights: &mut [f32],
        sums: &mut [f32],
        raw: &[f32],
        shaping: Shaping,
    ) {
        let Self { rate, eps } = self;
        for ((w, a), &g) in weights.iter_mut().zip(sums).zip(raw) {
            let g = shaping.gradient(g, *w);
            *a += g * g;
            *w -= rate * g / (a.sqrt() + eps);
        }
    }
}
