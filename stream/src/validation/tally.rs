//! The sums of one model's scores over rows, from which its figures follow.

use serde::{Deserialize, Serialize};

use super::figures::Figures;
use super::histogram::{Histogram, Weight};
use super::sum::Sum;

/// The number of units of a sum: losses and predictions are rounded to 2^-40.
const UNITS: f64 = (1u64 << 40) as f64;
/// The largest absolute log-odds with which the loss is computed.
const LARGEST_LOGIT: f64 = 100.0;

/// The sums of one model's scores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tally {
    rows: u64,
    loss: Sum,
    predicted: Sum,
    scores: Histogram,
}

impl Tally {
    /// Adds a row with a finite log-odds.
    pub(crate) fn add(&mut self, logit: f32, is_positive: bool, weight: Weight) {
        let clamped = f64::from(logit).clamp(-LARGEST_LOGIT, LARGEST_LOGIT);
        let margin = if is_positive { clamped } else { -clamped };
        let loss = (-margin).max(0.0) + (-margin.abs()).exp().ln_1p();
        let probability = 1.0 / (1.0 + (-clamped).exp());
        self.rows += 1;
        self.loss.0 += (loss * weight.get() * UNITS).round() as i128;
        self.predicted.0 += (probability * weight.get() * UNITS).round() as i128;
        self.scores.add(logit, is_positive, weight);
    }

    /// Adds all rows of another tally.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.rows += other.rows;
        self.loss.0 += other.loss.0;
        self.predicted.0 += other.predicted.0;
        self.scores.merge(&other.scores);
    }

    /// Returns this tally without a part that was merged into it.
    pub(crate) fn without(&self, part: &Self) -> Self {
        let mut rest = self.clone();
        rest.rows -= part.rows;
        rest.loss.0 -= part.loss.0;
        rest.predicted.0 -= part.predicted.0;
        rest.scores.remove(&part.scores);
        rest
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns whether the tally has no row.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the histogram of scores.
    pub(crate) fn scores(&self) -> &Histogram {
        &self.scores
    }

    /// Returns the figures of the rows.
    pub(crate) fn figures(&self) -> Figures {
        let [negatives, positives] = self.scores.weights();
        let weight = negatives + positives;
        let predicted = self.predicted.0 as f64 / UNITS;
        Figures {
            rows: self.rows,
            weight,
            positives,
            auc: self.scores.auc(),
            auc_error: None,
            logloss: (weight > 0.0).then(|| self.loss.0 as f64 / UNITS / weight),
            calibration: (positives > 0.0).then(|| predicted / positives),
        }
    }
}
