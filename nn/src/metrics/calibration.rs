//! Calibration: the comparison of predicted probabilities with observed labels.
//!
//! A bid is proportional to the predicted probability. If a model ranks well but predicts twice the
//! click rate, the bids are twice too high. The ratio of the sum of predictions to the sum of
//! labels measures this error in one number (He et al., "Practical Lessons from Predicting Clicks
//! on Ads at Facebook", 2014). The table shows for which predictions the error occurs.

use super::input::{check_probabilities, check_rows, rank_rows, weight_of};
use crate::error::Result;
use serde::Serialize;

/// A bucket of rows with neighbouring predictions, and their labels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CalibrationBucket {
    /// The lowest prediction in the bucket.
    pub low: f32,
    /// The highest prediction in the bucket.
    pub high: f32,
    /// The number of rows in the bucket.
    pub rows: u64,
    /// The weighted mean of the predictions; `None` if all rows of the bucket have weight 0.
    pub mean_prediction: Option<f64>,
    /// The weighted share of positive rows; `None` if all rows of the bucket have weight 0.
    pub mean_label: Option<f64>,
}

/// Groups rows by ascending prediction into at most `buckets` buckets of about the same size. Rows
/// with equal predictions are always in the same bucket, so a bucket can be larger. For this
/// reason, the table does not depend on the order of the rows.
///
/// # Errors
/// Returns an error for the same reasons as [`auc`](super::auc()), and if a probability is outside
/// `[0, 1]`. The error names the row.
pub fn calibration_table(
    probabilities: &[f32],
    labels: &[f32],
    weights: Option<&[f32]>,
    buckets: usize,
) -> Result<Vec<CalibrationBucket>> {
    check_rows(probabilities, labels, weights)?;
    check_probabilities(probabilities)?;
    let rows = probabilities.len();
    let ranked = rank_rows(probabilities)?;

    let mut table = Vec::new();
    let mut start = 0;
    for bucket in 1..=buckets {
        let mut end = (rows as u128 * bucket as u128 / buckets as u128) as usize;
        if end <= start {
            continue;
        }
        while end < rows && ranked[end] >> 32 == ranked[end - 1] >> 32 {
            end += 1;
        }
        table.push(summarise(&ranked[start..end], probabilities, labels, weights));
        start = end;
    }
    Ok(table)
}

/// Summarises the rows of `ranked` as one bucket. `ranked` must not be empty.
fn summarise(
    ranked: &[u64],
    probabilities: &[f32],
    labels: &[f32],
    weights: Option<&[f32]>,
) -> CalibrationBucket {
    let row_of = |ranked: u64| (ranked & 0xffff_ffff) as usize;
    let (mut predicted, mut observed, mut total) = (0.0, 0.0, 0.0);
    for &ranked in ranked {
        let row = row_of(ranked);
        let weight = weight_of(weights, row);
        predicted += weight * f64::from(probabilities[row]);
        observed += weight * f64::from(labels[row]);
        total += weight;
    }
    CalibrationBucket {
        low: probabilities[row_of(ranked[0])],
        high: probabilities[row_of(ranked[ranked.len() - 1])],
        rows: ranked.len() as u64,
        mean_prediction: (total > 0.0).then(|| predicted / total),
        mean_label: (total > 0.0).then(|| observed / total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_table_covers_every_row_once(
            rows in prop::collection::vec(((0u8..20).prop_map(|p| f32::from(p) / 20.0), (0u8..2).prop_map(f32::from), 0u8..3), 0..100),
            buckets in 0usize..12,
        ) {
            let scores: Vec<f32> = rows.iter().map(|row| row.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| row.1).collect();
            let weights: Vec<f32> = rows.iter().map(|row| f32::from(row.2)).collect();
            let table = calibration_table(&scores, &labels, Some(&weights), buckets).unwrap();
            prop_assert!(table.len() <= buckets);
            prop_assert!(table.windows(2).all(|pair| pair[0].high < pair[1].low));
            if buckets > 0 {
                prop_assert_eq!(table.iter().map(|bucket| bucket.rows).sum::<u64>(), rows.len() as u64);
            }
            for bucket in &table {
                // By the simple definition, a bucket contains every row between its bounds.
                let inside = || rows.iter().filter(|row| (bucket.low..=bucket.high).contains(&row.0));
                prop_assert_eq!(inside().count() as u64, bucket.rows);
                let total: f64 = inside().map(|row| f64::from(row.2)).sum();
                if total > 0.0 {
                    let predicted = inside().map(|row| f64::from(row.2) * f64::from(row.0)).sum::<f64>() / total;
                    let observed = inside().map(|row| f64::from(row.2) * f64::from(row.1)).sum::<f64>() / total;
                    prop_assert!((bucket.mean_prediction.unwrap() - predicted).abs() < 1e-12);
                    prop_assert!((bucket.mean_label.unwrap() - observed).abs() < 1e-12);
                } else {
                    prop_assert_eq!(bucket.mean_label, None);
                }
            }
        }
    }
}
