//! The relation of one column to the label, measured on rows that the measure was not fitted to.
//!
//! The rows are divided into two halves. The rates of the label are fitted to one half and judged
//! on the other half, and then the other way round. A column is read in two ways: by its values,
//! where each value is an id, and by the order of its numbers, where rows are put into intervals.

use std::collections::HashMap;

use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, MixedHasher};

use crate::profile::Kept;

/// The maximum number of intervals that numbers are put into. Each has about as many rows.
const INTERVALS: usize = 64;
/// The number of rows at the base rate that are added to the rows of each value, so that a value
/// with few rows tells little.
const PRIOR: f64 = 10.0;
/// The minimum number of rows with each label. With fewer rows no relation is measured.
const LEAST: usize = 20;

/// The relation of a column to a label. Losses are the mean cross-entropy in nats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relation {
    /// The number of rows.
    pub(crate) rows: usize,
    /// The loss if the base rate is predicted for each row.
    pub(crate) base: f64,
    /// The loss if the rate of the row's value is predicted.
    pub(crate) by_value: f64,
    /// The loss if the rate of the interval of the row's number is predicted.
    pub(crate) by_order: f64,
    /// The AUC of the better one of the two predictions.
    pub(crate) auc: f64,
}

/// Measures the relation of a column to the label. Returns `None` if the two do not have the same
/// number of rows, or if one of the labels is too rare.
pub(crate) fn relate(column: &[Kept], labels: &[bool]) -> Option<Relation> {
    let positive = labels.iter().filter(|&&label| label).count();
    if column.len() != labels.len() || positive < LEAST || labels.len() - positive < LEAST {
        return None;
    }
    let (mut by_value, mut by_order) = (Judged::default(), Judged::default());
    let mut base = 0.0;
    for half in [0, 1] {
        let is_fitted = |row: usize| mix64(row as u64) & 1 == half;
        let rows = || column.iter().zip(labels).enumerate();
        let fitted = || rows().filter(|(row, _)| is_fitted(*row)).map(|(_, of)| of);
        let held_out = || rows().filter(|(row, _)| !is_fitted(*row)).map(|(_, of)| of);
        let bounds = intervals(fitted().map(|(cell, _)| cell.number));
        let interval = |cell: &Kept| match cell.number.is_nan() {
            true => FeatureKey(u64::MAX),
            false => FeatureKey(bounds.partition_point(|&bound| bound <= cell.number) as u64),
        };
        let (mut values, mut orders) = (Rates::default(), Rates::default());
        for (cell, &label) in fitted() {
            values.add(cell.key, label);
            orders.add(interval(cell), label);
        }
        let rate = values.base();
        for (cell, &label) in held_out() {
            base += loss(rate, label);
            by_value.add(values.rate(cell.key), label);
            by_order.add(orders.rate(interval(cell)), label);
        }
    }
    let rows = labels.len();
    let (by_value, by_order) = (by_value.finish(), by_order.finish());
    Some(Relation {
        rows,
        base: base / rows as f64,
        by_value: by_value.loss,
        by_order: by_order.loss,
        auc: by_value.auc.max(by_order.auc),
    })
}

impl Relation {
    /// Returns whether the order of the numbers predicts the label, and nearly as well as the
    /// values do or better.
    pub(crate) fn has_order(&self) -> bool {
        let (order, value) = (self.base - self.by_order, self.base - self.by_value);
        // A gain of some nats over all rows is no accident.
        order * self.rows as f64 > 8.0 && order >= 0.95 * value
    }
}

/// Returns the bounds between intervals that have about the same number of numbers.
fn intervals(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<f64> = numbers.filter(|x| !x.is_nan()).collect();
    numbers.sort_unstable_by(f64::total_cmp);
    let at = |i: usize| numbers.get(i * numbers.len() / INTERVALS).copied();
    let mut bounds: Vec<f64> = (1..INTERVALS).filter_map(at).collect();
    bounds.dedup();
    bounds
}

/// The rates of the label, by key.
#[derive(Default)]
struct Rates {
    counts: HashMap<FeatureKey, [u32; 2], MixedHasher>,
    total: [u32; 2],
}

impl Rates {
    fn add(&mut self, key: FeatureKey, label: bool) {
        self.counts.entry(key).or_default()[usize::from(label)] += 1;
        self.total[usize::from(label)] += 1;
    }

    /// Returns the rate over all rows, which is never 0 or 1.
    fn base(&self) -> f64 {
        let [negative, positive] = self.total.map(f64::from);
        (positive + 0.5) / (negative + positive + 1.0)
    }

    fn rate(&self, key: FeatureKey) -> f64 {
        let [negative, positive] = self.counts.get(&key).map_or([0.0; 2], |n| n.map(f64::from));
        (positive + PRIOR * self.base()) / (negative + positive + PRIOR)
    }
}

fn loss(rate: f64, label: bool) -> f64 {
    -(if label { rate } else { 1.0 - rate }).ln()
}

/// The predictions for rows with their labels.
#[derive(Default)]
struct Judged {
    rows: Vec<(f64, bool)>,
}

struct Quality {
    loss: f64,
    auc: f64,
}

impl Judged {
    fn add(&mut self, rate: f64, label: bool) {
        self.rows.push((rate, label));
    }

    fn finish(mut self) -> Quality {
        let all = self.rows.len() as f64;
        let loss = self.rows.iter().map(|&(rate, label)| loss(rate, label)).sum::<f64>() / all;
        self.rows.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (mut pairs, mut negatives, mut positives) = (0.0, 0.0, 0.0);
        for equal in self.rows.chunk_by(|a, b| a.0 == b.0) {
            let positive = equal.iter().filter(|(_, label)| *label).count() as f64;
            let negative = equal.len() as f64 - positive;
            // A pair of equal predictions counts as half a pair in the right order.
            pairs += positive * (negatives + negative / 2.0);
            positives += positive;
            negatives += negative;
        }
        Quality { loss, auc: pairs / (positives * negatives) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a column and labels. The chance of a label depends on the value.
    fn drawn(values: u64, chance: impl Fn(u64) -> f64) -> (Vec<Kept>, Vec<bool>) {
        let rows = (0..20_000_u64).map(|row| {
            let value = mix64(row + 7) % values;
            let draw = (mix64(row * 3 + 1) % 10_000) as f64 / 10_000.0;
            let kept = Kept { key: FeatureKey::from_u64(value), number: value as f64 };
            (kept, draw < chance(value))
        });
        rows.unzip()
    }

    #[test]
    fn an_order_is_told_from_ids() {
        let (column, labels) = drawn(5_000, |value| 0.1 + value as f64 / 10_000.0);
        let ordered = relate(&column, &labels).expect("a relation");
        assert!(ordered.has_order(), "{ordered:?}");
        let (column, labels) = drawn(150, |value| (mix64(value) % 100) as f64 / 100.0);
        let ids = relate(&column, &labels).expect("a relation");
        assert!(!ids.has_order() && ids.by_value < ids.by_order, "{ids:?}");
        let (column, labels) = drawn(150, |_| 0.3);
        let nothing = relate(&column, &labels).expect("a relation");
        assert!(!nothing.has_order() && nothing.auc < 0.55, "{nothing:?}");
    }

    #[test]
    fn a_copy_of_the_label_is_found() {
        let (column, labels) = drawn(5, |value| f64::from(u8::from(value >= 3)));
        let relation = relate(&column, &labels).expect("a relation");
        assert!(relation.auc > 0.9999, "{relation:?}");
        assert!(relate(&column[1..], &labels).is_none());
        assert!(relate(&column, &vec![true; labels.len()]).is_none());
    }
}
