//! The life of a key: when it gets a row, and when the row goes.
//!
//! Both count what training does and never time: a table's contents are a function of the data and the
//! steps. Dense tables have a fixed vocabulary and know neither.
//!
//! # Order within a step
//! A key is counted, and its row made, by the push that brings its gradient. Rows go at the end of the step,
//! behind the push and every other rule: between the pull and the push of one step no row goes, and a key
//! that comes back in the next step pulls as its initial row.
//!
//! Rows go on schedule, below a threshold, when their slot has its turn ([`Turn`]); or at capacity, because the
//! table is full, the least first ([`capacity`]). What "least" means is the [`priority`] of the policy. A step
//! that would fill a table beyond its limit makes rows in the order of its plan, and the keys behind them are
//! refused and counted.

mod bytes;
pub(crate) mod capacity;
mod growth;
mod pinned;
pub(crate) mod priority;

pub use bytes::ByteSize;
pub use growth::Growth;
pub(crate) use pinned::Pinned;
pub use pinned::PinnedId;

use serde::{Deserialize, Serialize};
use zillion_feature::SLOTS;
use zillion_feature::random::combine;

use crate::candidates::LARGEST_THRESHOLD;
use crate::filter;
use priority::Priority;

/// When a key gets a row. In a job file: `admission = { kind = "count", at_least = 5 }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Admission {
    /// By the first push.
    #[default]
    All,
    /// By the push that brings its occurrences in the training data (values, not steps) to a number. Until
    /// then the key reads as its initial row and its gradients are dropped and counted.
    Count {
        /// Occurrences, 1 to 4096.
        at_least: u32,
    },
    /// The same by a counting Bloom filter (Bloom 1970; Fan et al. 2000; blocks of a cache line after Putze,
    /// Sanders, Singler 2007), whose size is a matter of the expected keys and the error, and not of the keys
    /// that come. No key waits longer than by exact counts; some come in early. Counts are halved where more
    /// keys came than were expected.
    Bloom {
        /// Occurrences, 1 to 255.
        at_least: u32,
        /// Keys that wait at the same time.
        keys: u64,
        /// The share of keys whose count is too large when so many wait.
        error: f64,
    },
    /// By a draw at each occurrence: a function of the table's seed, the key and the step.
    Probability {
        /// The chance at one occurrence, above 0 and at most 1.
        p: f64,
    },
}

/// When a row goes. In a job file: `eviction = { kind = "unseen", steps = 10000 }`.
///
/// Where the table has a limit (`max_rows`, `max_bytes`), every kind but `never` makes room: the least rows go.
/// `below` makes rows go on schedule too: those that are worth less, at their slot's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Eviction {
    /// Never. A table at its limit refuses new keys.
    #[default]
    Never,
    /// When its last push lies more than a number of steps back; a key that waits to be admitted is
    /// forgotten by the same rule. Every step visits some of the slots, so that each is visited once in as
    /// many steps, or in 4096 if that is sooner: what has expired is gone by then. A key that is seen again
    /// is new. At capacity those go first that were not seen for longest.
    Unseen {
        /// Steps, from 1.
        steps: u64,
    },
    /// At capacity, those that were not seen for longest.
    Lru,
    /// Those that are used least: pushes, counted half for every `half_life` steps since the last one.
    Lfu {
        /// Steps, from 1.
        half_life: u64,
        /// On schedule: rows go whose count has aged to less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// Steps in which every row is looked at once for that; 4096 where absent, and at most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// Those with the lowest score, `show_weight * shows + click_weight * clicks`, decayed as the table's
    /// statistics say.
    Score {
        /// What a show is worth, from 0.
        show_weight: f64,
        /// What a click is worth, from 0.
        click_weight: f64,
        /// On schedule: rows go whose score is less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// As with `lfu`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
    /// Those whose weights have the smallest L2 norm, all segments together.
    L2 {
        /// On schedule: rows go whose norm is less.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        below: Option<f64>,
        /// As with `lfu`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
    },
}

/// Shows and clicks of each row, decayed by periods. In a job file: `statistics = { decay = 0.98, every_steps = 5000 }`.
///
/// Periods are counted in steps and not in time: the step of a row's last push is in its metadata anyway, so that
/// decay needs no clock and no further word a row, and a run that is repeated decays alike. A day is as many steps
/// as a day's data take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UseStatistics {
    /// What is left of shows and clicks after a period: above 0, at most 1.
    pub decay: f32,
    /// Steps of a period, from 1.
    pub every_steps: u32,
}

impl UseStatistics {
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if !(self.decay > 0.0 && self.decay <= 1.0) {
            return Some(("decay", "must be above 0 and at most 1, which is no decay"));
        }
        (self.every_steps == 0).then_some(("every_steps", "must be at least 1"))
    }

    /// What is left at `step` of what was there at `last`, by whole periods.
    #[inline(always)]
    pub(crate) fn left(&self, last: u32, step: u32) -> f32 {
        let periods = (step / self.every_steps).saturating_sub(last / self.every_steps);
        power(self.decay.into(), periods) as f32
    }
}

/// `base^exponent` by squaring: the same bits everywhere.
#[inline(always)]
fn power(mut base: f64, mut exponent: u32) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

/// Whether one of a key's occurrences in a step is drawn, each with chance `p`. One number decides for all of them.
pub(crate) fn is_drawn(p: f64, seed: u64, key: u64, step: u32, times: u32) -> bool {
    let bits = combine(combine(seed, key), u64::from(step)) >> 11;
    let unit = bits as f64 / (1u64 << 53) as f64;
    unit < 1.0 - power(1.0 - p, times)
}

impl Admission {
    /// Whether every key gets a row at once.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }

    /// The key and the reason of what is out of range.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        const { assert!(LARGEST_THRESHOLD == 4096, "the message says so") };
        const { assert!(filter::LARGEST_THRESHOLD == 255, "the message says so") };
        match *self {
            Self::Count { at_least } if !(1..=LARGEST_THRESHOLD).contains(&at_least) => {
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

impl Eviction {
    /// Whether rows stay for ever.
    pub fn is_never(&self) -> bool {
        *self == Self::Never
    }

    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        if let Self::Unseen { steps: 0 } = self {
            let reason = "must be at least 1: rows go when they have not been seen for longer";
            return Some(("steps", reason));
        }
        if let Self::Lfu { half_life: 0, .. } = self {
            return Some(("half_life", "must be at least 1"));
        }
        if let Self::Score { show_weight, click_weight, .. } = self {
            let is_weight = |w: f64| w.is_finite() && w >= 0.0;
            for (key, weight) in [("show_weight", *show_weight), ("click_weight", *click_weight)] {
                if !is_weight(weight) {
                    return Some((key, "must be zero or a positive number"));
                }
            }
        }
        match self.schedule() {
            (Some(below), _) if !(below.is_finite() && below > 0.0) => {
                Some(("below", "must be a positive number"))
            }
            (_, Some(0)) => Some(("every", "must be at least 1")),
            (None, Some(_)) => Some((
                "every",
                "says how often rows are held against `below`, which is not set; set it, or remove this",
            )),
            _ => None,
        }
    }

    /// The name in job files.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Unseen { .. } => "unseen",
            Self::Lru => "lru",
            Self::Lfu { .. } => "lfu",
            Self::Score { .. } => "score",
            Self::L2 { .. } => "l2",
        }
    }

    /// What rows are worth less than when they go on schedule; of the kinds that rank rows.
    pub(crate) fn below(&self) -> Option<f64> {
        self.schedule().0
    }

    /// `below` and `every` of the kinds that have them.
    fn schedule(&self) -> (Option<f64>, Option<u64>) {
        match *self {
            Self::Never | Self::Unseen { .. } | Self::Lru => (None, None),
            Self::Lfu { below, every, .. }
            | Self::Score { below, every, .. }
            | Self::L2 { below, every } => (below, every),
        }
    }

    /// Whether rows go without a limit of the table.
    pub(crate) fn is_scheduled(&self) -> bool {
        matches!(self, Self::Unseen { .. }) || self.schedule().0.is_some()
    }

    /// What the end of `step` does on schedule to rows of this priority.
    pub(crate) fn turn(&self, priority: Option<Priority>, step: u32) -> Option<Due> {
        if let Self::Unseen { steps } = *self {
            let oldest = u64::from(step).saturating_sub(steps) as u32;
            return Some(Due { oldest, floor: f64::from(oldest), turn: Turn::every(steps, step) });
        }
        let (below, every) = self.schedule();
        let floor = priority?.at(below?, step);
        Some(Due { oldest: 0, floor, turn: Turn::every(every.unwrap_or(SLOTS as u64), step) })
    }
}

/// What goes on schedule at the end of one step, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Due {
    /// Keys that wait go when they were last seen before this step.
    pub(crate) oldest: u32,
    /// Rows of a lower priority go.
    pub(crate) floor: f64,
    pub(crate) turn: Turn,
}

/// One step's share of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    first: usize,
    period: usize,
}

impl Turn {
    /// Each slot once in so many steps, or in 4096 if that is sooner.
    fn every(steps: u64, step: u32) -> Self {
        // A power of two, so that slots come round evenly.
        Self::of_slots(step, 1 << steps.clamp(1, SLOTS as u64).ilog2())
    }

    /// One slot in `period`, others in every step.
    pub(crate) fn of_slots(step: u32, period: usize) -> Self {
        Self { first: step as usize % period, period }
    }

    /// Those of `slots` whose turn it is, ascending.
    pub(crate) fn slots(self, slots: std::ops::Range<usize>) -> impl Iterator<Item = usize> {
        let ahead = (self.first + self.period - slots.start % self.period) % self.period;
        (slots.start + ahead..slots.end).step_by(self.period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_one_turn_in_a_period_whatever_the_shards() {
        for steps in [1, 2, 3, 7, 100, 4095, 4096, 1 << 40] {
            let eviction = Eviction::Unseen { steps };
            let period = (steps.min(4096) as u32 + 1).next_power_of_two() / 2;
            for start in [0, 1, 9000] {
                let mut visits = vec![0; SLOTS];
                for step in start..start + period {
                    let due = eviction.turn(Some(Priority::Seen), step).unwrap();
                    assert_eq!(due.oldest, step.saturating_sub(steps.min(1 << 20) as u32));
                    let turn = due.turn;
                    let whole: Vec<usize> = turn.slots(0..SLOTS).collect();
                    assert_eq!(whole.len(), SLOTS / period as usize);
                    let mut cut: Vec<usize> = turn.slots(0..777).collect();
                    cut.extend(turn.slots(777..778).chain(turn.slots(778..SLOTS)));
                    assert_eq!(cut, whole);
                    whole.iter().for_each(|&slot| visits[slot] += 1);
                }
                assert!(visits.iter().all(|&v| v == 1), "{steps} steps from {start}");
            }
        }
        assert_eq!(Eviction::Never.turn(None, 5), None);
        assert_eq!(Eviction::Lru.turn(Some(Priority::Seen), 5), None);
    }

    #[test]
    fn draws_are_as_likely_as_they_should_be() {
        let share = |p: f64, times: u32| {
            let drawn = (0..100_000u64).filter(|&key| is_drawn(p, 7, key, 3, times)).count();
            drawn as f64 / 1e5
        };
        assert!((share(0.01, 1) - 0.01).abs() < 0.002);
        assert!((share(0.3, 3) - (1.0 - 0.7f64.powi(3))).abs() < 0.01);
        assert!((share(1.0, 1) - 1.0).abs() < 1e-12 && share(0.5, 0) == 0.0);
        // Another step is another draw; the same one is the same.
        let at = |step| (0..1000u64).filter(|&k| is_drawn(0.5, 7, k, step, 1)).collect::<Vec<_>>();
        assert!(at(1) != at(2) && at(1) == at(1));
    }

    #[test]
    fn decay_goes_by_whole_periods() {
        let statistics = UseStatistics { decay: 0.5, every_steps: 10 };
        assert_eq!(statistics.left(19, 20), 0.5);
        assert_eq!(statistics.left(10, 19), 1.0);
        assert_eq!(statistics.left(0, 35), 0.125);
        assert_eq!(statistics.left(20, 10), 1.0);
        assert_eq!(statistics.left(0, u32::MAX), 0.0);
    }
}
