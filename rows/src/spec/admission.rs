//! The admission of keys: the condition under which a key gets a row.

use serde::{Deserialize, Serialize};
use zillion_feature::random::combine;

use super::eviction::power;
use crate::candidate;
use crate::filter;

/// The condition under which a key gets a row. In a job file: `admission = { kind = "count",
/// at_least = 5 }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Admission {
    /// The first push of a key creates its row.
    #[default]
    All,
    /// A key gets a row after a number of occurrences in the training data. The push that reaches
    /// the threshold creates the row. An occurrence is a value in the data, so a key can occur
    /// several times in a step. Before the threshold, the key reads as its initial row, and its
    /// gradients are dropped and counted.
    Count {
        /// The threshold: a number of occurrences from 1 to 4096.
        at_least: u32,
    },
    /// A counting Bloom filter counts the occurrences of keys (Bloom 1970; Fan et al. 2000; with
    /// blocks of one cache line as in Putze, Sanders, Singler 2007). The size of the filter depends
    /// only on the expected number of keys and on the error. Some keys are admitted too early. A
    /// key never waits longer than with exact counts, unless counts were halved. All counts are
    /// halved when more keys occur than expected.
    Bloom {
        /// The threshold: a number of occurrences from 1 to 255.
        at_least: u32,
        /// The expected number of keys that wait at the same time.
        keys: u64,
        /// The share of keys whose count is too large at the time when `keys` keys wait.
        error: f64,
    },
    /// Each occurrence admits the key with a given probability. The random draw is a function of
    /// the table's seed, the key and the step.
    Probability {
        /// The probability of admission at one occurrence, above 0 and at most 1.
        p: f64,
    },
}

/// Returns whether a key is admitted by `times` occurrences in one step, if each occurrence admits
/// the key with probability `p`. One random number decides for all of these occurrences together.
pub fn is_drawn(p: f64, seed: u64, key: u64, step: u32, times: u32) -> bool {
    let bits = combine(combine(seed, key), u64::from(step)) >> 11;
    let unit = bits as f64 / (1u64 << 53) as f64;
    unit < 1.0 - power(1.0 - p, times)
}

impl Admission {
    /// Returns whether every key gets a row at once.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }

    /// Returns whether waiting keys are counted exactly. Exact counts require that the keys are
    /// stored.
    pub fn counts_exactly(&self) -> bool {
        matches!(self, Self::Count { .. })
    }

    /// Returns the key and the allowed values of the first setting that is out of range, or `None`
    /// if all settings are valid.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        const { assert!(candidate::LARGEST_THRESHOLD == 4096, "the text below names this number") };
        const { assert!(filter::LARGEST_THRESHOLD == 255, "the text below names this number") };
        match *self {
            Self::Count { at_least } if !(1..=candidate::LARGEST_THRESHOLD).contains(&at_least) => {
                Some(("at_least", "must be between 1 and 4096"))
            }
            Self::Bloom { at_least, .. }
                if !(1..=filter::LARGEST_THRESHOLD).contains(&at_least) =>
            {
                Some((
                    "at_least",
                    "must be between 1 and 255 for a filter; `kind = \"count\"` counts to 4096",
                ))
            }
            Self::Bloom { keys, .. } if !(1..=filter::MOST_KEYS).contains(&keys) => {
                Some(("keys", "must be between 1 and 100000000000"))
            }
            Self::Bloom { error, .. } if !(1e-6..=0.5).contains(&error) => {
                Some(("error", "must be between 0.000001 and 0.5"))
            }
            Self::Probability { p } if !(p > 0.0 && p <= 1.0) => {
                Some(("p", "must be above 0 and at most 1"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_as_likely_as_they_should_be() {
        let share = |p: f64, times: u32| {
            let drawn = (0..100_000u64).filter(|&key| is_drawn(p, 7, key, 3, times)).count();
            drawn as f64 / 1e5
        };
        assert!((share(0.01, 1) - 0.01).abs() < 0.002);
        assert!((share(0.3, 3) - (1.0 - 0.7f64.powi(3))).abs() < 0.01);
        assert!((share(1.0, 1) - 1.0).abs() < 1e-12 && share(0.5, 0) == 0.0);
        // Another step gives another draw, and the same step gives the same draw.
        let at = |step| (0..1000u64).filter(|&k| is_drawn(0.5, 7, k, step, 1)).collect::<Vec<_>>();
        assert!(at(1) != at(2) && at(1) == at(1));
    }
}
