//! The clip of a row's gradient and the bounds of its weights, as a job sets them.

use serde::{Deserialize, Serialize};

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
