//! The life of a key: when it gets a row, and when the row goes.
//!
//! Both count what training does and never time: a table's contents are a function of the data and the
//! steps. Dense tables have a fixed vocabulary and know neither.
//!
//! # Order within a step
//! A key is counted, and its row made, by the push that brings its gradient. Rows go at the end of the step,
//! behind the push and every other rule: between the pull and the push of one step no row goes, and a key
//! that comes back in the next step pulls as its initial row.

use serde::{Deserialize, Serialize};
use zillion_feature::SLOTS;

use crate::candidates::LARGEST_THRESHOLD;

/// When a key gets a row. In a job file: `admission = { kind = "count", at_least = 5 }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}

/// When a row goes. In a job file: `eviction = { kind = "unseen", steps = 10000 }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Eviction {
    /// Never.
    #[default]
    Never,
    /// When its last push lies more than a number of steps back; a key that waits to be admitted is
    /// forgotten by the same rule. Every step visits some of the slots, so that each is visited once in as
    /// many steps, or in 4096 if that is sooner: what has expired is gone by then. A key that is seen again
    /// is new.
    Unseen {
        /// Steps, from 1.
        steps: u64,
    },
}

impl Admission {
    /// Whether every key gets a row at once.
    pub fn is_all(&self) -> bool {
        *self == Self::All
    }

    /// The key and the reason of what is out of range.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        const { assert!(LARGEST_THRESHOLD == 4096, "the message says so") };
        match self {
            Self::Count { at_least } if !(1..=LARGEST_THRESHOLD).contains(at_least) => {
                Some(("at_least", "must be between 1 and 4096"))
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
        match self {
            Self::Unseen { steps: 0 } => Some((
                "steps",
                "must be at least 1: rows go when they have not been seen for longer",
            )),
            _ => None,
        }
    }

    /// What the end of `step` does.
    pub(crate) fn turn(&self, step: u32) -> Option<Turn> {
        let Self::Unseen { steps } = *self else { return None };
        // A power of two, so that slots come round evenly.
        let period = 1 << steps.clamp(1, SLOTS as u64).ilog2();
        let oldest = u64::from(step).saturating_sub(steps) as u32;
        Some(Turn { oldest, first: step as usize % period, period })
    }
}

/// One step's share of an eviction: which slots are visited, and what goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Rows go whose last step lies before this one.
    pub(crate) oldest: u32,
    first: usize,
    period: usize,
}

impl Turn {
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
                    let turn = eviction.turn(step).unwrap();
                    assert_eq!(turn.oldest, step.saturating_sub(steps.min(1 << 20) as u32));
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
        assert_eq!(Eviction::Never.turn(5), None);
    }
}
