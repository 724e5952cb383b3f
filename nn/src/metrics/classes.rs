//! The metrics of a label of classes: log loss, accuracy, and figures of each class against all
//! others.
//!
//! The AUC of the label is the unweighted mean of the AUCs of its classes (macro average of one
//! versus rest). A class that no row has, or that all rows have, has no AUC and is left out of the
//! mean. The predicted class is the one with the largest score. Of equal scores, the first class
//! counts.
//!
//! All scores are kept, because exact AUCs need them. A row takes 4 bytes for each class and 2 for
//! the label, and 4 more for a weight.

use super::input::{after_rows, check_length, check_weights, refuse_row};
use crate::error::Result;

/// The figures of one class against all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassFigures {
    /// The area under the ROC curve, or `None` if no row or every row has the class.
    pub auc: Option<f64>,
    /// The area under the precision-recall curve, or `None` if no row has the class.
    pub pr_auc: Option<f64>,
    /// The mean log loss of the class's probability as that of a label of 0 and 1.
    pub logloss: Option<f64>,
    /// The sum of the probabilities of the class divided by the weight of its rows.
    pub calibration: Option<f64>,
    /// The number of rows with the class.
    pub positives: u64,
}

/// The metrics of a label of classes over all pushed rows.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassReport {
    /// The mean negative logarithm of the probability of the row's class, or `None` if no row
    /// counts.
    pub logloss: Option<f64>,
    /// The share of rows whose class has the largest score, or `None` if no row counts.
    pub accuracy: Option<f64>,
    /// The mean AUC of the classes, or `None` if no class has one.
    pub auc: Option<f64>,
    /// The number of rows.
    pub rows: u64,
    /// The figures of each class.
    pub classes: Vec<ClassFigures>,
}

/// The sums of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    loss: f64,
    predicted: f64,
    observed: f64,
    positives: u64,
}

/// An evaluation of a label of classes, whose scores are pushed batch by batch. Sums are computed
/// in f64 in the order of the rows, so the report depends only on the rows and their order.
#[derive(Clone, Debug)]
pub struct ClassEvaluation {
    /// The scores of each class.
    scores: Vec<Vec<f32>>,
    labels: Vec<u16>,
    weights: Option<Vec<f32>>,
    sums: Vec<Sums>,
    weight: f64,
    loss: f64,
    correct: f64,
}

impl ClassEvaluation {
    /// Creates an evaluation without rows of a label with this number of classes.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self {
            scores: vec![Vec::new(); classes],
            labels: Vec::new(),
            weights: None,
            sums: vec![Sums::default(); classes],
            weight: 0.0,
            loss: 0.0,
            correct: 0.0,
        }
    }

    /// Returns the number of rows pushed so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.labels.len() as u64
    }

    /// Adds a batch. `scores` has the logarithms of the probabilities of each class, and `labels`
    /// the indices of the classes of the rows. Every batch must have weights, or none.
    ///
    /// # Errors
    /// Returns an error if lengths differ, if a score is NaN, if a label is not the index of a
    /// class, or if a weight is negative or infinite. The error names the row, counted from the
    /// first row of the first batch. A batch that is refused changes nothing.
    pub fn push(
        &mut self,
        scores: &[&[f32]],
        labels: &[f32],
        weights: Option<&[f32]>,
    ) -> Result<()> {
        self.check(scores, labels, weights).map_err(|error| after_rows(error, self.rows()))?;
        if let Some(weights) = weights {
            self.weights.get_or_insert_default().extend_from_slice(weights);
        }
        for (row, &label) in labels.iter().enumerate() {
            let weight = weights.map_or(1.0, |weights| f64::from(weights[row]));
            let label = label as usize;
            let mut best = 0;
            for (class, (of_class, sums)) in scores.iter().zip(&mut self.sums).enumerate() {
                let score = of_class[row];
                if score > scores[best][row] {
                    best = class;
                }
                let logarithm = f64::from(score).min(0.0);
                let is_row = class == label;
                let (probability, rest) = (logarithm.exp(), -logarithm.exp_m1());
                // A probability that rounds to 1 leaves a rest that is not above 0.
                let rest = rest.max(f64::from(f32::MIN_POSITIVE));
                let loss = if is_row { -logarithm } else { -rest.ln() };
                sums.loss += weight * loss;
                sums.predicted += weight * probability;
                if is_row {
                    sums.observed += weight;
                    sums.positives += 1;
                    self.loss -= weight * logarithm;
                }
            }
            self.weight += weight;
            self.correct += if best == label { weight } else { 0.0 };
            self.labels.push(label as u16);
        }
        for (kept, scores) in self.scores.iter_mut().zip(scores) {
            kept.extend_from_slice(scores);
        }
        Ok(())
    }

    fn check(&self, scores: &[&[f32]], labels: &[f32], weights: Option<&[f32]>) -> Result<()> {
        check_length("classes", self.sums.len(), scores.len())?;
        for scores in scores {
            check_length("labels", scores.len(), labels.len())?;
            if let Some(row) = scores.iter().position(|score| score.is_nan()) {
                return Err(refuse_row(row, "the score is not a number; train the model again"));
            }
        }
        let is_class =
            |&label: &f32| label >= 0.0 && label.fract() == 0.0 && label < self.sums.len() as f32;
        if let Some(row) = labels.iter().position(|label| !is_class(label)) {
            return Err(refuse_row(row, "a label must be the index of a class; clean the data"));
        }
        if self.rows() > 0 && self.weights.is_some() != weights.is_some() {
            let reason = "the first batch has weights or none, unlike this one; give the same";
            return Err(refuse_row(0, reason));
        }
        check_weights(labels.len(), weights)
    }

    /// Ranks the rows and returns the report.
    ///
    /// # Errors
    /// Returns an error if there are more rows than a 32-bit number can count.
    pub fn finish(self) -> Result<ClassReport> {
        let weights = self.weights.as_deref();
        let mean = |sum: f64| (self.weight > 0.0).then(|| sum / self.weight);
        let mut classes = Vec::with_capacity(self.sums.len());
        let mut labels = vec![0.0; self.labels.len()];
        for (class, (scores, sums)) in self.scores.iter().zip(&self.sums).enumerate() {
            for (flag, &label) in labels.iter_mut().zip(&self.labels) {
                *flag = f32::from(u8::from(usize::from(label) == class));
            }
            classes.push(ClassFigures {
                auc: super::auc(scores, &labels, weights)?,
                pr_auc: super::pr_auc(scores, &labels, weights)?,
                logloss: mean(sums.loss),
                calibration: (sums.observed > 0.0).then(|| sums.predicted / sums.observed),
                positives: sums.positives,
            });
        }
        let aucs: Vec<f64> = classes.iter().filter_map(|figures| figures.auc).collect();
        Ok(ClassReport {
            logloss: mean(self.loss),
            accuracy: mean(self.correct),
            auc: (!aucs.is_empty()).then(|| aucs.iter().sum::<f64>() / aucs.len() as f64),
            rows: self.labels.len() as u64,
            classes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;

    /// Returns the scores of each class, from the logits of each row.
    fn columns(rows: &[[f32; 3]]) -> Vec<Vec<f32>> {
        let logarithms = rows.iter().map(|row| {
            let total: f32 = row.iter().map(|z| z.exp()).sum();
            row.map(|z| z - total.ln())
        });
        let rows: Vec<[f32; 3]> = logarithms.collect();
        (0..3).map(|class| rows.iter().map(|row| row[class]).collect()).collect()
    }

    fn slices(columns: &[Vec<f32>]) -> Vec<&[f32]> {
        columns.iter().map(Vec::as_slice).collect()
    }

    proptest! {
        #[test]
        fn figures_follow_their_definitions(
            rows in prop::collection::vec(
                ([-3f32..3.0, -3f32..3.0, -3f32..3.0], 0u8..3, 0u8..4), 1..60),
            cut in 1usize..30,
        ) {
            let logits: Vec<[f32; 3]> = rows.iter().map(|row| row.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| f32::from(row.1)).collect();
            let weights: Vec<f32> = rows.iter().map(|row| f32::from(row.2)).collect();
            let scores = columns(&logits);
            let mut evaluation = ClassEvaluation::new(3);
            for start in (0..rows.len()).step_by(cut) {
                let part = start..(start + cut).min(rows.len());
                let scores: Vec<&[f32]> = scores.iter().map(|s| &s[part.clone()]).collect();
                evaluation.push(&scores, &labels[part.clone()], Some(&weights[part])).unwrap();
            }
            let report = evaluation.finish().unwrap();
            let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            let of = |f: &dyn Fn(usize) -> f64| {
                (0..rows.len()).map(|row| f64::from(weights[row]) * f(row)).sum::<f64>() / total
            };
            let close = |found: Option<f64>, expected: f64| match found {
                None => total == 0.0,
                Some(found) => (found - expected).abs() < 1e-6 * (1.0 + expected.abs()),
            };
            let score = |row: usize, class: usize| f64::from(scores[class][row]);
            prop_assert!(close(report.logloss, of(&|row| -score(row, labels[row] as usize))));
            let right = |row: usize| {
                let best = (0..3).rev().max_by(|&a, &b| score(row, a).total_cmp(&score(row, b)));
                f64::from(u8::from(best == Some(labels[row] as usize)))
            };
            prop_assert!(close(report.accuracy, of(&right)));
            let mut aucs = Vec::new();
            for (class, figures) in report.classes.iter().enumerate() {
                let flags: Vec<f32> =
                    labels.iter().map(|&y| f32::from(u8::from(y as usize == class))).collect();
                let auc = crate::metrics::auc(&scores[class], &flags, Some(&weights)).unwrap();
                prop_assert_eq!(figures.auc, auc);
                aucs.extend(auc);
                let loss = of(&|row| {
                    let p = score(row, class).exp();
                    if flags[row] == 1.0 { -p.ln() } else { -(1.0 - p).ln() }
                });
                prop_assert!(close(figures.logloss, loss));
                let rows = labels.iter().filter(|&&y| y as usize == class).count();
                prop_assert_eq!(figures.positives, rows as u64);
            }
            let mean = aucs.iter().sum::<f64>() / aucs.len() as f64;
            prop_assert_eq!(report.auc, (!aucs.is_empty()).then_some(mean));
        }
    }

    #[test]
    fn a_refused_batch_of_classes_changes_nothing() {
        let scores = columns(&[[0.0, 1.0, 2.0], [1.0, 0.0, 0.0]]);
        let mut evaluation = ClassEvaluation::new(3);
        evaluation.push(&slices(&scores), &[2.0, 0.0], None).unwrap();
        for labels in [[0.0, 3.0], [0.0, -1.0], [0.0, 0.5], [0.0, f32::NAN]] {
            let refused = evaluation.push(&slices(&scores), &labels, None);
            assert!(matches!(refused, Err(Error::Row { row: 3, .. })), "{refused:?}");
        }
        assert!(evaluation.push(&slices(&scores[..2]), &[0.0, 1.0], None).is_err());
        assert!(evaluation.push(&slices(&scores), &[0.0, 1.0], Some(&[1.0, 1.0])).is_err());
        assert_eq!(evaluation.rows(), 2);
        let report = evaluation.finish().unwrap();
        assert_eq!((report.accuracy, report.auc), (Some(1.0), Some(1.0)));
        assert_eq!(report.classes[1].auc, None);
        assert_eq!(ClassEvaluation::new(3).finish().unwrap().logloss, None);
    }
}
