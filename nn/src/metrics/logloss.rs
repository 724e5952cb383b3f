//! The logistic loss (binary cross-entropy), averaged over the rows.

use super::input::{check_probabilities, check_rows, weight_of};
use crate::error::Result;

/// The distance from 0 and 1 to which probabilities are clipped, as in the published click-through
/// benchmarks.
pub const PROBABILITY_CLIP: f64 = 1e-7;

/// Computes the mean log loss of predicted probabilities; returns `None` without rows (or without
/// weight).
///
/// # Errors
/// Returns an error for the same reasons as [`auc`](super::auc()), and if a score is outside `[0,
/// 1]`; names the row.
pub fn logloss(
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

/// Computes the mean log loss of logits, `softplus(z) − y·z`, which needs no clipping: a finite
/// logit has a finite loss. Returns `None` without rows (or without weight).
///
/// # Errors
/// Returns an error for the same reasons as [`auc`](super::auc()).
pub fn logloss_from_logits(
    logits: &[f32],
    labels: &[f32],
    weights: Option<&[f32]>,
) -> Result<Option<f64>> {
    check_rows(logits, labels, weights)?;
    Ok(mean(logits.len(), weights, |row| loss_of_logit(logits[row], labels[row])))
}

#[inline]
pub(super) fn loss_of_probability(probability: f32, label: f32) -> f64 {
    let probability = f64::from(probability).clamp(PROBABILITY_CLIP, 1.0 - PROBABILITY_CLIP);
    if label == 1.0 { -probability.ln() } else { -(-probability).ln_1p() }
}

#[inline]
pub(super) fn loss_of_logit(logit: f32, label: f32) -> f64 {
    // The loss of a positive row is softplus(-z): the sign is applied first, so that no digits
    // cancel.
    let z = if label == 1.0 { -f64::from(logit) } else { f64::from(logit) };
    z.max(0.0) + (-z.abs()).exp().ln_1p()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;

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
}
