//! Grouped AUC: the average of the AUCs that are computed inside each group (a user, a request).
//!
//! The definition is that of Zhu et al., "Optimized Cost per Click in Taobao Display Advertising"
//! (KDD 2017): the AUC of each group is weighted by the number of its impressions. A group of one
//! class has no AUC. Such a group is not part of the average and is counted separately.

use super::auc::weighted;
use super::input::{check_length, check_row_count, check_rows, rank_key, weight_of};
use crate::error::Result;
use serde::Serialize;

/// The grouped AUC and the numbers that it was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gauc {
    /// The mean of the groups' AUCs, weighted by their impressions, or `None` if no group has both
    /// classes.
    pub value: Option<f64>,
    /// The number of groups in the mean.
    pub groups: u64,
    /// The number of groups that are left out, because all rows of the group have the same class.
    pub skipped_groups: u64,
    /// The number of rows in the groups that were left out.
    pub skipped_rows: u64,
}

/// Computes the exact AUC inside each group and averages it. Rows with equal values in `groups`
/// form a group. The weight of a group is its number of impressions, or the sum of its sample
/// weights if there are any.
///
/// # Errors
/// Returns an error for the same reasons as [`auc`](super::auc()), and if the group column has a
/// different length.
pub fn gauc(
    scores: &[f32],
    labels: &[f32],
    weights: Option<&[f32]>,
    groups: &[u64],
) -> Result<Gauc> {
    check_rows(scores, labels, weights)?;
    check_length("groups", scores.len(), groups.len())?;
    check_row_count(scores.len())?;
    // The rows are ordered by group, then by rank, then by row number. So rows of equal rank are
    // summed in the order of rows.
    let mut ranked: Vec<(u64, u32, u32)> = (0u32..)
        .zip(scores.iter().zip(groups))
        .map(|(row, (&score, &group))| (group, rank_key(score), row))
        .collect();
    ranked.sort_unstable();

    let ones;
    let row_weights = match weights {
        Some(weights) => weights,
        None => {
            ones = vec![1.0; scores.len()];
            &ones
        }
    };
    let (mut sum, mut impressions) = (0.0, 0.0);
    let mut result = Gauc { value: None, groups: 0, skipped_groups: 0, skipped_rows: 0 };
    for group in ranked.chunk_by(|a, b| a.0 == b.0) {
        let rows = group.iter().map(|&(_, key, row)| (u64::from(key), row as usize));
        match weighted(rows, labels, row_weights) {
            Some(auc) => {
                let size: f64 =
                    group.iter().map(|&(_, _, row)| weight_of(weights, row as usize)).sum();
                sum += auc * size;
                impressions += size;
                result.groups += 1;
            }
            None => {
                result.skipped_groups += 1;
                result.skipped_rows += group.len() as u64;
            }
        }
    }
    result.value = (impressions > 0.0).then(|| sum / impressions);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::super::auc;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Computes the grouped AUC from the plain AUC of the rows of each group.
    fn brute_force(rows: &[(f32, f32, f32, u64)], weighted: bool) -> Gauc {
        let mut by_group: BTreeMap<u64, Vec<(f32, f32, f32)>> = BTreeMap::new();
        for &(score, label, weight, group) in rows {
            by_group.entry(group).or_default().push((score, label, weight));
        }
        let mut result = Gauc { value: None, groups: 0, skipped_groups: 0, skipped_rows: 0 };
        let (mut sum, mut total) = (0.0, 0.0);
        for rows in by_group.values() {
            let scores: Vec<f32> = rows.iter().map(|row| row.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| row.1).collect();
            let weights: Vec<f32> = rows.iter().map(|row| row.2).collect();
            match auc(&scores, &labels, weighted.then_some(&weights[..])).unwrap() {
                Some(auc) => {
                    let size: f64 = if weighted {
                        weights.iter().map(|&w| f64::from(w)).sum()
                    } else {
                        rows.len() as f64
                    };
                    sum += auc * size;
                    total += size;
                    result.groups += 1;
                }
                None => {
                    result.skipped_groups += 1;
                    result.skipped_rows += rows.len() as u64;
                }
            }
        }
        result.value = (total > 0.0).then(|| sum / total);
        result
    }

    proptest! {
        #[test]
        fn equals_an_auc_per_group(
            rows in prop::collection::vec(
                ((-4i32..4).prop_map(|s| s as f32), (0u8..2).prop_map(f32::from), (0u8..4).prop_map(f32::from), 0u64..6),
                0..120,
            )
        ) {
            let scores: Vec<f32> = rows.iter().map(|row| row.0).collect();
            let labels: Vec<f32> = rows.iter().map(|row| row.1).collect();
            let weights: Vec<f32> = rows.iter().map(|row| row.2).collect();
            let groups: Vec<u64> = rows.iter().map(|row| row.3).collect();
            prop_assert_eq!(gauc(&scores, &labels, None, &groups).unwrap(), brute_force(&rows, false));
            prop_assert_eq!(gauc(&scores, &labels, Some(&weights), &groups).unwrap(), brute_force(&rows, true));
        }
    }

    #[test]
    fn groups_of_one_class_are_counted() {
        let result =
            gauc(&[0.1, 0.9, 0.3, 0.2], &[0.0, 1.0, 1.0, 1.0], None, &[7, 7, 8, 8]).unwrap();
        assert_eq!(
            result,
            Gauc { value: Some(1.0), groups: 1, skipped_groups: 1, skipped_rows: 2 }
        );
        let none = gauc(&[0.1], &[0.0], None, &[1]).unwrap();
        assert_eq!(none.value, None);
    }
}
