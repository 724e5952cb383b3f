//! The guard of a segment's rule: the clip of its gradient and the bounds of its weights.
//!
//! The clip applies to one segment of one row. It comes after the factor that clips the whole step,
//! and limits the gradient that the rule would get, including the regulariser. First every number
//! is limited to `[-value, value]`, and then the gradient is scaled to a length of at most `norm`.

use zillion_rows::{Bounds, ClipSpec};

use crate::optimizer::{Gradient, RowKernel, sum_of_squares};

/// The clip and the bounds of a segment. A guard has at least one of the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    /// The largest length of the gradient; infinite if the length is not limited.
    pub(super) norm: f32,
    /// The largest absolute value of a number of the gradient. If a clip sets only the norm, this
    /// value is the largest `f32`. This also limits numbers that overflowed to infinity, so the
    /// length is never NaN.
    pub(super) value: f32,
    pub(super) bounds: Bounds,
}

impl Guard {
    /// Creates the guard for a clip and bounds. Returns `None` if both are `None`.
    pub(crate) fn new(clip: Option<ClipSpec>, bounds: Option<Bounds>) -> Option<Self> {
        if clip.is_none() && bounds.is_none() {
            return None;
        }
        let everywhere = Bounds { low: f32::NEG_INFINITY, high: f32::INFINITY };
        let (norm, value) = match clip {
            Some(clip) => (clip.norm.unwrap_or(f32::INFINITY), clip.value.unwrap_or(f32::MAX)),
            None => (f32::INFINITY, f32::INFINITY),
        };
        Some(Self { norm, value, bounds: bounds.unwrap_or(everywhere) })
    }

    /// Returns a function that computes the clipped gradient of one row.
    #[inline(always)]
    fn clip<G: Gradient>(&self, weights: &[f32], raw: &[f32], gradient: G) -> Clipped<G> {
        let clipped = Clipped { gradient, value: self.value, factor: 1.0 };
        if self.norm == f32::INFINITY {
            return clipped;
        }
        let raw = &raw[..weights.len()];
        // The length is computed in double precision, where no square of an `f32` overflows.
        let length = sum_of_squares::<f64>(raw.len(), |i| clipped.of(raw[i], weights[i])).sqrt();
        let norm = f64::from(self.norm);
        let factor = if length > norm { (norm / length) as f32 } else { 1.0 };
        Clipped { factor, ..clipped }
    }
}

/// A gradient whose numbers are clipped when they are read.
#[derive(Clone, Copy, Debug)]
struct Clipped<G> {
    gradient: G,
    value: f32,
    /// The factor that scales the gradient of the row down to the largest length.
    factor: f32,
}

impl<G: Gradient> Gradient for Clipped<G> {
    #[inline(always)]
    fn of(self, raw: f32, weight: f32) -> f32 {
        let limits = Bounds { low: -self.value, high: self.value };
        limits.hold(self.gradient.of(raw, weight)) * self.factor
    }
}

/// A rule with its guard. A segment without a guard runs the rule directly, at no cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded<K> {
    pub(crate) rule: K,
    pub(crate) guard: Guard,
}

impl<K: RowKernel> RowKernel for Guarded<K> {
    #[inline(always)]
    fn row(&self, weights: &mut [f32], state: &mut [f32], raw: &[f32], gradient: impl Gradient) {
        let clipped = self.guard.clip(weights, raw, gradient);
        self.rule.row(weights, state, raw, clipped);
        for weight in weights {
            *weight = self.guard.bounds.hold(*weight);
        }
    }
}
