//! A histogram of scores by class, from which the AUC is computed.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of bins.
const BINS: usize = 512;
/// The log-odds at which the first bin begins. Scores below are in the first bin.
const LOWEST: f32 = -16.0;
/// The number of bins for a log-odds of 1.
const BINS_PER_UNIT: f32 = 16.0;
/// The number of units of a weight of 1 in a bin.
const UNITS: f64 = (1u64 << 20) as f64;
/// The largest weight of a row. A larger weight counts as this one.
const LARGEST_WEIGHT: f32 = (1u64 << 20) as f32;

/// A weight in units of 2^-20.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight(i64);

impl Weight {
    /// Rounds a weight, which must not be negative, to units.
    pub(crate) fn new(weight: f32) -> Self {
        Self((f64::from(weight.min(LARGEST_WEIGHT)) * UNITS).round() as i64)
    }

    /// Returns the number of units.
    pub(crate) fn units(self) -> i128 {
        i128::from(self.0)
    }

    /// Returns the sum of weights from their number of units.
    pub(crate) fn sum(units: i128) -> f64 {
        units as f64 / UNITS
    }

    /// Returns the rounded weight.
    pub(crate) fn get(self) -> f64 {
        self.0 as f64 / UNITS
    }
}

/// The weight of negative and of positive rows in each bin of log-odds. The weights are integers
/// in units of 2^-20, and saturate at 2^43.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// The two weights of each bin: of its negatives and of its positives. It is empty before the
    /// first row.
    bins: Vec<[i64; 2]>,
}

impl Histogram {
    /// Adds the weight of a row to the bin of its score.
    pub(crate) fn add(&mut self, logit: f32, is_positive: bool, weight: Weight) {
        let cell = &mut self.bins_mut()[bin(logit)][usize::from(is_positive)];
        *cell = cell.saturating_add(weight.0);
    }

    /// Adds all rows of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if other.bins.is_empty() {
            return;
        }
        for (cell, more) in self.bins_mut().iter_mut().flatten().zip(other.bins.iter().flatten()) {
            *cell = cell.saturating_add(*more);
        }
    }

    /// Removes all rows of a histogram that was merged into this one.
    pub(crate) fn remove(&mut self, part: &Self) {
        for (cell, less) in self.bins.iter_mut().flatten().zip(part.bins.iter().flatten()) {
            *cell = cell.saturating_sub(*less);
        }
    }

    /// Returns the weights of negatives and of positives.
    pub(crate) fn weights(&self) -> [f64; 2] {
        let mut sums = [0i128; 2];
        for bin in &self.bins {
            sums[0] += i128::from(bin[0]);
            sums[1] += i128::from(bin[1]);
        }
        sums.map(|sum| sum as f64 / UNITS)
    }

    /// Returns the weight of the rows in each bin, in ascending order of scores. It is empty if
    /// there are no rows.
    pub fn bins(&self) -> impl Iterator<Item = f64> {
        self.bins.iter().map(|bin| (bin[0] as f64 + bin[1] as f64) / UNITS)
    }

    /// Returns the AUC, or `None` if a class has no weight.
    pub(crate) fn auc(&self) -> Option<f64> {
        let (mut wins, mut negatives, mut positives) = (0.0, 0.0, 0.0);
        for bin in &self.bins {
            let [tied_negatives, tied_positives] = bin.map(|weight| weight as f64 / UNITS);
            wins += tied_positives * (negatives + 0.5 * tied_negatives);
            negatives += tied_negatives;
            positives += tied_positives;
        }
        let pairs = negatives * positives;
        (pairs > 0.0).then(|| wins / pairs)
    }

    fn bins_mut(&mut self) -> &mut [[i64; 2]] {
        if self.bins.is_empty() {
            self.bins = vec![[0; 2]; BINS];
        }
        &mut self.bins
    }
}

/// Returns the bin of a finite log-odds.
fn bin(logit: f32) -> usize {
    // The cast takes everything below 0 as 0.
    (((logit - LOWEST) * BINS_PER_UNIT) as usize).min(BINS - 1)
}

impl Serialize for Histogram {
    /// Writes the bins that have rows: the number of the bin and its two weights.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let filled = self.bins.iter().enumerate().filter(|(_, bin)| **bin != [0; 2]);
        serializer.collect_seq(filled.map(|(at, bin)| (at, bin[0], bin[1])))
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let filled = Vec::<(usize, i64, i64)>::deserialize(deserializer)?;
        let mut histogram = Self::default();
        for (at, negatives, positives) in filled {
            let cell = histogram.bins_mut().get_mut(at);
            *cell.ok_or_else(|| D::Error::custom("a bin of a histogram is out of range"))? =
                [negatives, positives];
        }
        Ok(histogram)
    }
}
