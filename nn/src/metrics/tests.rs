//! Tests of log loss, calibration and evaluations, against the definitions of the metrics over
//! whole columns.

use proptest::prelude::*;

use super::input::{check_probabilities, check_rows, weight_of};
use super::logloss::{PROBABILITY_CLIP, loss_of_logit, loss_of_probability};
use crate::error::{Error, Result};

/// Computes the sum of the predicted probabilities divided by the sum of the observed labels. A
/// value of 1 means that the model is calibrated. If the value is above 1, the predictions are too
/// high. Returns `None` if no positive label was observed.
///
/// # Errors
/// Returns an error for the same reasons as [`logloss`].
pub(super) fn calibration(
    probabilities: &[f32],
    labels: &[f32],
    weights: Option<&[f32]>,
) -> Result<Option<f64>> {
    check_rows(probabilities, labels, weights)?;
    check_probabilities(probabilities)?;
    let (mut predicted, mut observed) = (0.0, 0.0);
    for row in 0..probabilities.len() {
        let weight = weight_of(weights, row);
        predicted += weight * f64::from(probabilities[row]);
        observed += weight * f64::from(labels[row]);
    }
    Ok((observed > 0.0).then(|| predicted / observed))
}

/// Computes the mean log loss of predicted probabilities. Returns `None` if there are no rows or
/// all weights are 0.
///
/// # Errors
/// Returns an error for the same reasons as [`auc`](super::auc()), and if a score is outside `[0,
/// 1]`. The error names the row.
pub(super) fn logloss(
    probabilities: &[f32],
    labels: &[f32],
    weights: Option<&[f32]>,
) -> Result<Option<f64>> {
    check_rows(probabilities, labels, weights)?;
    check_probabilities(probabilities)?;
    Ok(mean(probabilities.len(), weights, |row| {
        loss_of_probability(probabilities[row], labels[row])
    }))
}

/// Computes the mean log loss of logits by `softplus(z) − y·z`, which needs no clipping, because a
/// finite logit has a finite loss. Returns `None` if there are no rows or all weights are 0.
///
/// # Errors
/// Returns an error for the same reasons as [`auc`](super::auc()).
pub(super) fn logloss_from_logits(
    logits: &[f32],
    labels: &[f32],
    weights: Option<&[f32]>,
) -> Result<Option<f64>> {
    check_rows(logits, labels, weights)?;
    Ok(mean(logits.len(), weights, |row| loss_of_logit(logits[row], labels[row])))
}

fn mean(rows: usize, weights: Option<&[f32]>, loss: impl Fn(usize) -> f64) -> Option<f64> {
    let (mut sum, mut total) = (0.0, 0.0);
    for row in 0..rows {
        let weight = weight_of(weights, row);
        sum += weight * loss(row);
        total += weight;
    }
    (total > 0.0).then(|| sum / total)
}

fn naive(probability: f64, label: f32) -> f64 {
    -(f64::from(label) * probability.ln() + (1.0 - f64::from(label)) * (1.0 - probability).ln())
}

proptest! {
    #[test]
    fn both_forms_agree_with_the_definition(
        rows in prop::collection::vec((-12f32..12.0, (0u8..2).prop_map(f32::from), 0.1f32..3.0), 1..50)
    ) {
        let logits: Vec<f32> = rows.iter().map(|row| row.0).collect();
        let labels: Vec<f32> = rows.iter().map(|row| row.1).collect();
        let weights: Vec<f32> = rows.iter().map(|row| row.2).collect();
        let exact = |logit: f32| 1.0 / (1.0 + (-f64::from(logit)).exp());
        let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        let expected: f64 = rows.iter().map(|&(z, y, w)| f64::from(w) * naive(exact(z), y)).sum::<f64>() / total;
        let found = logloss_from_logits(&logits, &labels, Some(&weights)).unwrap().unwrap();
        prop_assert!((found - expected).abs() < 1e-9 * (1.0 + expected), "{} {}", found, expected);

        let probabilities: Vec<f32> = logits.iter().map(|&z| exact(z) as f32).collect();
        let clip = |p: f32| f64::from(p).clamp(PROBABILITY_CLIP, 1.0 - PROBABILITY_CLIP);
        let expected: f64 =
            probabilities.iter().zip(&labels).map(|(&p, &y)| naive(clip(p), y)).sum::<f64>() / rows.len() as f64;
        let found = logloss(&probabilities, &labels, None).unwrap().unwrap();
        prop_assert!((found - expected).abs() < 1e-9 * (1.0 + expected));
    }
}

#[test]
fn extremes_stay_finite() {
    let loss = logloss(&[0.0, 1.0], &[1.0, 0.0], None).unwrap().unwrap();
    assert!((loss - -PROBABILITY_CLIP.ln()).abs() < 1e-8);
    let loss = logloss_from_logits(&[-1e30, 90.0], &[0.0, 0.0], None).unwrap().unwrap();
    assert_eq!(loss, 45.0);
    assert_eq!(logloss(&[], &[], None).unwrap(), None);
}

#[test]
fn a_score_that_is_no_probability_is_named() {
    let refused = logloss(&[0.5, 1.5], &[0.0, 1.0], None);
    assert!(matches!(refused, Err(Error::Row { row: 1, .. })));
}

#[test]
fn nothing_observed_has_no_ratio() {
    assert_eq!(calibration(&[0.5, 0.5], &[0.0, 0.0], None).unwrap(), None);
    assert_eq!(calibration(&[0.5, 0.25], &[1.0, 0.0], None).unwrap(), Some(0.75));
}

proptest! {
    #[test]
    fn the_ratio_is_the_ratio_of_sums(
        rows in prop::collection::vec((0f32..1.0, (0u8..2).prop_map(f32::from), 0f32..3.0), 0..50)
    ) {
        let scores: Vec<f32> = rows.iter().map(|row| row.0).collect();
        let labels: Vec<f32> = rows.iter().map(|row| row.1).collect();
        let weights: Vec<f32> = rows.iter().map(|row| row.2).collect();
        let predicted: f64 = rows.iter().map(|row| f64::from(row.0) * f64::from(row.2)).sum();
        let observed: f64 = rows.iter().map(|row| f64::from(row.1) * f64::from(row.2)).sum();
        let found = calibration(&scores, &labels, Some(&weights)).unwrap();
        prop_assert_eq!(found.is_some(), observed > 0.0);
        if let Some(found) = found {
            prop_assert!((found - predicted / observed).abs() <= 1e-12 * found.abs());
        }
    }
}
