//! The difference between two sets of rows, computed for each column.
//!
//! The measure is the population stability index, Σ (q - p) ln(q / p) over bins, where p and q are
//! the shares of a bin in the two sets. For numbers, the bins are the deciles of the first set. For
//! ids, each of the most frequent values has a bin, and the other values share one bin. The usual
//! rule of thumb is that an index of 0.1 needs attention and that an index of 0.25 shows a real
//! change.

use serde::Serialize;

use super::column::ColumnProfile;

/// The number of the most frequent values that have their own bins.
const TOP: usize = 50;
/// The number of bins for numbers. Each bin has an equal share of the first set.
const BINS: usize = 10;
/// The minimum share of a bin. This minimum replaces a smaller share, so that an empty bin does not
/// make the index infinite.
const FLOOR: f64 = 1e-4;

/// The difference between one column in two sets of rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Drift {
    /// The population stability index of the numbers, or `None` for a column of texts.
    pub numeric: Option<f64>,
    /// The population stability index of the most frequent values of both sets, or `None` if one of
    /// the sets has no values.
    pub values: Option<f64>,
    /// The share of the second set's occurrences whose value does not occur in the first set.
    /// `None` if one of the sets has no values or too many distinct values to store.
    pub unseen: Option<f64>,
    /// The share of missing values in the second set minus their share in the first set.
    pub missing: f64,
}

/// Compares one column in two sets of rows.
pub fn drift(first: &ColumnProfile, second: &ColumnProfile) -> Drift {
    let (a, b) = (&first.values, &second.values);
    let both = a.total > 0 && b.total > 0;
    let unseen = (both && a.count_error == 0 && b.count_error == 0).then(|| {
        let unseen: u64 = b.counts().filter(|&(key, _)| a.count(key) == 0).map(|(_, n)| n).sum();
        unseen as f64 / b.total as f64
    });
    let values = both.then(|| {
        let mut top = a.top(TOP);
        top.extend(b.top(TOP));
        top.sort_unstable_by_key(|&(key, _)| key);
        top.dedup_by_key(|&mut (key, _)| key);
        let share = |n: u64, of: u64| n as f64 / of as f64;
        let mut bins: Vec<(f64, f64)> = top
            .iter()
            .map(|&(key, _)| (share(a.count(key), a.total), share(b.count(key), b.total)))
            .collect();
        let rest = bins.iter().fold((1.0, 1.0), |rest, bin| (rest.0 - bin.0, rest.1 - bin.1));
        bins.push(rest);
        stability(&bins)
    });
    Drift {
        numeric: numeric(&first.numbers, &second.numbers),
        values,
        unseen,
        missing: second.missing_share() - first.missing_share(),
    }
}

fn numeric(first: &[f32], second: &[f32]) -> Option<f64> {
    if first.is_empty() || second.is_empty() {
        return None;
    }
    let mut edges: Vec<f32> = (1..BINS).map(|k| first[k * first.len() / BINS]).collect();
    edges.dedup();
    let shares = |numbers: &[f32]| {
        let below = edges.iter().map(|edge| numbers.partition_point(|x| x < edge));
        let mut start = 0;
        let mut shares: Vec<f64> = Vec::with_capacity(edges.len() + 1);
        for end in below.chain([numbers.len()]) {
            shares.push((end - start) as f64 / numbers.len() as f64);
            start = end;
        }
        shares
    };
    let bins: Vec<(f64, f64)> = shares(first).into_iter().zip(shares(second)).collect();
    Some(stability(&bins))
}

fn stability(bins: &[(f64, f64)]) -> f64 {
    let term = |&(p, q): &(f64, f64)| {
        let (p, q) = (p.max(FLOOR), q.max(FLOOR));
        (q - p) * (q / p).ln()
    };
    bins.iter().map(term).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_do_not_drift_and_shifted_ones_do() {
        let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let shifted: Vec<f32> = numbers.iter().map(|x| x + 500.0).collect();
        assert_eq!(numeric(&numbers, &numbers), Some(0.0));
        assert!(numeric(&numbers, &shifted).is_some_and(|psi| psi > 1.0));
        assert_eq!(numeric(&numbers, &[]), None);
        let constant = vec![3.0; 10];
        assert_eq!(numeric(&constant, &constant), Some(0.0));
    }
}
