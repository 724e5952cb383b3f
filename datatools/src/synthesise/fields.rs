//! The fields of the synthetic log: ids and counts with skewed distributions, and missing values.

use zillion_feature::random::{combine, mix32, mix64};

/// The number of distinct ids in each of `C1` to `C26` of Criteo's Kaggle data set.
const CRITEO: [u64; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194, 27,
    14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];
/// The percentage of missing values in each of `C1` to `C26` of Criteo's Kaggle data set, rounded.
const CRITEO_MISSING: [u64; 26] =
    [0, 0, 3, 3, 0, 12, 0, 0, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 44, 44, 3, 76, 0, 3, 44, 44];
/// The percentage of missing values in each of `I1` to `I13` of Criteo's Kaggle data set.
const CRITEO_NUMERIC_MISSING: [u64; 13] = [45, 0, 21, 22, 3, 22, 4, 0, 4, 45, 4, 76, 22];
/// The mean and the standard deviation of ln(1 + x) for each of `I1` to `I13`. The values are close
/// to those of Criteo's data set.
const LOG_NORMAL: [(f64, f64); 13] = [
    (0.9, 1.0),
    (2.2, 1.8),
    (1.9, 1.3),
    (1.7, 0.9),
    (7.8, 2.2),
    (3.8, 1.5),
    (1.8, 1.3),
    (2.1, 1.0),
    (4.0, 1.3),
    (0.5, 0.4),
    (1.0, 0.7),
    (0.4, 0.6),
    (1.7, 0.9),
];
/// The exponent of the frequency distribution of ids: the frequency of an id is proportional to
/// (rank + SHIFT)^-EXPONENT.
const EXPONENT: f64 = 1.35;
const SHIFT: f64 = 2.0;
/// The mean number of rows for each distinct id of the largest field.
const ROWS_AN_ID: u64 = 20;

/// A categorical field of the log.
#[derive(Clone, Debug)]
pub(super) struct IdField {
    /// A number that makes the raw ids of this field differ from the raw ids of other fields.
    salt: u32,
    missing_percent: u64,
    /// The cumulative probabilities: entry `r` is the probability of an id of rank `r` or less.
    cumulative: Vec<f64>,
}

/// A numeric field. Its values are log-normal numbers, rounded to counts.
#[derive(Clone, Debug)]
pub(super) struct NumericField {
    missing_percent: u64,
    mean: f64,
    deviation: f64,
}

/// Returns the categorical fields of a log of `rows` rows. The fields have the same order by size
/// as in Criteo's data set. No field has more ids than in that data set. The largest field has
/// about `rows / 20` ids.
pub(super) fn id_fields(rows: u64) -> Vec<IdField> {
    let largest = CRITEO.into_iter().max().unwrap_or(1) as f64;
    let top = (rows / ROWS_AN_ID).max(2) as f64;
    let field = |(at, (&criteo, &missing_percent)): (usize, (&u64, &u64))| {
        let scaled = top * (criteo as f64 / largest).powf(0.3);
        let size = criteo.min(scaled as u64).max(2) as usize;
        let mut total = 0.0;
        let mut cumulative: Vec<f64> = (0..size)
            .map(|rank| {
                total += (rank as f64 + SHIFT).powf(-EXPONENT);
                total
            })
            .collect();
        cumulative.iter_mut().for_each(|c| *c /= total);
        IdField { salt: mix32(at as u32 + 1), missing_percent, cumulative }
    };
    CRITEO.iter().zip(&CRITEO_MISSING).enumerate().map(field).collect()
}

pub(super) fn numeric_fields() -> Vec<NumericField> {
    let field =
        |(&(mean, deviation), &missing_percent)| NumericField { missing_percent, mean, deviation };
    LOG_NORMAL.iter().zip(&CRITEO_NUMERIC_MISSING).map(field).collect()
}

impl IdField {
    pub(super) fn cardinality(&self) -> usize {
        self.cumulative.len()
    }

    /// Draws the rank of an id from a random word. Returns `None` for a missing value.
    pub(super) fn draw(&self, word: u64) -> Option<u32> {
        if mix64(word ^ 1) % 100 < self.missing_percent {
            return None;
        }
        let at = self.cumulative.partition_point(|&c| c <= unit(word));
        Some(at.min(self.cumulative.len() - 1) as u32)
    }

    /// Returns the raw id of a rank, which consists of 32 mixed bits like the hashes in Criteo's
    /// files.
    pub(super) fn raw(&self, rank: u32) -> i64 {
        i64::from(mix32(rank ^ self.salt))
    }
}

impl NumericField {
    pub(super) fn draw(&self, word: u64) -> Option<f32> {
        if mix64(word ^ 1) % 100 < self.missing_percent {
            return None;
        }
        Some((self.mean + self.deviation * normal(word)).exp().floor().min(1e6) as f32)
    }

    /// Returns the standardised logarithm of a value: its distance from the mean in standard
    /// deviations, limited to the range from -3 to 3.
    pub(super) fn standardise(&self, x: f32) -> f64 {
        ((f64::from(x).ln_1p() - self.mean) / self.deviation).clamp(-3.0, 3.0)
    }
}

/// Converts a random word to a number from 0 (included) to 1 (excluded).
pub(super) fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// Draws a number from an almost normal distribution with mean 0 and variance 1. The number is a
/// scaled sum of eight uniform numbers, so it is bounded and never extreme.
pub(super) fn normal(word: u64) -> f64 {
    let sum: f64 = (0..8).map(|k| unit(combine(word, k))).sum();
    (sum - 4.0) * (12.0f64 / 8.0).sqrt()
}
