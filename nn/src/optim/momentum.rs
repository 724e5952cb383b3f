//! Momentum, plain and Nesterov's (Sutskever et al. 2013), in PyTorch's form.

use super::shaping::Shaping;

/// The scalars of a step of `b = momentum * b + g; w -= lr * b`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Momentum {
    rate: f32,
    momentum: f32,
}

/// The scalars of a step of `b = momentum * b + g; w -= lr * (g + momentum * b)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nesterov {
    rate: f32,
    momentum: f32,
}

impl Momentum {
    pub(super) const STATE: [Option<&'static str>; 2] = [Some("momentum.direction"), None];

    pub(super) fn at(rate: f64, momentum: f64) -> Self {
        Self { rate: rate as f32, momentum: momentum as f32 }
    }

    #[inline(always)]
    pub(super) fn update(
        self,
        weights: &mut [f32],
        first: &mut [f32],
        raw: &[f32],
        shaping: Shaping,
    ) {
        let Self { rate, momentum } = self;
        for ((w, b), &g) in weights.iter_mut().zip(first).zip(raw) {
            *b = momentum * *b + shaping.gradient(g, *w);
            *w -= rate * *b;
        }
    }
}

impl Nesterov {
    pub(super) fn at(rate: f64, momentum: f64) -> Self {
        Self { rate: rate as f32, momentum: momentum as f32 }
    }

    #[inline(always)]
    pub(super) fn update(
        self,
        weights: &mut [f32],
        first: &mut [f32],
        raw: &[f32],
        shaping: Shaping,
    ) {
        let Self { rate, momentum } = self;
        for ((w, b), &g) in weights.iter_mut().zip(first).zip(raw) {
            let g = shaping.gradient(g, *w);
            *b = momentum * *b + g;
            *w -= rate * (g + momentum * *b);
        }
    }
}
