//! The eviction of rows: the choice of the rows to remove, and the moment in a step at which they
//! are removed.
//!
//! Eviction counts pushes and steps and never reads a clock: the contents of a table are a function
//! of the data and the steps. Dense tables have a fixed vocabulary, so no row of a dense table is
//! evicted.
//!
//! # Order within a step
//! The push that brings the gradient of a key counts the key and creates its row. Rows are evicted
//! at the end of the step, after the push and every other rule. So no row is removed between the
//! pull and the push of one step. A key that was evicted is pulled as its initial row when it comes
//! back in the next step.
//!
//! Each slot has a turn ([`Turn`]). When it is the turn of a slot, its rows with a priority below a
//! given value are evicted on schedule. In a table at its limit, the rows with the lowest priority
//! are evicted ([`capacity`]). The [`priority`] depends on the policy. If a step needs more rows
//! than a table may have, rows are created in the order of the plan, and the remaining keys are
//! refused and counted. A limit holds for each [group](crate::groups) of slots, so a step never
//! needs a sum over several processes.

pub(crate) mod capacity;
pub(crate) mod displace;
mod limits;
pub(crate) mod permits;
pub(crate) mod pinned;
pub(crate) mod priority;
pub(crate) mod schedule;
mod set;
pub(crate) mod shared_limit;

use zillion_feature::SLOTS;
use zillion_rows::Eviction;

use crate::eviction::priority::Priority;

/// The limits and the slots of the scheduled eviction after one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Due {
    /// The oldest step in which a kept candidate may have been last seen. Candidates that were last
    /// seen before this step are dropped.
    pub(crate) oldest: u32,
    /// The lowest priority of a kept row. Rows with a lower priority are evicted.
    pub(crate) floor: f64,
    pub(crate) turn: Turn,
}

impl Due {
    /// Returns the scheduled eviction at the end of `step`, in a table with this policy and this
    /// priority. Returns `None` if nothing is evicted on schedule.
    pub(crate) fn new(eviction: &Eviction, priority: Option<Priority>, step: u32) -> Option<Self> {
        if let Eviction::Unseen { steps } = *eviction {
            let oldest = u64::from(step).saturating_sub(steps) as u32;
            return Some(Self { oldest, floor: f64::from(oldest), turn: Turn::every(steps, step) });
        }
        let (below, every) = eviction.schedule();
        let floor = priority?.threshold(below?, step);
        Some(Self { oldest: 0, floor, turn: Turn::every(every.unwrap_or(SLOTS as u64), step) })
    }
}

/// The slots whose turn it is in one step. These are the slots whose number gives a certain
/// remainder after division by the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    first: usize,
    period: usize,
}

impl Turn {
    /// Returns the turn of `step` if each slot has one turn in a period. The period is at most
    /// `steps` steps and at most 4,096 steps.
    fn every(steps: u64, step: u32) -> Self {
        // The period is a power of two, so that every slot has its turn equally often.
        Self::of_slots(step, 1 << steps.clamp(1, SLOTS as u64).ilog2())
    }

    /// Returns the turn of `step` if each slot has one turn in `period` steps. In each step, it is
    /// then the turn of one slot in `period` slots.
    pub(crate) fn of_slots(step: u32, period: usize) -> Self {
        Self { first: step as usize % period, period }
    }

    /// Returns the slots in a range whose turn it is, in ascending order.
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
                    let due = Due::new(&eviction, Some(Priority::Seen), step).unwrap();
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
        assert_eq!(Due::new(&Eviction::Never, None, 5), None);
        assert_eq!(Due::new(&Eviction::Lru, Some(Priority::Seen), 5), None);
    }
}
