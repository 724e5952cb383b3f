//! The checks of rows that every metric makes, and the order in which metrics rank scores.

use crate::error::{Error, Result};

/// Checks that lengths agree, that scores are numbers, that labels are 0 or 1, and that weights are
/// finite and not negative.
pub(super) fn check_rows(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Result<()> {
    check_length("labels", scores.len(), labels.len())?;
    let nan = |score: f32| {
        score.is_nan().then(|| "the score is not a number; give finite scores".to_owned())
    };
    check_each(scores, nan)?;
    check_each(labels, |label| {
        (label != 0.0 && label != 1.0).then(|| format!("a label must be 0 or 1, found {label}"))
    })?;
    check_weights(scores.len(), weights)
}

/// Checks that there is a weight for each of `rows` rows, and that weights are finite and not
/// negative.
pub(super) fn check_weights(rows: usize, weights: Option<&[f32]>) -> Result<()> {
    let Some(weights) = weights else { return Ok(()) };
    check_length("weights", rows, weights.len())?;
    check_each(weights, |weight| {
        let fine = weight.is_finite() && weight >= 0.0;
        (!fine).then(|| format!("a weight must be finite and not negative, found {weight}"))
    })
}

/// Returns the error for a row of a batch.
pub(super) fn refuse_row(row: usize, reason: &str) -> Error {
    Error::Row { row: row as u64, reason: reason.to_owned() }
}

/// Checks that scores are in `[0, 1]`, because they are used as probabilities.
pub(super) fn check_probabilities(scores: &[f32]) -> Result<()> {
    check_each(scores, |score| {
        let fine = (0.0..=1.0).contains(&score);
        (!fine).then(|| format!("a probability must be in 0 to 1, found {score}"))
    })
}

/// Returns an error for the first row for which `wrong` returns a reason.
fn check_each(values: &[f32], wrong: impl Fn(f32) -> Option<String>) -> Result<()> {
    for (row, &value) in (0..).zip(values) {
        if let Some(reason) = wrong(value) {
            return Err(Error::Row { row, reason });
        }
    }
    Ok(())
}

/// Checks that a column of a metric's input is as long as the scores.
pub(super) fn check_length(column: &str, scores: usize, found: usize) -> Result<()> {
    if scores == found {
        return Ok(());
    }
    Err(refuse(
        column,
        format!("{found} values for {scores} scores; give one value for each score"),
    ))
}

pub(super) fn refuse(column: &str, reason: String) -> Error {
    Error::Input { input: format!("the {column} of an evaluation"), reason }
}

/// Returns the error with its row number increased by `rows`, the number of earlier rows.
pub(super) fn after_rows(error: Error, rows: u64) -> Error {
    match error {
        Error::Row { row, reason } => Error::Row { row: row + rows, reason },
        other => other,
    }
}

/// Returns an unsigned integer for a score. Integers have the same order as their scores (IEEE 754
/// total order). −0 and +0 give the same integer. So a sort compares only integers, and equal
/// scores are ties.
#[inline]
pub(super) fn rank_key(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 }
}

/// Returns the number `rank key << 32 | row number` for each row. The numbers are sorted in
/// ascending order.
pub(super) fn rank_rows(scores: &[f32]) -> Result<Vec<u64>> {
    check_row_count(scores.len())?;
    let key = |(row, &score): (u32, &f32)| u64::from(rank_key(score)) << 32 | u64::from(row);
    let mut ranked: Vec<u64> = (0u32..).zip(scores).map(key).collect();
    ranked.sort_unstable();
    Ok(ranked)
}

/// Checks that row numbers fit into the 32 bits next to a rank key.
pub(super) fn check_row_count(rows: usize) -> Result<()> {
    if u32::try_from(rows).is_ok() {
        return Ok(());
    }
    Err(refuse(
        "scores",
        format!(
            "{rows} rows are more than a ranking with weights or groups supports; evaluate fewer \
             rows"
        ),
    ))
}

/// Returns the weight of a row, which is 1 if there are no weights.
#[inline]
pub(super) fn weight_of(weights: Option<&[f32]>, row: usize) -> f64 {
    weights.map_or(1.0, |weights| f64::from(weights[row]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_the_scores_do() {
        let ascending = [f32::NEG_INFINITY, -3.5, -1e-40, 0.0, 1e-40, 0.25, 7.0, f32::INFINITY];
        assert!(ascending.windows(2).all(|pair| rank_key(pair[0]) < rank_key(pair[1])));
        assert_eq!(rank_key(-0.0), rank_key(0.0));
    }
}
