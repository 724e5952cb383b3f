//! The true model of the synthetic log, which gives the log odds of each click.
//!
//! The log odds are the sum of three parts that real click logs also have: a bias for each id,
//! inner products between the low-rank vectors of pairs of ids, and effects of the numbers. Some of
//! the numeric effects are not monotone.

use zillion_feature::random::{combine, text_seed};

use super::fields::{IdField, NumericField, normal};
use super::{ID_FIELDS, NUMERIC_FIELDS, Row};

/// The number of rows that are used to fit the intercept.
pub(super) const CALIBRATION_ROWS: u64 = 20_000;
/// The mean click probability of the log.
const BASE_RATE: f64 = 0.256;
/// The number of elements of the vectors for interactions.
const RANK: usize = 3;
/// The maximum number of ids in a field with interactions. In larger fields, a pair of ids is too
/// rare for a model to learn.
const LARGEST_INTERACTING: usize = 120;
/// The standard deviation of the sum of the biases in a row.
const BIASES: f64 = 1.3;
/// The standard deviation of the sum of the interactions in a row.
const INTERACTIONS: f64 = 0.8;
/// The standard deviation of the sum of the numeric effects in a row.
const NUMBERS: f64 = 0.8;

#[derive(Clone, Debug)]
pub(super) struct Truth {
    intercept: f64,
    /// The bias of each id, by field and rank. The last entry of a field is the bias of a missing
    /// value.
    biases: Vec<Vec<f64>>,
    /// The vector of each id, by field and rank. An entry is `None` for a field without
    /// interactions.
    vectors: Vec<Option<Vec<[f64; RANK]>>>,
    /// The slope and the curvature of the effect of each numeric field.
    numbers: [(f64, f64); NUMERIC_FIELDS],
}

impl Truth {
    pub(super) fn plant(seed: u64, ids: &[IdField]) -> Self {
        let stream = text_seed(seed, "truth");
        let draw = |part: u64, field: usize, at: usize| {
            normal(combine(combine(combine(stream, part), field as u64), at as u64))
        };
        let spread = BIASES / (ID_FIELDS as f64).sqrt();
        let biases = ids.iter().enumerate().map(|(field, ids)| {
            (0..=ids.cardinality()).map(|rank| spread * draw(0, field, rank)).collect()
        });
        let interacting = |ids: &IdField| ids.cardinality() <= LARGEST_INTERACTING;
        let partners = ids.iter().filter(|ids| interacting(ids)).count() as f64;
        // With vectors whose elements have the standard deviation s, the inner product of a pair
        // has the standard deviation s² √RANK.
        let pairs = (partners * (partners - 1.0) / 2.0).max(1.0);
        let scale = (INTERACTIONS / (pairs * RANK as f64).sqrt()).sqrt();
        let vectors = ids.iter().enumerate().map(|(field, ids)| {
            interacting(ids).then(|| {
                let vector = |rank| [1, 2, 3].map(|k| scale * draw(k, field, rank));
                (0..=ids.cardinality()).map(vector).collect()
            })
        });
        let share = NUMBERS / (NUMERIC_FIELDS as f64).sqrt();
        let mut numbers = [(0.0, 0.0); NUMERIC_FIELDS];
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = (share * draw(4, at, 0), 0.5 * share * draw(4, at, 1));
        }
        Self { intercept: 0.0, biases: biases.collect(), vectors: vectors.collect(), numbers }
    }

    /// Sets the intercept. With it, the mean click probability for `raw_logits` is the base rate.
    pub(super) fn calibrate(&mut self, raw_logits: &[f64]) {
        let rate = |shift: f64| {
            let sum: f64 = raw_logits.iter().map(|z| 1.0 / (1.0 + (-(z + shift)).exp())).sum();
            sum / raw_logits.len() as f64
        };
        let (mut low, mut high) = (-20.0, 20.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            *(if rate(middle) < BASE_RATE { &mut low } else { &mut high }) = middle;
        }
        self.intercept = low;
    }

    pub(super) fn logit(&self, row: &Row, numbers: &[NumericField]) -> f64 {
        self.intercept + self.raw_logit(row, numbers)
    }

    pub(super) fn raw_logit(&self, row: &Row, numbers: &[NumericField]) -> f64 {
        let mut logit = 0.0;
        let (mut sum, mut squares) = ([0.0; RANK], 0.0);
        for (field, rank) in row.ranks.iter().enumerate() {
            let biases = &self.biases[field];
            let at = rank.map_or(biases.len() - 1, |rank| rank as usize);
            logit += biases[at];
            if let Some(vectors) = &self.vectors[field] {
                for (total, v) in sum.iter_mut().zip(&vectors[at]) {
                    *total += v;
                    squares += v * v;
                }
            }
        }
        // The sum over all pairs is computed in one step: (|Σ v|² - Σ |v|²) / 2.
        logit += (sum.iter().map(|s| s * s).sum::<f64>() - squares) / 2.0;
        for ((x, field), (slope, curvature)) in row.numbers.iter().zip(numbers).zip(self.numbers) {
            if let Some(x) = x {
                let t = field.standardise(*x);
                logit += slope * t + curvature * (t * t - 1.0);
            }
        }
        logit
    }
}
