//! The errors of predicted numbers.

use serde::Serialize;

use super::input::{after_rows, check_length, check_weights, refuse_row};
use crate::error::Result;

/// The metrics of predicted numbers over all pushed rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NumberReport {
    /// The root of the mean squared error.
    pub rmse: f64,
    /// The mean absolute error.
    pub mae: f64,
    /// The mean deviance of a Poisson distribution, `2·(y·ln(y/μ) − y + μ)`, if the labels are
    /// counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviance: Option<f64>,
    /// The mean of the labels.
    pub mean_label: f64,
    /// The mean of the predictions.
    pub mean_prediction: f64,
}

/// An evaluation of predicted numbers, which are pushed batch by batch. Sums are computed in f64 in
/// the order of the rows, so the report depends only on the rows and their order.
#[derive(Clone, Debug, Default)]
pub struct NumberEvaluation {
    is_count: bool,
    rows: u64,
    weight: f64,
    squared: f64,
    absolute: f64,
    deviance: f64,
    labels: f64,
    predictions: f64,
}

impl NumberEvaluation {
    /// Creates an evaluation without rows. With `is_count`, the labels are counts and predictions
    /// are the means of a Poisson distribution.
    #[must_use]
    pub fn new(is_count: bool) -> Self {
        Self { is_count, ..Self::default() }
    }

    /// Returns the number of rows pushed so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// Returns an error if lengths differ, if a prediction is NaN, if a label is not finite, or if
    /// a weight is negative or infinite. The error names the row, counted from the first row of the
    /// first batch. A batch that is refused changes nothing.
    pub fn push(
        &mut self,
        predictions: &[f64],
        labels: &[f32],
        weights: Option<&[f32]>,
    ) -> Result<()> {
        check_batch(predictions, labels, weights).map_err(|error| after_rows(error, self.rows))?;
        for (row, (&prediction, &label)) in predictions.iter().zip(labels).enumerate() {
            let (weight, label) =
                (weights.map_or(1.0, |weights| f64::from(weights[row])), f64::from(label));
            if weight == 0.0 {
                continue;
            }
            let error = prediction - label;
            self.squared += weight * error * error;
            self.absolute += weight * error.abs();
            self.labels += weight * label;
            self.predictions += weight * prediction;
            self.weight += weight;
            if self.is_count {
                let ratio = if label > 0.0 { label * (label / prediction).ln() } else { 0.0 };
                self.deviance += weight * 2.0 * (ratio + error);
            }
        }
        self.rows += labels.len() as u64;
        Ok(())
    }

    /// Returns the report, or `None` if no row counts.
    #[must_use]
    pub fn finish(&self) -> Option<NumberReport> {
        (self.weight > 0.0).then(|| NumberReport {
            rmse: (self.squared / self.weight).sqrt(),
            mae: self.absolute / self.weight,
            deviance: self.is_count.then(|| self.deviance / self.weight),
            mean_label: self.labels / self.weight,
            mean_prediction: self.predictions / self.weight,
        })
    }
}

fn check_batch(predictions: &[f64], labels: &[f32], weights: Option<&[f32]>) -> Result<()> {
    check_length("labels", predictions.len(), labels.len())?;
    if let Some(row) = predictions.iter().position(|prediction| prediction.is_nan()) {
        return Err(refuse_row(row, "the prediction is not a number; train the model again"));
    }
    if let Some(row) = labels.iter().position(|label| !label.is_finite()) {
        return Err(refuse_row(row, "a label must be a finite number; clean the data"));
    }
    check_weights(predictions.len(), weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn errors_follow_their_definitions() {
        let (predictions, labels) = ([1.0, 2.5, 0.5, 4.0], [2.0f32, 2.0, 0.0, 8.0]);
        let weights = [1.0f32, 2.0, 1.0, 0.0];
        let mut evaluation = NumberEvaluation::new(true);
        evaluation.push(&predictions[..1], &labels[..1], Some(&weights[..1])).unwrap();
        evaluation.push(&predictions[1..], &labels[1..], Some(&weights[1..])).unwrap();
        let report = evaluation.finish().unwrap();
        let close =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found}");
        close(report.rmse, ((1.0 + 2.0 * 0.25 + 0.25) / 4.0f64).sqrt());
        close(report.mae, (1.0 + 2.0 * 0.5 + 0.5) / 4.0);
        close(report.mean_label, 6.0 / 4.0);
        close(report.mean_prediction, 6.5 / 4.0);
        let of = |y: f64, m: f64| 2.0 * (if y > 0.0 { y * (y / m).ln() } else { 0.0 } - y + m);
        let deviance = (of(2.0, 1.0) + 2.0 * of(2.0, 2.5) + of(0.0, 0.5)) / 4.0;
        close(report.deviance.unwrap(), deviance);
        assert_eq!(evaluation.rows(), 4);
        assert_eq!(NumberEvaluation::new(false).finish(), None);
    }

    #[test]
    fn a_refused_batch_names_its_row_and_changes_nothing() {
        let mut evaluation = NumberEvaluation::new(false);
        evaluation.push(&[1.0; 3], &[1.0; 3], None).unwrap();
        for (predictions, labels, weights) in [
            ([0.0, f64::NAN], [0.0, 1.0], [1.0; 2]),
            ([0.0; 2], [0.0, f32::INFINITY], [1.0; 2]),
            ([0.0; 2], [0.0; 2], [1.0, -1.0]),
        ] {
            let refused = evaluation.push(&predictions, &labels, Some(&weights));
            assert!(matches!(refused, Err(Error::Row { row: 4, .. })), "{refused:?}");
        }
        assert_eq!(evaluation.rows(), 3);
        assert_eq!(evaluation.finish().unwrap().rmse, 0.0);
    }
}
