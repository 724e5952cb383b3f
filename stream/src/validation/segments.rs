//! The sums of segments: the values of declared columns.
//!
//! # Invariants
//! * A column has figures for at most `max_segments` values. A value that has got figures keeps
//!   them while an open window contains it. So a long window is complete for each of its values.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::figures::SegmentFigures;
use super::histogram::Weight;
use super::tally::Tally;

/// The values of one column that have figures of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Known(BTreeSet<u64>);

impl Known {
    /// Returns the value if it has figures of its own, or can have them from now on.
    pub(crate) fn admit(&mut self, value: u64, max: usize) -> Option<u64> {
        let is_known = self.0.contains(&value) || (self.0.len() < max && self.0.insert(value));
        is_known.then_some(value)
    }

    /// Keeps only the values in `used`.
    pub(crate) fn retain(&mut self, used: &BTreeSet<u64>) {
        self.0.retain(|value| used.contains(value));
    }
}

/// The sums of one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    live: Tally,
    stable: Tally,
}

/// The sums of the values of one column in a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Column {
    values: BTreeMap<u64, Segment>,
    other: Segment,
}

impl Column {
    /// Adds a row. `value` is `None` for a value without figures of its own.
    pub(crate) fn add(
        &mut self,
        value: Option<u64>,
        is_positive: bool,
        weight: Weight,
        live: f32,
        stable: Option<f32>,
    ) {
        let segment = match value {
            Some(value) => self.values.entry(value).or_default(),
            None => &mut self.other,
        };
        segment.live.add(live, is_positive, weight);
        if let Some(stable) = stable {
            segment.stable.add(stable, is_positive, weight);
        }
    }

    /// Adds all rows of another window.
    pub(crate) fn merge(&mut self, more: &Self) {
        for (value, segment) in &more.values {
            self.values.entry(*value).or_default().merge(segment);
        }
        self.other.merge(&more.other);
    }

    /// Returns the values with figures of their own.
    pub(crate) fn values(&self) -> impl Iterator<Item = u64> {
        self.values.keys().copied()
    }

    /// Adds the figures of all values to a list.
    pub(crate) fn list_figures(&self, column: &str, list: &mut Vec<SegmentFigures>) {
        let values = self.values.iter().map(|(value, segment)| (Some(*value), segment));
        let other = Some((None, &self.other)).filter(|(_, segment)| !segment.live.is_empty());
        for (value, segment) in values.chain(other) {
            list.push(SegmentFigures {
                column: column.to_owned(),
                value,
                live: segment.live.figures(),
                stable: (!segment.stable.is_empty()).then(|| segment.stable.figures()),
            });
        }
    }
}

impl Segment {
    fn merge(&mut self, more: &Self) {
        self.live.merge(&more.live);
        self.stable.merge(&more.stable);
    }
}
