//! The distinct values of a column: their number, their counts, and the texts of the frequent ones.
//!
//! # Invariants
//! Memory is bounded, because at most [`KEPT`] values are counted individually. If a column has
//! more distinct values, the least frequent ones are dropped, and the count of a value may be too
//! low by at most `Values::count_error`. Every value that occurs in at least 1/4096 of the rows
//! keeps its text.

use std::collections::HashMap;

use zillion_feature::{FeatureKey, MixedHasher};
use zillion_reader::Sketch;

/// The maximum number of values that are counted individually.
const KEPT: usize = 1 << 18;
/// The limit for texts: a value keeps its text if it occurs more than once in this number of rows
/// on average.
const WORTH_A_TEXT: u64 = 4096;

type Map<T> = HashMap<FeatureKey, T, MixedHasher>;

#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    counts: Map<u64>,
    texts: Map<Box<str>>,
    sketch: Sketch,
    pub(super) total: u64,
    /// The largest error of a count. A count may be too low by this number, and is never too high.
    pub(super) count_error: u64,
}

impl Values {
    /// Counts a value. `text` returns the value as text.
    pub(super) fn add(&mut self, key: FeatureKey, text: impl FnOnce() -> String) {
        self.total += 1;
        self.sketch.add(key);
        if self.counts.len() == KEPT && !self.counts.contains_key(&key) {
            self.drop_rare();
        }
        let count = self.counts.entry(key).or_default();
        *count += 1;
        if *count > self.total / WORTH_A_TEXT {
            self.texts.entry(key).or_insert_with(|| text().into());
        }
    }

    /// Drops the least frequent values, so that at most half of [`KEPT`] values remain.
    fn drop_rare(&mut self) {
        let mut least = 0;
        while self.counts.len() > KEPT / 2 {
            least += 1;
            self.counts.retain(|_, count| *count > least);
        }
        self.count_error += least;
        let counts = &self.counts;
        self.texts.retain(|key, _| counts.contains_key(key));
    }

    /// Returns the number of distinct values, and whether this number is exact.
    pub(super) fn distinct(&self) -> (u64, bool) {
        match self.count_error {
            0 => (self.counts.len() as u64, true),
            _ => (self.sketch.count().round() as u64, false),
        }
    }

    /// Returns every value that is counted individually, with its count.
    pub(super) fn counts(&self) -> impl Iterator<Item = (FeatureKey, u64)> {
        self.counts.iter().map(|(&key, &count)| (key, count))
    }

    pub(super) fn count(&self, key: FeatureKey) -> u64 {
        self.counts.get(&key).copied().unwrap_or(0)
    }

    /// Returns the `n` most frequent values with their counts, in descending order of the counts.
    /// Values with the same count are sorted by key.
    pub(super) fn top(&self, n: usize) -> Vec<(FeatureKey, u64)> {
        let mut all: Vec<(FeatureKey, u64)> = self.counts().collect();
        all.sort_unstable_by_key(|&(key, count)| (std::cmp::Reverse(count), key));
        all.truncate(n);
        all
    }

    pub(super) fn text(&self, key: FeatureKey) -> Option<&str> {
        self.texts.get(&key).map(AsRef::as_ref)
    }
}
