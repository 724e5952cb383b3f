//! The exact area under the ROC curve.
//!
//! The AUC is the probability that a positive row has a higher score than a negative row. A tie
//! counts one half. This equals the U statistic of Mann and Whitney divided by the number of pairs.
//! The computation takes one sort and one pass over groups of equal scores.

use super::input::{check_rows, rank_key, rank_rows};
use crate::error::Result;

/// Computes the exact AUC of `scores` (probabilities, logits or any other ranking score) against
/// labels of 0 and 1, with average ranks for ties, in O(n log n).
///
/// Returns `None` if either class is absent (or has no weight).
///
/// # Errors
/// Returns an error that names the row if a score is NaN, a label is neither 0 nor 1, or a weight
/// is negative or infinite, or if the lengths differ.
pub fn auc(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Result<Option<f64>> {
    check_rows(scores, labels, weights)?;
    match weights {
        None => {
            // Each row becomes one integer: the rank key, and the class in the lowest bit.
            let mut ranked: Vec<u64> = scores
                .iter()
                .zip(labels)
                .map(|(&score, &label)| u64::from(rank_key(score)) << 1 | u64::from(label == 1.0))
                .collect();
            ranked.sort_unstable();
            Ok(unweighted(&ranked))
        }
        Some(weights) => {
            let ranked = rank_rows(scores)?;
            let row_of = |&ranked: &u64| (ranked >> 32, (ranked & 0xffff_ffff) as usize);
            Ok(weighted(ranked.iter().map(row_of), labels, weights))
        }
    }
}

/// Computes the AUC without weights. All numbers are integers until the last step, which is one
/// division. So the result is the correctly rounded quotient. Returns `None` if a class is absent.
fn unweighted(ranked: &[u64]) -> Option<f64> {
    let mut twice_wins: u128 = 0;
    let (mut positives, mut negatives): (u128, u128) = (0, 0);
    for tie in ranked.chunk_by(|a, b| a >> 1 == b >> 1) {
        let tied_positives = tie.iter().map(|row| u128::from(row & 1)).sum::<u128>();
        let tied_negatives = tie.len() as u128 - tied_positives;
        twice_wins += tied_positives * (2 * negatives + tied_negatives);
        positives += tied_positives;
        negatives += tied_negatives;
    }
    let pairs = positives * negatives;
    (pairs > 0).then(|| twice_wins as f64 / (2 * pairs) as f64)
}

/// Computes the AUC with weights from `(key, row)` pairs in ascending order. Returns `None` if a
/// class is absent or has no weight.
pub(super) fn weighted(
    ranked: impl Iterator<Item = (u64, usize)>,
    labels: &[f32],
    weights: &[f32],
) -> Option<f64> {
    let mut wins = 0.0;
    let (mut positives, mut negatives) = (0.0, 0.0);
    let (mut tied_positives, mut tied_negatives) = (0.0, 0.0);
    let mut tie_key = None;
    for (key, row) in ranked {
        if tie_key != Some(key) {
            wins += tied_positives * (negatives + 0.5 * tied_negatives);
            positives += tied_positives;
            negatives += tied_negatives;
            (tied_positives, tied_negatives) = (0.0, 0.0);
            tie_key = Some(key);
        }
        let side = if labels[row] == 1.0 { &mut tied_positives } else { &mut tied_negatives };
        *side += f64::from(weights[row]);
    }
    wins += tied_positives * (negatives + 0.5 * tied_negatives);
    positives += tied_positives;
    negatives += tied_negatives;
    let pairs = positives * negatives;
    (pairs > 0.0).then(|| wins / pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use proptest::prelude::*;

    /// Computes the AUC by comparing every positive row with every negative row.
    pub(crate) fn brute_force(
        scores: &[f32],
        labels: &[f32],
        weights: Option<&[f32]>,
    ) -> Option<f64> {
        let weight = |row: usize| weights.map_or(1.0, |weights| f64::from(weights[row]));
        let (mut wins, mut pairs) = (0.0, 0.0);
        for positive in (0..scores.len()).filter(|&row| labels[row] == 1.0) {
            for negative in (0..scores.len()).filter(|&row| labels[row] == 0.0) {
                let pair = weight(positive) * weight(negative);
                pairs += pair;
                wins += match scores[positive].partial_cmp(&scores[negative]) {
                    Some(std::cmp::Ordering::Greater) => pair,
                    Some(std::cmp::Ordering::Equal) => 0.5 * pair,
                    _ => 0.0,
                };
            }
        }
        (pairs > 0.0).then(|| wins / pairs)
    }

    /// Draws rows whose scores are often equal, because most scores are on a coarse grid. Some
    /// scores are −0.
    fn rows() -> impl Strategy<Value = Vec<(f32, f32, f32)>> {
        let score = prop_oneof![
            (-6i32..6).prop_map(|step| step as f32 * 0.25),
            Just(-0.0f32),
            -1e6f32..1e6,
            Just(f32::INFINITY),
        ];
        let row = (score, prop::bool::ANY, 0u8..4);
        let row = row.prop_map(|(score, label, weight)| {
            (score, f32::from(u8::from(label)), f32::from(weight))
        });
        prop::collection::vec(row, 0..80)
    }

    proptest! {
        #[test]
        fn equals_all_pairs(rows in rows()) {
            let scores: Vec<f32> = rows.iter().map(|row| row.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| row.1).collect();
            let weights: Vec<f32> = rows.iter().map(|row| row.2).collect();
            // Counts and halves are exact in both computations, so the results must be equal.
            prop_assert_eq!(auc(&scores, &labels, None).unwrap(), brute_force(&scores, &labels, None));
            prop_assert_eq!(
                auc(&scores, &labels, Some(&weights)).unwrap(),
                brute_force(&scores, &labels, Some(&weights))
            );
        }

        #[test]
        fn does_not_depend_on_the_order_of_rows(rows in rows()) {
            let scores: Vec<f32> = rows.iter().map(|row| row.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| row.1).collect();
            let forward = auc(&scores, &labels, None).unwrap();
            let scores: Vec<f32> = scores.into_iter().rev().collect();
            let labels: Vec<f32> = labels.into_iter().rev().collect();
            prop_assert_eq!(forward, auc(&scores, &labels, None).unwrap());
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(auc(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0], None).unwrap(), Some(0.75));
        assert_eq!(auc(&[0.5; 4], &[0.0, 1.0, 0.0, 1.0], None).unwrap(), Some(0.5));
    }

    #[test]
    fn one_class_has_no_auc() {
        assert_eq!(auc(&[0.1, 0.9], &[1.0, 1.0], None).unwrap(), None);
        assert_eq!(auc(&[], &[], None).unwrap(), None);
        assert_eq!(auc(&[0.1, 0.9], &[0.0, 1.0], Some(&[1.0, 0.0])).unwrap(), None);
    }

    #[test]
    fn bad_rows_are_named() {
        let row = |result: Result<Option<f64>>| match result {
            Err(Error::Row { row, .. }) => row,
            other => panic!("{other:?}"),
        };
        assert_eq!(row(auc(&[0.1, f32::NAN], &[0.0, 1.0], None)), 1);
        assert_eq!(row(auc(&[0.1, 0.2], &[0.0, 0.5], None)), 1);
        assert_eq!(row(auc(&[0.1, 0.2], &[0.0, 1.0], Some(&[-1.0, 1.0]))), 0);
        assert!(matches!(auc(&[0.1], &[0.0, 1.0], None), Err(Error::Input { .. })));
        let message = auc(&[f32::NAN], &[0.0], None).unwrap_err().to_string();
        assert_eq!(message, "row 0: the score is not a number; give finite scores");
    }
}
