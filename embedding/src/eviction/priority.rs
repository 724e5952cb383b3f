//! The priority of a row, which defines the order in which rows are evicted.
//!
//! A priority is a number. While two rows are not pushed, the order of their priorities does not
//! change, although their frequencies and scores decay with time. Decay multiplies the values of
//! all rows by the same factor, so the order of the values stays the same. The priority by
//! frequency or by score is the logarithm of the value at a fixed time. For example, it is
//! `log2(count) * half_life + last_step` for a frequency that halves every `half_life` steps. So
//! decay writes nothing, and rows that were visited in different steps can be compared.
//!
//! The priority is computed from the companion row when a slot is visited. So it costs a push
//! nothing.

use zillion_feature::Use;

use zillion_rows::row::Meta;
use zillion_rows::{Eviction, UseStatistics};

/// The value by which rows are ordered for eviction. The row with the lowest priority is evicted
/// first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Priority {
    /// The step or the event time of the last push.
    Seen,
    /// The number of pushes, which is halved for every `half_life` since the last push.
    Frequency { half_life: f64 },
    /// The weighted sum of shows and clicks. `ageing` is the number of times that the sum is halved
    /// in a period of length `every`.
    Score { show: f64, click: f64, ageing: f64, every: u32 },
    /// The squared L2 norm of the weights.
    Norm,
}

impl Priority {
    /// Returns the priority of an eviction policy, or `None` if the policy never evicts rows.
    pub(crate) fn new(eviction: &Eviction, statistics: Option<&UseStatistics>) -> Option<Self> {
        Some(match *eviction {
            Eviction::Never => return None,
            Eviction::Unseen { .. } | Eviction::UnseenFor { .. } | Eviction::Lru => Self::Seen,
            Eviction::Lfu { half_life, .. } => {
                Self::Frequency { half_life: half_life.units() as f64 }
            }
            Eviction::Score { show_weight, click_weight, .. } => {
                let statistics = statistics?;
                Self::Score {
                    show: show_weight,
                    click: click_weight,
                    ageing: -f64::from(statistics.decay).log2(),
                    every: statistics.every(),
                }
            }
            Eviction::L2 { .. } => Self::Norm,
        })
    }

    /// Returns whether the priority depends on the weights.
    pub(crate) fn needs_weights(self) -> bool {
        self == Self::Norm
    }

    /// Returns the priority of a row. The row with the lowest priority is evicted first.
    #[inline(always)]
    pub(crate) fn of_row(self, meta: Meta, used: Use, weights: &[f32]) -> f64 {
        let last = f64::from(meta.last_step);
        match self {
            Self::Seen => last,
            // In a stream of always new keys, most rows were pushed once.
            Self::Frequency { .. } if meta.count == 1 => last,
            Self::Frequency { half_life } => f64::from(meta.count).log2() * half_life + last,
            Self::Score { show, click, ageing, every } => {
                let score = show * f64::from(used.shows) + click * f64::from(used.clicks);
                score.max(0.0).log2() + f64::from(meta.last_step / every) * ageing
            }
            Self::Norm => weights.iter().map(|&w| f64::from(w) * f64::from(w)).sum(),
        }
    }

    /// Returns the priority that a row has if its value at `time` is `value`. Depending on the
    /// policy, the value is an age, a frequency, a score or a norm. Times and ages are in the unit
    /// of the table.
    pub(crate) fn threshold(self, value: f64, time: u32) -> f64 {
        let now = f64::from(time);
        match self {
            Self::Seen => now - value,
            Self::Frequency { half_life } => value.log2() * half_life + now,
            Self::Score { ageing, every, .. } => value.log2() + f64::from(time / every) * ageing,
            Self::Norm => value * value,
        }
    }
}

/// Converts a priority to an integer. The integers have the same order as the priorities.
#[inline(always)]
pub(crate) fn ordered_bits(priority: f64) -> u64 {
    let bits = priority.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

#[cfg(test)]
mod tests {
    use zillion_rows::Span;

    use super::*;

    fn meta(count: u32, last_step: u32) -> Meta {
        Meta { count, last_step, dirty_epoch: 1 }
    }

    #[test]
    fn bits_order_as_numbers_do() {
        let numbers =
            [f64::NEG_INFINITY, -7.5, -1e-300, -0.0, 0.0, 1e-300, 1.0, 2.0, f64::INFINITY];
        assert!(numbers.windows(2).all(|pair| ordered_bits(pair[0]) < ordered_bits(pair[1])));
    }

    #[test]
    fn a_frequency_halves_with_its_half_life() {
        let lfu = Eviction::Lfu { half_life: Span::Steps(100), below: None, every: None };
        let priority = Priority::new(&lfu, None).unwrap();
        let of = |count, last| priority.of_row(meta(count, last), Use::default(), &[]);
        assert_eq!(of(8, 500), of(4, 600));
        assert_eq!(of(8, 500), of(1, 800));
        assert!(of(9, 500) > of(1, 800) && of(8, 500) > of(1, 799));
        // Eight pushes, of which the last was at step 500, are worth one push at step 800.
        assert_eq!(priority.threshold(1.0, 800), of(8, 500));
    }

    #[test]
    fn a_score_decays_by_whole_periods() {
        let statistics = UseStatistics::by_steps(0.5, 10);
        let score =
            Eviction::Score { show_weight: 1.0, click_weight: 3.0, below: None, every: None };
        let priority = Priority::new(&score, Some(&statistics)).unwrap();
        let of = |shows, clicks, last| priority.of_row(meta(1, last), Use { shows, clicks }, &[]);
        assert_eq!(of(1.0, 1.0, 19), of(4.0, 0.0, 10));
        assert_eq!(of(4.0, 0.0, 19), of(2.0, 0.0, 20));
        assert_eq!(priority.threshold(1.0, 35), of(4.0, 0.0, 10));
        assert_eq!(of(0.0, 0.0, 4_000_000_000), f64::NEG_INFINITY);
    }

    #[test]
    fn a_norm_is_of_all_weights() {
        let l2 = Eviction::L2 { below: None, every: None };
        let priority = Priority::new(&l2, None).unwrap();
        assert_eq!(priority.of_row(meta(1, 1), Use::default(), &[3.0, 0.0, -4.0]), 25.0);
        assert_eq!(priority.threshold(5.0, 9), 25.0);
        assert!(priority.needs_weights() && !Priority::Seen.needs_weights());
    }
}
