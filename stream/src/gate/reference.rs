//! The reference of the bands: the figures of promoted versions, averaged.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use crate::validation::Histogram;

/// The number of bins of a histogram that are one class of the reference, which is a log-odds of
/// 1/2.
const BINS_PER_CLASS: usize = 8;
/// The smallest share of a class in the stability index, so that an empty class counts a bounded
/// amount.
const SMALLEST_SHARE: f64 = 1e-4;

/// The averages over promoted versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reference {
    #[serde(default)]
    pub(super) auc: Mean,
    pub(super) click_rate: Mean,
    pub(super) missing: BTreeMap<String, Mean>,
    pub(super) new_keys: Mean,
    pub(super) update_norm: Mean,
    scores: Vec<Mean>,
}

/// An average that follows the newest values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mean {
    values: u64,
    mean: f64,
}

impl Mean {
    /// Returns the average, or `None` before the first value.
    pub(super) fn get(self) -> Option<f64> {
        (self.values > 0).then_some(self.mean)
    }

    /// Adds a value. After `memory` values, each one counts `1 / memory`.
    fn add(&mut self, value: f64, memory: u64) {
        if !value.is_finite() {
            return;
        }
        self.values = (self.values + 1).min(memory);
        self.mean += (value - self.mean) / self.values as f64;
    }
}

impl Reference {
    /// Adds the figures of a promoted version.
    pub(super) fn add(&mut self, evidence: &Evidence<'_>, memory: u64) {
        for (name, share) in &evidence.inputs.missing {
            self.missing.entry(name.clone()).or_default().add(*share, memory);
        }
        if let Some(share) = evidence.inputs.new_keys {
            self.new_keys.add(share, memory);
        }
        if let Some(norm) = evidence.inputs.update_norm {
            self.update_norm.add(norm, memory);
        }
        let Some(window) = evidence.windows.last() else { return };
        if let Some(auc) = window.live.auc {
            self.auc.add(auc, memory);
        }
        if window.weight > 0.0 {
            self.click_rate.add(window.positives / window.weight, memory);
        }
        let shares = shares(&window.scores);
        if self.scores.len() < shares.len() {
            self.scores.resize(shares.len(), Mean::default());
        }
        for (mean, share) in self.scores.iter_mut().zip(&shares) {
            mean.add(*share, memory);
        }
    }

    /// Returns the population stability index of scores: the sum of `(p - q) ln(p / q)` over
    /// classes, where p is the share of the scores in a class and q that of the reference. Returns
    /// `None` without scores or without a reference.
    pub(super) fn score_drift(&self, scores: &Histogram) -> Option<f64> {
        let shares = shares(scores);
        if shares.is_empty() || self.scores.is_empty() {
            return None;
        }
        let index = |(share, mean): (&f64, &Mean)| {
            let share = share.max(SMALLEST_SHARE);
            let reference = mean.get().unwrap_or(0.0).max(SMALLEST_SHARE);
            (share - reference) * (share / reference).ln()
        };
        Some(shares.iter().zip(&self.scores).map(index).sum())
    }
}

/// Returns the share of the weight in each class; nothing without weight.
fn shares(scores: &Histogram) -> Vec<f64> {
    let bins: Vec<f64> = scores.bins().collect();
    let weight: f64 = bins.iter().sum();
    if weight <= 0.0 {
        return Vec::new();
    }
    bins.chunks(BINS_PER_CLASS).map(|class| class.iter().sum::<f64>() / weight).collect()
}
