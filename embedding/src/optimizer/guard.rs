//! What stands around a segment's rule: the clip of its gradient and the bounds of its weights.
//!
//! The clip is of one row's segment. It comes behind the factor that clips the whole step, and sees what the
//! rule would see, the regulariser's part included: first every number is brought into `[-value, value]`, then
//! the whole to a length of `norm` at most.

use serde::{Deserialize, Serialize};

use super::{Gradient, RowKernel, sum_of_squares_f64};

/// How far a row's gradient may reach before the rule sees it. In a job file: `clip = { norm = 1.0 }`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipSpec {
    /// The gradient of a row's segment is scaled down to this Euclidean length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<f32>,
    /// Each number of it is brought into `[-value, value]`, before its length is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f32>,
}

impl ClipSpec {
    /// The first setting that is out of range: its key and what it must be.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let illegal = |limit: Option<f32>| limit.is_some_and(|x| !(x.is_finite() && x > 0.0));
        if self.norm.is_none() && self.value.is_none() {
            Some(("clip", "needs `norm`, `value` or both; remove it to clip nothing"))
        } else if illegal(self.norm) {
            Some(("clip.norm", "must be a positive number"))
        } else if illegal(self.value) {
            Some(("clip.value", "must be a positive number"))
        } else {
            None
        }
    }
}

/// What weights may be: they are brought back into `[low, high]` after each update, and a new row begins
/// there. In a job file: `bounds = [-1.0, 1.0]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f32; 2]", into = "[f32; 2]")]
pub struct Bounds {
    /// The smallest weight.
    pub low: f32,
    /// The largest.
    pub high: f32,
}

impl Bounds {
    /// What is wrong with them.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let finite = self.low.is_finite() && self.high.is_finite();
        (!finite || self.low > self.high).then_some(
            "must be two finite numbers, the lower one first; for a bound on one side only, make the other \
             one very large: [0.0, 3e38]",
        )
    }

    /// A weight brought into the bounds. What is not a number stays so, for all to see.
    #[inline(always)]
    pub(crate) fn hold(self, weight: f32) -> f32 {
        let raised = if weight < self.low { self.low } else { weight };
        if raised > self.high { self.high } else { raised }
    }
}

impl From<[f32; 2]> for Bounds {
    fn from([low, high]: [f32; 2]) -> Self {
        Self { low, high }
    }
}

impl From<Bounds> for [f32; 2] {
    fn from(bounds: Bounds) -> Self {
        [bounds.low, bounds.high]
    }
}

/// A segment's clip and bounds, where it has any of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    /// Beyond all numbers where there is no limit of the length.
    norm: f32,
    /// The largest number where there is none of the values: what overflowed while it was put together is
    /// brought back by it too, so that a length is always one.
    value: f32,
    bounds: Bounds,
}

impl Guard {
    /// `None` where there is nothing to guard.
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

    /// The gradient of one row with its clip.
    #[inline(always)]
    fn clip<G: Gradient>(&self, weights: &[f32], raw: &[f32], gradient: G) -> Clipped<G> {
        let clipped = Clipped { gradient, value: self.value, factor: 1.0 };
        if self.norm == f32::INFINITY {
            return clipped;
        }
        let raw = &raw[..weights.len()];
        // In double precision, where no square of a float overflows.
        let length = sum_of_squares_f64(raw.len(), |i| clipped.of(raw[i], weights[i])).sqrt();
        let norm = f64::from(self.norm);
        let factor = if length > norm { (norm / length) as f32 } else { 1.0 };
        Clipped { factor, ..clipped }
    }
}

/// A gradient that is clipped number by number.
#[derive(Clone, Copy, Debug)]
struct Clipped<G> {
    gradient: G,
    value: f32,
    /// What scales the row's gradient to its norm.
    factor: f32,
}

impl<G: Gradient> Gradient for Clipped<G> {
    #[inline(always)]
    fn of(self, raw: f32, weight: f32) -> f32 {
        let limits = Bounds { low: -self.value, high: self.value };
        limits.hold(self.gradient.of(raw, weight)) * self.factor
    }
}

/// A rule with its guard. Segments without one run the rule itself and pay nothing.
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
