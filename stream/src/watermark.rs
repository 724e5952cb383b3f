//! Watermarks: the event time up to which all events of a stream are taken to have arrived.
//!
//! The mark of a partition is the highest event time that the partition has shown, less the allowed
//! disorder. The watermark of a join is the lowest mark of the partitions that are not idle. A
//! partition without any event holds the watermark where it is, until it has an event or is idle.
//!
//! Nothing here reads a clock. A partition becomes idle and comes back by decisions of the log, so
//! that a replay gives the same watermarks.
//!
//! # Invariants
//! * A watermark never goes back. A partition that comes back with older events does not lower it.
//! * A refused event changes no watermark.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::partition::{EventTime, Partition};

/// The end of the event times that a joiner can store (the year 6429), in milliseconds.
pub(crate) const TIME_END: i64 = 1 << 47;

/// The rules by which event times move watermarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRules {
    /// The number of milliseconds by which events of a partition may be out of order.
    pub disorder: u64,
    /// The number of milliseconds by which an event may be ahead of the latest accepted event.
    pub max_ahead: u64,
    /// The number of refused events in a row after which a partition's jump ahead is accepted. They
    /// must lie within `max_ahead` of each other. So a stream goes on after a long pause, while
    /// single events with a wrong time stay refused.
    pub accept_jump_after: NonZeroU32,
    /// The time from which `max_ahead` is reckoned before the first event. Without it, the first
    /// event is accepted whatever its time is.
    pub start: Option<EventTime>,
}

/// The reason why the time of an event is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RefusedTime {
    /// The event has no time.
    Missing,
    /// The time is before 1970.
    Negative,
    /// The time is more than `max_ahead` later than that of the latest accepted event.
    Ahead,
}

/// The partition is not among those that were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is unknown to the join; add it before its first event")]
pub struct UnknownPartition(pub Partition);

/// The marks of all partitions of a join, and its watermark.
#[derive(Clone, Debug)]
pub struct Watermarks {
    rules: TimeRules,
    state: WatermarkState,
}

/// The part of [`Watermarks`] that a checkpoint stores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatermarkState {
    partitions: Vec<(Partition, Mark)>,
    highest: Option<EventTime>,
    watermark: Option<EventTime>,
}

/// The progress of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mark {
    highest: Option<EventTime>,
    is_idle: bool,
    jump: Option<Jump>,
}

/// The refused events ahead that a partition has shown without another event between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Jump {
    events: u32,
    lowest: EventTime,
    highest: EventTime,
}

impl WatermarkState {
    /// Returns the stored watermark of the join.
    pub(crate) fn watermark(&self) -> Option<EventTime> {
        self.watermark
    }
}

impl Watermarks {
    /// Creates watermarks without partitions.
    pub fn new(rules: TimeRules) -> Self {
        Self { rules, state: WatermarkState::default() }
    }

    /// Creates watermarks that go on from a stored state. If `rules` have a smaller disorder than
    /// the rules before, the watermark rises at once.
    pub fn restore(rules: TimeRules, state: WatermarkState) -> Self {
        let mut restored = Self { rules, state };
        restored.raise();
        restored
    }

    /// Sets the rules that hold from now on. If they have a smaller disorder than the rules before,
    /// the watermark rises at once.
    pub fn set_rules(&mut self, rules: TimeRules) {
        self.rules = rules;
        self.raise();
    }

    /// Returns the state for a checkpoint.
    pub fn state(&self) -> &WatermarkState {
        &self.state
    }

    /// Returns the watermark of the join, or `None` before every partition has shown an event or
    /// was idle.
    pub fn watermark(&self) -> Option<EventTime> {
        self.state.watermark
    }

    /// Returns the mark of each partition: its highest event time less the allowed disorder, and
    /// whether it is idle. The list is in the order of partitions.
    pub fn marks(&self) -> BTreeMap<Partition, (Option<EventTime>, bool)> {
        let mark = |mark: &Mark| (mark.highest.map(|time| self.lowered(time)), mark.is_idle);
        self.state.partitions.iter().map(|(partition, m)| (*partition, mark(m))).collect()
    }

    /// Adds a partition. A partition that is known already is not changed.
    pub fn add(&mut self, partition: Partition) {
        if let Err(at) = self.find(partition) {
            self.state.partitions.insert(at, (partition, Mark::default()));
        }
    }

    /// Leaves a partition out of the watermark until [`Watermarks::set_back`].
    ///
    /// # Errors
    /// Returns an error if the partition was not added.
    pub fn set_idle(&mut self, partition: Partition) -> Result<(), UnknownPartition> {
        self.mark(partition)?.is_idle = true;
        self.raise();
        Ok(())
    }

    /// Lets a partition count in the watermark again.
    ///
    /// # Errors
    /// Returns an error if the partition was not added.
    pub fn set_back(&mut self, partition: Partition) -> Result<(), UnknownPartition> {
        self.mark(partition)?.is_idle = false;
        self.raise();
        Ok(())
    }

    /// Judges the time of an event and returns it if it is accepted. The watermark does not move
    /// before [`Watermarks::advance`].
    ///
    /// # Errors
    /// Returns an error if the partition was not added.
    pub fn check(
        &mut self,
        partition: Partition,
        time: Option<EventTime>,
    ) -> Result<Result<EventTime, RefusedTime>, UnknownPartition> {
        let latest = self.state.highest.or(self.rules.start);
        let rules = self.rules;
        let mark = self.mark(partition)?;
        let Some(time) = time else { return Ok(Err(RefusedTime::Missing)) };
        if time.0 < 0 {
            return Ok(Err(RefusedTime::Negative));
        }
        if time.0 >= TIME_END {
            return Ok(Err(RefusedTime::Ahead));
        }
        let is_ahead = latest.is_some_and(|latest| later_by(time, latest) > rules.max_ahead);
        if !is_ahead {
            mark.jump = None;
            return Ok(Ok(time));
        }
        let jump = match mark.jump {
            Some(jump) => Jump {
                events: jump.events.saturating_add(1),
                lowest: jump.lowest.min(time),
                highest: jump.highest.max(time),
            },
            None => Jump { events: 1, lowest: time, highest: time },
        };
        if later_by(jump.highest, jump.lowest) > rules.max_ahead {
            mark.jump = Some(Jump { events: 1, lowest: time, highest: time });
        } else if jump.events >= rules.accept_jump_after.get() {
            mark.jump = None;
            return Ok(Ok(time));
        } else {
            mark.jump = Some(jump);
        }
        Ok(Err(RefusedTime::Ahead))
    }

    /// Moves the marks by the time of an accepted event.
    ///
    /// # Errors
    /// Returns an error if the partition was not added.
    pub fn advance(
        &mut self,
        partition: Partition,
        time: EventTime,
    ) -> Result<(), UnknownPartition> {
        let mark = self.mark(partition)?;
        let before = mark.highest;
        if before.is_some_and(|highest| highest >= time) {
            return Ok(());
        }
        mark.highest = Some(time);
        let is_idle = mark.is_idle;
        self.state.highest = self.state.highest.max(Some(time));
        // The watermark can only rise if this partition was at it or below it.
        let held = before.is_none_or(|time| Some(self.lowered(time)) <= self.state.watermark);
        if held && !is_idle {
            self.raise();
        }
        Ok(())
    }

    /// Raises the watermark to the lowest mark of the partitions that are not idle. If all are
    /// idle, the watermark stays.
    fn raise(&mut self) {
        let counted = self.state.partitions.iter().filter(|(_, mark)| !mark.is_idle);
        // `None` is less than any time: a partition without an event holds the watermark.
        if let Some(lowest) = counted.map(|(_, mark)| mark.highest).min() {
            let lowest = lowest.map(|time| self.lowered(time));
            self.state.watermark = self.state.watermark.max(lowest);
        }
    }

    fn lowered(&self, time: EventTime) -> EventTime {
        EventTime(time.0.saturating_sub_unsigned(self.rules.disorder))
    }

    fn mark(&mut self, partition: Partition) -> Result<&mut Mark, UnknownPartition> {
        let at = self.find(partition).map_err(|_| UnknownPartition(partition))?;
        Ok(&mut self.state.partitions[at].1)
    }

    fn find(&self, partition: Partition) -> Result<usize, usize> {
        self.state.partitions.binary_search_by_key(&partition, |(known, _)| *known)
    }
}

/// Returns the number of milliseconds by which `time` is later than `other`; 0 if it is not.
fn later_by(time: EventTime, other: EventTime) -> u64 {
    if time > other { time.0.abs_diff(other.0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: i64 = 365 * 24 * 3_600_000;

    fn partition(number: u32) -> Partition {
        Partition { stream: 0, number }
    }

    fn watermarks(partitions: u32) -> Watermarks {
        let mut marks = Watermarks::new(TimeRules {
            disorder: 10,
            max_ahead: 1_000,
            accept_jump_after: NonZeroU32::new(3).unwrap(),
            start: None,
        });
        for number in 0..partitions {
            marks.add(partition(number));
        }
        marks
    }

    fn see(marks: &mut Watermarks, number: u32, time: i64) -> Result<(), RefusedTime> {
        let time = marks.check(partition(number), Some(EventTime(time))).unwrap()?;
        marks.advance(partition(number), time).unwrap();
        Ok(())
    }

    fn low(marks: &Watermarks) -> Option<i64> {
        marks.watermark().map(|time| time.0)
    }

    #[test]
    fn a_first_event_far_ahead_of_the_start_is_refused() {
        let mut marks = watermarks(1);
        marks.set_rules(TimeRules { start: Some(EventTime(YEAR)), ..marks.rules });
        assert_eq!(see(&mut marks, 0, 2 * YEAR), Err(RefusedTime::Ahead));
        assert_eq!(low(&marks), None);
        // A stream of the past begins before the start.
        see(&mut marks, 0, 500).unwrap();
        assert_eq!(low(&marks), Some(490));
        // A clock that is behind the events gives way to events that agree with each other.
        let mut marks = watermarks(1);
        marks.set_rules(TimeRules { start: Some(EventTime(0)), ..marks.rules });
        for _ in 0..2 {
            assert_eq!(see(&mut marks, 0, YEAR), Err(RefusedTime::Ahead));
        }
        see(&mut marks, 0, YEAR).unwrap();
    }

    #[test]
    fn the_watermark_is_the_lowest_mark() {
        let mut marks = watermarks(2);
        see(&mut marks, 0, 500).unwrap();
        assert_eq!(low(&marks), None, "the other partition has shown nothing");
        see(&mut marks, 1, 300).unwrap();
        assert_eq!(low(&marks), Some(290));
        see(&mut marks, 0, 900).unwrap();
        assert_eq!(low(&marks), Some(290));
        see(&mut marks, 1, 200).unwrap();
        assert_eq!(low(&marks), Some(290), "an older event changes nothing");
        see(&mut marks, 1, 1_000).unwrap();
        assert_eq!(low(&marks), Some(890));
        assert_eq!(marks.marks()[&partition(1)], (Some(EventTime(990)), false));
    }

    #[test]
    fn an_idle_partition_does_not_hold_the_watermark() {
        let mut marks = watermarks(3);
        see(&mut marks, 0, 500).unwrap();
        see(&mut marks, 1, 300).unwrap();
        marks.set_idle(partition(2)).unwrap();
        assert_eq!(low(&marks), Some(290));
        marks.set_idle(partition(1)).unwrap();
        assert_eq!(low(&marks), Some(490));
        // The partition comes back with older events: the watermark stays until they pass it.
        marks.set_back(partition(1)).unwrap();
        see(&mut marks, 1, 400).unwrap();
        assert_eq!(low(&marks), Some(490));
        see(&mut marks, 0, 800).unwrap();
        assert_eq!(low(&marks), Some(490));
        see(&mut marks, 1, 700).unwrap();
        assert_eq!(low(&marks), Some(690));
        for number in [1, 0] {
            marks.set_idle(partition(number)).unwrap();
        }
        assert_eq!(low(&marks), Some(790), "the last partition alone decides");
        see(&mut marks, 1, 1_500).unwrap();
        assert_eq!(low(&marks), Some(790), "all partitions are idle");
    }

    #[test]
    fn wrong_times_are_refused_and_move_nothing() {
        let mut marks = watermarks(1);
        see(&mut marks, 0, 5_000).unwrap();
        let before = marks.state().watermark;
        assert_eq!(see(&mut marks, 0, 5_000 + YEAR), Err(RefusedTime::Ahead));
        assert_eq!(see(&mut marks, 0, i64::MAX), Err(RefusedTime::Ahead));
        assert_eq!(see(&mut marks, 0, -1), Err(RefusedTime::Negative));
        assert_eq!(marks.check(partition(0), None).unwrap(), Err(RefusedTime::Missing));
        assert_eq!(marks.state().watermark, before);
        see(&mut marks, 0, 6_000).unwrap();
        assert_eq!(see(&mut marks, 0, 7_001), Err(RefusedTime::Ahead));
    }

    #[test]
    fn a_start_protects_the_first_event() {
        let mut marks = watermarks(1);
        marks.rules.start = Some(EventTime(1_000));
        assert_eq!(see(&mut marks, 0, YEAR), Err(RefusedTime::Ahead));
        see(&mut marks, 0, 1_500).unwrap();
        assert_eq!(low(&marks), Some(1_490));
    }

    #[test]
    fn a_stream_goes_on_after_a_long_pause() {
        let mut marks = watermarks(1);
        see(&mut marks, 0, 1_000).unwrap();
        // Single events ahead never agree with the events between them.
        for _ in 0..10 {
            assert_eq!(see(&mut marks, 0, YEAR), Err(RefusedTime::Ahead));
            see(&mut marks, 0, 1_100).unwrap();
        }
        // Events that disagree with each other are no jump.
        for step in 1..10 {
            assert_eq!(see(&mut marks, 0, step * YEAR), Err(RefusedTime::Ahead));
        }
        assert_eq!(see(&mut marks, 0, YEAR), Err(RefusedTime::Ahead));
        assert_eq!(see(&mut marks, 0, YEAR + 5), Err(RefusedTime::Ahead));
        see(&mut marks, 0, YEAR + 7).unwrap();
        assert_eq!(low(&marks), Some(YEAR - 3));
    }

    #[test]
    fn an_unknown_partition_is_an_error() {
        let mut marks = watermarks(1);
        let error = marks.set_idle(partition(7)).unwrap_err().to_string();
        assert_eq!(
            error,
            "partition 7 of stream 0 is unknown to the join; add it before its first event"
        );
        assert!(marks.advance(partition(7), EventTime(1)).is_err());
        assert!(marks.set_back(partition(7)).is_err());
    }

    #[test]
    fn a_restored_watermark_moves_on_with_another_disorder() {
        let mut marks = watermarks(2);
        marks.rules.disorder = 100;
        see(&mut marks, 0, 1_000).unwrap();
        see(&mut marks, 1, 1_500).unwrap();
        assert_eq!(low(&marks), Some(900));
        let smaller = TimeRules { disorder: 10, ..marks.rules };
        let mut restored = Watermarks::restore(smaller, marks.state().clone());
        assert_eq!(low(&restored), Some(990));
        see(&mut restored, 0, 1_020).unwrap();
        assert_eq!(low(&restored), Some(1_010));
        let larger = TimeRules { disorder: 300, ..marks.rules };
        let mut restored = Watermarks::restore(larger, marks.state().clone());
        assert_eq!(low(&restored), Some(900), "a watermark never goes back");
        see(&mut restored, 0, 1_200).unwrap();
        assert_eq!(low(&restored), Some(900));
        see(&mut restored, 0, 1_250).unwrap();
        assert_eq!(low(&restored), Some(950));
        // New rules change the watermark in the same way.
        marks.set_rules(larger);
        assert_eq!(low(&marks), Some(900), "a watermark never goes back");
        marks.set_rules(smaller);
        assert_eq!(low(&marks), Some(990));
    }

    #[test]
    fn a_restored_state_goes_on() {
        let mut marks = watermarks(2);
        see(&mut marks, 0, 1_000).unwrap();
        see(&mut marks, 1, 1_200).unwrap();
        let _ = see(&mut marks, 1, YEAR);
        let text = serde_json::to_string(marks.state()).unwrap();
        let state = serde_json::from_str(&text).unwrap();
        let mut restored = Watermarks::restore(marks.rules, state);
        assert_eq!(restored.state(), marks.state());
        for (number, time) in [(1, YEAR), (1, YEAR), (0, 1_500), (1, 1_600)] {
            assert_eq!(see(&mut restored, number, time), see(&mut marks, number, time));
            assert_eq!(restored.state(), marks.state());
        }
    }
}
