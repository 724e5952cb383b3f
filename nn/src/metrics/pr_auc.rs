//! The area under the curve of precision over recall.

use super::input::{check_rows, rank_rows, weight_of};
use crate::error::Result;

/// Returns the area under the precision-recall curve, which is the average precision
/// `Σ (Rₙ − Rₙ₋₁)·Pₙ` over the distinct scores, from the highest one down. Pₙ and Rₙ are precision
/// and recall of the rows with at least the nth score, so rows of equal score share a point of the
/// curve. Returns `None` if no row is positive. A random order has the share of positive rows.
///
/// # Errors
/// Returns an error if lengths differ, a score is NaN, a label is neither 0 nor 1, or a weight is
/// negative or infinite.
pub fn pr_auc(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Result<Option<f64>> {
    check_rows(scores, labels, weights)?;
    let weight = |row| weight_of(weights, row);
    let positives: f64 = labels.iter().enumerate().map(|(i, &y)| weight(i) * f64::from(y)).sum();
    if positives <= 0.0 {
        return Ok(None);
    }
    let mut ranked = rank_rows(scores)?;
    ranked.reverse();
    let (mut seen, mut found, mut area) = (0.0, 0.0, 0.0);
    for same in ranked.chunk_by(|a, b| a >> 32 == b >> 32) {
        let before = found;
        for row in same.iter().map(|ranked| (ranked & 0xffff_ffff) as usize) {
            seen += weight(row);
            found += weight(row) * f64::from(labels[row]);
        }
        if seen > 0.0 {
            area += (found - before) * found / seen;
        }
    }
    Ok(Some(area / positives))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the average precision by its definition, with a pass over all rows for each score.
    fn by_definition(scores: &[f32], labels: &[f32], weights: &[f32]) -> Option<f64> {
        let sum = |keep: &dyn Fn(usize) -> bool| -> f64 {
            (0..scores.len()).filter(|&i| keep(i)).map(|i| f64::from(weights[i])).sum()
        };
        let positives = sum(&|i| labels[i] == 1.0);
        let mut distinct = scores.to_vec();
        distinct.sort_by(|a, b| b.total_cmp(a));
        distinct.dedup();
        let (mut area, mut recall) = (0.0, 0.0);
        for bound in distinct {
            let found = sum(&|i| scores[i] >= bound && labels[i] == 1.0);
            let seen = sum(&|i| scores[i] >= bound);
            if seen > 0.0 {
                area += (found / positives - recall) * found / seen;
            }
            recall = found / positives;
        }
        (positives > 0.0).then_some(area)
    }

    proptest! {
        #[test]
        fn it_is_the_average_precision(
            rows in prop::collection::vec((-3i8..3, 0u8..2, 0u8..3), 0..60),
        ) {
            let scores: Vec<f32> = rows.iter().map(|row| f32::from(row.0) / 2.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| f32::from(row.1)).collect();
            let weights: Vec<f32> = rows.iter().map(|row| f32::from(row.2)).collect();
            for weights in [Some(weights), None] {
                let found = pr_auc(&scores, &labels, weights.as_deref()).unwrap();
                let ones = vec![1.0; rows.len()];
                let expected = by_definition(&scores, &labels, weights.as_deref().unwrap_or(&ones));
                prop_assert_eq!(found.is_some(), expected.is_some());
                if let (Some(found), Some(expected)) = (found, expected) {
                    prop_assert!((found - expected).abs() < 1e-9, "{} {}", found, expected);
                }
            }
        }
    }

    #[test]
    fn known_curves() {
        let labels = [0.0, 0.0, 1.0, 1.0];
        // The example of scikit-learn's `average_precision_score`.
        let area = pr_auc(&[0.1, 0.4, 0.35, 0.8], &labels, None).unwrap().unwrap();
        assert!((area - 5.0 / 6.0).abs() < 1e-12, "{area}");
        assert_eq!(pr_auc(&[-0.0, 0.0, 0.0, -0.0], &labels, None).unwrap(), Some(0.5));
        assert_eq!(pr_auc(&[0.5], &[0.0], None).unwrap(), None);
        assert!(pr_auc(&[f32::NAN], &[1.0], None).is_err());
    }
}
