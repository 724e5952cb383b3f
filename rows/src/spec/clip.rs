//! The settings for the clip of a row's gradient and for the bounds of its weights.

use serde::{Deserialize, Serialize};

/// The limits of the gradient of a row's segment, which are applied before the optimizer. In a job
/// file: `clip = { norm = 1.0 }`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipSpec {
    /// The largest Euclidean length of the gradient of one segment of a row; absent if the length
    /// has no limit. A longer gradient is scaled down to this length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm: Option<f32>,
    /// The largest absolute value of each number of the gradient; absent if the numbers have no
    /// limit. This limit is applied before the length is computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f32>,
}

impl ClipSpec {
    /// Returns the key and the allowed values of the first setting that is out of range, or `None`
    /// if all settings are valid.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let illegal = |limit: Option<f32>| limit.is_some_and(|x| !(x.is_finite() && x > 0.0));
        if self.norm.is_none() && self.value.is_none() {
            Some(("clip", "needs `norm`, `value` or both; add one of them, or remove `clip`"))
        } else if illegal(self.norm) {
            Some(("clip.norm", "must be a positive number"))
        } else if illegal(self.value) {
            Some(("clip.value", "must be a positive number"))
        } else {
            None
        }
    }
}

/// The bounds of weights. Weights are clamped to `[low, high]` after each update and in a new row.
/// In a job file: `bounds = [-1.0, 1.0]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "[f32; 2]", into = "[f32; 2]")]
pub struct Bounds {
    /// The smallest weight that is allowed.
    pub low: f32,
    /// The largest weight that is allowed.
    pub high: f32,
}

impl Bounds {
    /// Returns the reason why the bounds are not valid, or `None` if they are valid.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let finite = self.low.is_finite() && self.high.is_finite();
        (!finite || self.low > self.high).then_some(
            "must be two finite numbers, the lower one first; for a bound on one side only, make the other \
             one very large: [0.0, 3e38]",
        )
    }

    /// Returns a weight clamped to the bounds. NaN stays NaN, so that the error becomes visible.
    #[inline(always)]
    pub fn hold(self, weight: f32) -> f32 {
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
