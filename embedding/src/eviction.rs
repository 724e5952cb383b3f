//! The eviction of rows: the choice of the rows to remove, and the moment in a step at which they
//! are removed.
//!
//! Eviction counts pushes, and steps or seconds of event time ([`clock`]). It never reads the clock
//! of the machine: the contents of a table are a function of the data and the steps. Dense tables
//! have a fixed vocabulary, so no row of a dense table is evicted.
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
pub(crate) mod clock;
pub(crate) mod displace;
mod limits;
pub(crate) mod permits;
pub(crate) mod pinned;
pub(crate) mod priority;
pub(crate) mod schedule;
mod set;
pub(crate) mod shared_limit;

use zillion_feature::SLOTS;
use zillion_rows::{Eviction, TableSpec};

use crate::eviction::clock::Moment;
use crate::eviction::priority::Priority;

/// The number of visits of a slot in a span of event time after which rows or counts expire. So an
/// expired row stays for at most an eighth of the span longer.
const VISITS: u32 = 8;

/// The limits and the slots of the scheduled eviction after one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Due {
    /// The oldest time at which a kept candidate may have been last seen. Candidates that were last
    /// seen before this time are dropped.
    pub(crate) oldest: u32,
    /// The lowest priority of a kept row. Rows with a lower priority are evicted. `None` if rows
    /// are not visited.
    pub(crate) floor: Option<f64>,
    /// Whether the counters of a filter are halved.
    pub(crate) halves: bool,
    pub(crate) turn: Turn,
}

impl Due {
    /// Returns all scheduled work at the end of a step in a table with these settings and this
    /// priority.
    pub(crate) fn of_table(spec: &TableSpec, priority: Option<Priority>, at: Moment) -> Vec<Self> {
        let mut dues: Vec<Self> = Self::new(&spec.eviction, priority, at).into_iter().collect();
        if let Some(window) = spec.admission_window {
            let window = window.seconds();
            let oldest = at.now.saturating_sub(window);
            let counts =
                Self { oldest, floor: None, halves: false, turn: Turn::during(window, at) };
            let is_filter = !spec.admission.counts_exactly();
            dues.push(match is_filter {
                true => Self { oldest: 0, halves: true, turn: Turn::spaced(window, at), ..counts },
                false => counts,
            });
        }
        dues
    }

    /// Returns the scheduled eviction at the end of a step, in a table with this policy and this
    /// priority. Returns `None` if nothing is evicted on schedule.
    pub(crate) fn new(eviction: &Eviction, priority: Option<Priority>, at: Moment) -> Option<Self> {
        let expiry = |oldest: u32, turn| {
            Some(Self { oldest, floor: Some(f64::from(oldest)), halves: false, turn })
        };
        match *eviction {
            Eviction::Unseen { steps } => {
                let oldest = u64::from(at.now).saturating_sub(steps) as u32;
                expiry(oldest, Turn::every(steps, at.step))
            }
            Eviction::UnseenFor { span } => {
                let oldest = at.now.saturating_sub(span.seconds());
                expiry(oldest, Turn::during(span.seconds(), at))
            }
            _ => {
                let (below, every) = eviction.schedule();
                let floor = Some(priority?.threshold(below?, at.now));
                let turn = Turn::every(every.unwrap_or(SLOTS as u64), at.step);
                Some(Self { oldest: 0, floor, halves: false, turn })
            }
        }
    }
}

/// The slots whose turn it is in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The slots whose number gives a certain remainder after division by the period.
    Remainder { first: usize, period: usize },
    /// A run of turns in event time. Each slot has one turn in [`SLOTS`] turns. The run may be
    /// longer than that.
    Run { first: u64, count: u64 },
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
        Self::Remainder { first: step as usize % period, period }
    }

    /// Returns the turns that a step brings if each slot has [`VISITS`] turns in `span` seconds.
    fn during(span: u32, at: Moment) -> Self {
        Self::spaced(span.div_ceil(VISITS), at)
    }

    /// Returns the turns that a step brings if each slot has one turn in `period` seconds.
    fn spaced(period: u32, at: Moment) -> Self {
        let number = |time: u32| u64::from(time) * SLOTS as u64 / u64::from(period.max(1));
        let first = number(at.before) + 1;
        Self::Run { first, count: (number(at.now) + 1).saturating_sub(first) }
    }

    /// Returns the number of turns of a slot.
    pub(crate) fn turns_of(self, slot: usize) -> u64 {
        match self {
            Self::Remainder { first, period } => u64::from(slot % period == first),
            Self::Run { first, count } => {
                // Slots that follow each other have distant turns, so that all shards have work.
                let number = (slot as u64).reverse_bits() >> (u64::BITS - SLOTS.trailing_zeros());
                let until = number.wrapping_sub(first) % SLOTS as u64;
                count.saturating_sub(until).div_ceil(SLOTS as u64)
            }
        }
    }

    /// Returns the slots in a range whose turn it is, in ascending order.
    pub(crate) fn slots(self, slots: std::ops::Range<usize>) -> impl Iterator<Item = usize> {
        let (first, period) = match self {
            Self::Remainder { first, period } => (first, period),
            Self::Run { .. } => (0, 1),
        };
        let ahead = (first + period - slots.start % period) % period;
        let is_run = matches!(self, Self::Run { .. });
        let all = (slots.start + ahead..slots.end).step_by(period);
        all.filter(move |&slot| !is_run || self.turns_of(slot) > 0)
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
                    let at = Moment::of_step(step);
                    let due = Due::new(&eviction, Some(Priority::Seen), at).unwrap();
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
        let at = Moment::of_step(5);
        assert_eq!(Due::new(&Eviction::Never, None, at), None);
        assert_eq!(Due::new(&Eviction::Lru, Some(Priority::Seen), at), None);
    }

    #[test]
    fn turns_of_event_time_do_not_depend_on_the_steps() {
        let period = 1000;
        let visits = |times: &[u32]| {
            let mut visits = vec![0; SLOTS];
            for pair in times.windows(2) {
                let turn = Turn::spaced(period, Moment { step: 7, before: pair[0], now: pair[1] });
                let whole: Vec<usize> = turn.slots(0..SLOTS).collect();
                let mut cut: Vec<usize> = turn.slots(0..777).collect();
                cut.extend(turn.slots(777..778).chain(turn.slots(778..SLOTS)));
                assert_eq!(cut, whole);
                assert!(whole.iter().all(|&slot| turn.turns_of(slot) > 0));
                (0..SLOTS).for_each(|slot| visits[slot] += turn.turns_of(slot));
            }
            visits
        };
        assert!(visits(&[0, 0]).iter().all(|&v| v == 0));
        for start in [0, 17, 4_000_000] {
            let ends = [start, start + 3 * period];
            assert!(visits(&ends).iter().all(|&v| v == 3), "from {start}");
            let steps: Vec<u32> = (start..=start + 3 * period).step_by(50).collect();
            assert_eq!(visits(&steps), visits(&ends), "from {start}");
        }
    }
}
