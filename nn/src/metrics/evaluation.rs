//! The evaluation of a model. It receives rows batch by batch, and computes its metrics once, at
//! the end.
//!
//! # Invariants
//! Sums are computed in f64 in the order in which rows are pushed, and ranking is exact. So the
//! report depends only on the rows and their order, and not on the batches or on threads. All
//! scores are kept, because an exact AUC needs them. A row takes 4 bytes for the score and 1 for
//! the label, 4 more for a weight and 8 more for a group. A push that is refused leaves the
//! evaluation unchanged.

use super::calibration::{CalibrationBucket, calibration_table};
use super::gauc::{Gauc, gauc};
use super::input::{after_rows, check_length, check_probabilities, check_rows, refuse};
use super::logloss::{loss_of_logit, loss_of_probability};
use super::ranking::{Cutoffs, RankingFigure, by_group};
use crate::error::Result;
use serde::Serialize;

/// The number of buckets of the report's calibration table.
const CALIBRATION_BUCKETS: usize = 10;

/// The scores of a model for a batch.
#[derive(Debug, Clone, Copy)]
pub enum Scores<'a> {
    /// Probabilities in `[0, 1]`.
    Probabilities(&'a [f32]),
    /// Log odds. They are ranked directly. If they were converted to probabilities first, different
    /// large log odds would become equal.
    Logits(&'a [f32]),
}

impl<'a> Scores<'a> {
    fn values(self) -> &'a [f32] {
        match self {
            Self::Probabilities(values) | Self::Logits(values) => values,
        }
    }
}

/// The metrics over all pushed rows. A metric is `None` if it cannot be computed from the rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The ranking metrics of the groups. The list is empty if none were requested or if there is
    /// no group column.
    pub ranking: Vec<RankingFigure>,
    /// The exact area under the ROC curve, or `None` if the rows do not have both classes.
    pub auc: Option<f64>,
    /// The area under the precision-recall curve, or `None` if no row is positive.
    pub pr_auc: Option<f64>,
    /// The grouped AUC, or `None` if there is no group column.
    pub gauc: Option<Gauc>,
    /// The mean logistic loss, or `None` if there are no rows.
    pub logloss: Option<f64>,
    /// The sum of the predictions divided by the sum of the observed labels, or `None` if there is
    /// no positive row.
    pub calibration: Option<f64>,
    /// The number of rows evaluated.
    pub rows: u64,
    /// The number of rows labelled 1.
    pub positives: u64,
    /// The weighted mean of the predicted probabilities, or `None` if there are no rows.
    pub mean_prediction: Option<f64>,
    /// The calibration table, with about a tenth of the rows in each bucket, in ascending order of
    /// prediction.
    pub calibration_table: Vec<CalibrationBucket>,
}

/// An evaluation of rows and a model's scores, which are pushed batch by batch.
#[derive(Debug, Default)]
pub struct Evaluation {
    cutoffs: Cutoffs,
    logits: Option<bool>,
    scores: Vec<f32>,
    labels: Vec<bool>,
    weights: Option<Vec<f32>>,
    groups: Option<Vec<u64>>,
    positives: u64,
    loss: f64,
    predicted: f64,
    observed: f64,
    total_weight: f64,
}

impl Evaluation {
    /// Creates an evaluation without rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an evaluation that also ranks the rows of each group.
    #[must_use]
    pub fn with_cutoffs(cutoffs: Cutoffs) -> Self {
        Self { cutoffs, ..Self::default() }
    }

    /// Returns the number of rows pushed so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.scores.len() as u64
    }

    /// Adds a batch. Every batch must have the columns of the first batch.
    ///
    /// # Errors
    /// Returns an error if a score is NaN, a probability is outside `[0, 1]`, a label is neither 0
    /// nor 1, or a weight is negative or infinite. Such an error names the row, counted from the
    /// first row of the first batch. Also returns an error if columns have different lengths, or if
    /// the batch does not have the columns of the first batch.
    pub fn push(
        &mut self,
        scores: Scores<'_>,
        labels: &[f32],
        weights: Option<&[f32]>,
        groups: Option<&[u64]>,
    ) -> Result<()> {
        let values = scores.values();
        self.check(scores, labels, weights, groups)
            .map_err(|error| after_rows(error, self.rows()))?;
        if self.logits.is_none() {
            self.logits = Some(matches!(scores, Scores::Logits(_)));
            self.weights = weights.map(|_| Vec::new());
            self.groups = groups.map(|_| Vec::new());
        }
        self.scores.extend_from_slice(values);
        self.labels.extend(labels.iter().map(|&label| label == 1.0));
        if let (Some(kept), Some(weights)) = (&mut self.weights, weights) {
            kept.extend_from_slice(weights);
        }
        if let (Some(kept), Some(groups)) = (&mut self.groups, groups) {
            kept.extend_from_slice(groups);
        }
        for (row, (&value, &label)) in values.iter().zip(labels).enumerate() {
            let weight = weights.map_or(1.0, |weights| f64::from(weights[row]));
            let (loss, probability) = match scores {
                Scores::Probabilities(_) => (loss_of_probability(value, label), f64::from(value)),
                Scores::Logits(_) => (loss_of_logit(value, label), probability_of_logit(value)),
            };
            self.positives += u64::from(label == 1.0);
            self.loss += weight * loss;
            self.predicted += weight * probability;
            self.observed += weight * f64::from(label);
            self.total_weight += weight;
        }
        Ok(())
    }

    fn check(
        &self,
        scores: Scores<'_>,
        labels: &[f32],
        weights: Option<&[f32]>,
        groups: Option<&[u64]>,
    ) -> Result<()> {
        let values = scores.values();
        check_rows(values, labels, weights)?;
        if let Scores::Probabilities(values) = scores {
            check_probabilities(values)?;
        }
        if let Some(groups) = groups {
            check_length("groups", values.len(), groups.len())?;
        }
        if let Some(logits) = self.logits {
            let same = |column, same: bool| {
                let reason = "the batch does not have the same columns as the first batch; give \
                              the same columns in every batch";
                if same { Ok(()) } else { Err(refuse(column, reason.to_owned())) }
            };
            same("scores", logits == matches!(scores, Scores::Logits(_)))?;
            same("weights", self.weights.is_some() == weights.is_some())?;
            same("groups", self.groups.is_some() == groups.is_some())?;
        }
        Ok(())
    }

    /// Ranks the rows and returns the report.
    ///
    /// # Errors
    /// Returns an error if a metric needs row numbers (weights, groups, the calibration table) and
    /// there are more rows than a 32-bit number can count.
    pub fn finish(self) -> Result<Report> {
        let labels: Vec<f32> =
            self.labels.iter().map(|&label| f32::from(u8::from(label))).collect();
        let weights = self.weights.as_deref();
        let auc = super::auc(&self.scores, &labels, weights)?;
        let pr_auc = super::pr_auc(&self.scores, &labels, weights)?;
        let gauc = match &self.groups {
            Some(groups) => Some(gauc(&self.scores, &labels, weights, groups)?),
            None => None,
        };
        let ranking = match &self.groups {
            Some(groups) if !self.cutoffs.is_empty() => {
                by_group(&self.cutoffs, &self.scores, &self.labels, weights, groups)
            }
            _ => Vec::new(),
        };
        let probabilities = match self.logits {
            Some(true) => {
                self.scores.iter().map(|&logit| probability_of_logit(logit) as f32).collect()
            }
            _ => self.scores,
        };
        Ok(Report {
            ranking,
            auc,
            pr_auc,
            gauc,
            logloss: (self.total_weight > 0.0).then(|| self.loss / self.total_weight),
            calibration: (self.observed > 0.0).then(|| self.predicted / self.observed),
            rows: labels.len() as u64,
            positives: self.positives,
            mean_prediction: (self.total_weight > 0.0).then(|| self.predicted / self.total_weight),
            calibration_table: calibration_table(
                &probabilities,
                &labels,
                weights,
                CALIBRATION_BUCKETS,
            )?,
        })
    }
}

/// Returns the value of the logistic function at `logit`, computed in f64.
fn probability_of_logit(logit: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(logit)).exp())
}

#[cfg(test)]
mod tests {
    use super::super::auc;
    use super::super::tests::{calibration, logloss, logloss_from_logits};
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn batches_give_the_figures_of_the_whole(
            rows in prop::collection::vec(
                (-5f32..5.0, (0u8..2).prop_map(f32::from), (1u8..4).prop_map(f32::from), 0u64..4), 0..120),
            cut in 1usize..40,
            with_columns in prop::bool::ANY,
        ) {
            let logits: Vec<f32> = rows.iter().map(|row| row.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| row.1).collect();
            let weights: Vec<f32> = rows.iter().map(|row| row.2).collect();
            let groups: Vec<u64> = rows.iter().map(|row| row.3).collect();
            let mut evaluation = Evaluation::new();
            for start in (0..rows.len()).step_by(cut) {
                let part = start..(start + cut).min(rows.len());
                let weights = with_columns.then(|| &weights[part.clone()]);
                let groups = with_columns.then(|| &groups[part.clone()]);
                evaluation.push(Scores::Logits(&logits[part.clone()]), &labels[part], weights, groups).unwrap();
            }
            let report = evaluation.finish().unwrap();
            let weights = with_columns.then_some(&weights[..]);
            prop_assert_eq!(report.auc, auc(&logits, &labels, weights).unwrap());
            prop_assert_eq!(report.logloss, logloss_from_logits(&logits, &labels, weights).unwrap());
            prop_assert_eq!(report.gauc.is_some(), with_columns && !rows.is_empty());
            if let Some(found) = report.gauc {
                prop_assert_eq!(found, gauc(&logits, &labels, weights, &groups).unwrap());
            }
            prop_assert_eq!(report.rows, rows.len() as u64);
            prop_assert_eq!(report.positives, labels.iter().filter(|&&label| label == 1.0).count() as u64);
            let probabilities: Vec<f32> = logits.iter().map(|&z| probability_of_logit(z) as f32).collect();
            if let Some(expected) = calibration(&probabilities, &labels, weights).unwrap() {
                prop_assert!((report.calibration.unwrap() - expected).abs() < 1e-6 * expected);
            }
        }
    }

    #[test]
    fn probabilities_and_logits_agree() {
        let labels = [1.0, 0.0, 1.0, 0.0];
        let logits = [2.0f32, -1.0, 0.5, 0.6];
        let probabilities = logits.map(|z| probability_of_logit(z) as f32);
        let mut by_logit = Evaluation::new();
        by_logit.push(Scores::Logits(&logits), &labels, None, None).unwrap();
        let mut by_probability = Evaluation::new();
        by_probability.push(Scores::Probabilities(&probabilities), &labels, None, None).unwrap();
        let (a, b) = (by_logit.finish().unwrap(), by_probability.finish().unwrap());
        assert_eq!(a.auc, Some(0.75));
        assert_eq!(a.auc, b.auc);
        assert_eq!(b.logloss, logloss(&probabilities, &labels, None).unwrap());
        assert!((a.logloss.unwrap() - b.logloss.unwrap()).abs() < 1e-7);
        assert!((a.mean_prediction.unwrap() - b.mean_prediction.unwrap()).abs() < 1e-7);
    }

    #[test]
    fn one_class_and_no_rows_have_no_auc() {
        let mut evaluation = Evaluation::new();
        evaluation.push(Scores::Probabilities(&[0.2, 0.3]), &[0.0, 0.0], None, None).unwrap();
        let report = evaluation.finish().unwrap();
        assert_eq!(
            (report.auc, report.calibration, report.rows, report.positives),
            (None, None, 2, 0)
        );
        assert!(report.logloss.is_some());
        let empty = Evaluation::new().finish().unwrap();
        assert_eq!(
            (empty.auc, empty.logloss, empty.mean_prediction, empty.rows),
            (None, None, None, 0)
        );
        assert!(empty.calibration_table.is_empty());
    }

    #[test]
    fn a_refused_batch_names_its_row_and_changes_nothing() {
        let mut evaluation = Evaluation::new();
        evaluation.push(Scores::Logits(&[0.0; 3]), &[0.0; 3], None, None).unwrap();
        let refused = evaluation.push(Scores::Logits(&[1.0, f32::NAN]), &[0.0, 1.0], None, None);
        assert!(matches!(refused, Err(Error::Row { row: 4, .. })));
        let refused = evaluation.push(Scores::Probabilities(&[0.5]), &[0.0], None, None);
        assert!(matches!(refused, Err(Error::Input { .. })));
        let refused = evaluation.push(Scores::Logits(&[0.5]), &[0.0], None, Some(&[1]));
        assert!(matches!(refused, Err(Error::Input { .. })));
        assert_eq!(evaluation.rows(), 3);
    }
}
