//! The inputs of a joiner: impressions, feedback, decisions about partitions, the end.

use super::engine::{Emission, Joiner};
use super::error::{JoinError, JoinResult};
use super::events::{Feedback, Impression, Outcome, Reason, Refusal};
use super::feedback::{Early, FeedbackValue, Joined};
use super::key::Key;
use super::record::{self, HEAD, Head, Rank};
use super::settings::{Emit, Late};
use crate::partition::{EventTime, Partition};
use crate::watermark::{RefusedTime, TimeRules};

/// The part of the bound of memory that early feedback may fill.
const EARLY_PART: u64 = 4;

impl Joiner {
    /// Sets the rules of event times that hold from now on. A smaller disorder raises the
    /// watermark. The rows that become due by it are to be taken before the next input.
    pub fn set_rules(&mut self, rules: TimeRules) {
        let before = self.watermarks.watermark();
        self.watermarks.set_rules(rules);
        if self.watermarks.watermark() != before {
            self.is_drained = false;
            self.expire_early();
        }
    }

    /// Adds a partition, whose events move the watermark from now on.
    ///
    /// # Errors
    /// Returns an error if rows of the last input were not taken.
    pub fn add_partition(&mut self, partition: Partition) -> JoinResult<()> {
        self.require_drained()?;
        self.watermarks.add(partition);
        self.is_drained = false;
        Ok(())
    }

    /// Applies the decision that a partition is idle: the watermark does not wait for it.
    ///
    /// # Errors
    /// Returns an error if the partition is unknown, or if rows of the last input were not taken.
    pub fn set_idle(&mut self, partition: Partition) -> JoinResult<()> {
        self.require_drained()?;
        self.watermarks.set_idle(partition)?;
        self.is_drained = false;
        self.expire_early();
        Ok(())
    }

    /// Applies the decision that an idle partition has come back.
    ///
    /// # Errors
    /// Returns an error if the partition is unknown, or if rows of the last input were not taken.
    pub fn set_back(&mut self, partition: Partition) -> JoinResult<()> {
        self.require_drained()?;
        self.watermarks.set_back(partition)?;
        self.is_drained = false;
        self.expire_early();
        Ok(())
    }

    /// Takes an impression. It is judged by the watermark before it, and then moves the watermark.
    ///
    /// # Errors
    /// Returns an error if the partition is unknown, if rows of the last input were not taken, or
    /// if a segment cannot be written, read or removed.
    pub fn add_impression(
        &mut self,
        partition: Partition,
        impression: Impression<'_>,
    ) -> JoinResult<Outcome> {
        self.require_drained()?;
        let weight = impression.weight;
        let refusal = if !self.sampling.is_usable(weight) {
            Some(Refusal::Number)
        } else if (impression.row.len() + HEAD) as u64 > self.settings.segment_bytes() {
            Some(Refusal::Large)
        } else {
            None
        };
        let time = match self.judge(partition, impression.time, refusal)? {
            Ok(time) => time,
            Err(refusal) => return Ok(Outcome::Refused(refusal)),
        };
        let outcome = self.take_impression(&impression, time);
        let outcome = self.watch(outcome)?;
        self.advance(partition, time)?;
        Ok(outcome)
    }

    /// Takes feedback. It is judged by the watermark before it, and then moves the watermark.
    ///
    /// # Errors
    /// Returns an error if the partition is unknown, if rows of the last input were not taken, or
    /// if a segment cannot be read.
    pub fn add_feedback(
        &mut self,
        partition: Partition,
        feedback: Feedback<'_>,
    ) -> JoinResult<Outcome> {
        self.require_drained()?;
        let refusal = (!feedback.value.value.is_finite()).then_some(Refusal::Number);
        let time = match self.judge(partition, feedback.time, refusal)? {
            Ok(time) => time,
            Err(refusal) => return Ok(Outcome::Refused(refusal)),
        };
        let outcome = self.take_feedback(&feedback, time);
        let outcome = self.watch(outcome)?;
        self.advance(partition, time)?;
        Ok(outcome)
    }

    /// Ends the stream: all pending rows become due as they stand, and early feedback is counted as
    /// unmatched.
    ///
    /// # Errors
    /// Returns an error if rows of the last input were not taken.
    pub fn end(&mut self) -> JoinResult<()> {
        self.require_drained()?;
        self.is_ending = true;
        self.is_drained = false;
        while self.feedback.expire_one(i64::MAX) {
            self.counters.unmatched_feedback += 1;
        }
        Ok(())
    }

    /// Checks that the joiner can take an input: the rows of the last one were taken.
    fn require_drained(&self) -> JoinResult<()> {
        if self.has_failed {
            return Err(JoinError::Stopped);
        }
        if self.is_drained { Ok(()) } else { Err(JoinError::Undrained("the next input")) }
    }

    /// Judges the time of an event, then whatever else is wrong with it, and counts a refusal.
    fn judge(
        &mut self,
        partition: Partition,
        time: Option<EventTime>,
        other: Option<Refusal>,
    ) -> JoinResult<Result<EventTime, Refusal>> {
        let checked = self.watermarks.check(partition, time)?;
        self.is_drained = false;
        let refusal = match (checked, other) {
            (Ok(time), None) => return Ok(Ok(time)),
            (Err(reason), _) => Refusal::Time(reason),
            (Ok(_), Some(refusal)) => refusal,
        };
        let counters = &mut self.counters;
        *match refusal {
            Refusal::Time(RefusedTime::Missing) => &mut counters.refused_missing,
            Refusal::Time(RefusedTime::Negative) => &mut counters.refused_negative,
            Refusal::Time(RefusedTime::Ahead) => &mut counters.refused_ahead,
            Refusal::Large => &mut counters.refused_large,
            Refusal::Number => &mut counters.refused_number,
        } += 1;
        Ok(Err(refusal))
    }

    fn take_impression(
        &mut self,
        impression: &Impression<'_>,
        time: EventTime,
    ) -> JoinResult<Outcome> {
        if self.has_passed(self.window_end(time.0)) {
            self.counters.late_impressions += 1;
            return Ok(Outcome::Late);
        }
        let key = Key::of(impression.key);
        if self.pending.get(key).is_some() {
            self.counters.duplicate_impressions += 1;
            return Ok(Outcome::Duplicate);
        }
        self.counters.impressions += 1;
        // A row that is never emitted again needs no bytes.
        let is_kept = self.settings.emit != Emit::Now(Late::Drop);
        let kept = if is_kept { impression.row } else { &[] };
        let weight = impression.weight;
        let rank = Rank { time: time.0, sequence: self.sequence };
        self.sequence += 1;
        let head = Head { key, rank, weight, row_bytes: kept.len() as u32 };
        self.pending.insert(&head, kept)?;
        let is_now = self.settings.emit != Emit::Window;
        self.values.clear();
        for (kind, early) in self.feedback.take_early(key) {
            if early.time > self.window_end(time.0) {
                self.counters.late_feedback += 1;
                continue;
            }
            let first_weight = if is_now { weight } else { 0.0 };
            self.feedback.join(key, kind, Joined { value: early.value, first_weight });
            self.pending.mark_feedback(key);
            self.counters.joined_feedback += 1;
            self.values.push(FeedbackValue { kind, value: early.value });
        }
        if is_now {
            self.record.clear();
            record::append(&mut self.record, &head, impression.row);
            self.immediate = self.emission(key, time.0, weight, Reason::Now);
        }
        Ok(Outcome::Taken)
    }

    fn take_feedback(&mut self, feedback: &Feedback<'_>, time: EventTime) -> JoinResult<Outcome> {
        let key = Key::of(feedback.key);
        let FeedbackValue { kind, value } = feedback.value;
        let Some(place) = self.pending.get(key) else {
            return Ok(self.keep_early(key, kind, Early { value, time: time.0 }));
        };
        let is_dropped = self.settings.emit == Emit::Now(Late::Drop);
        let first = self.feedback.of(key).next().map(|(_, joined)| joined.first_weight);
        if self.feedback.of(key).any(|(known, _)| known == kind) {
            self.counters.duplicate_feedback += 1;
            return Ok(Outcome::Duplicate);
        }
        if time.0 > self.window_end(place.time) || is_dropped {
            self.counters.late_feedback += 1;
            return Ok(Outcome::Late);
        }
        let mut first_weight = 0.0;
        if self.settings.emit != Emit::Window {
            let head = self.pending.read(key, place, &mut self.record)?;
            let negative = self.sampling.negative_weight(key, head.weight);
            first_weight = first.or(negative).unwrap_or(0.0);
            self.values.clear();
            self.values.push(feedback.value);
            let (time, weight) = (place.time, head.weight);
            let reason = Reason::Correction;
            self.immediate = Some(Emission { time, weight, cancels: first_weight, reason });
            self.counters.positives += 1;
            self.counters.corrections += 1;
        }
        self.feedback.join(key, kind, Joined { value, first_weight });
        if !place.has_feedback {
            self.pending.mark_feedback(key);
        }
        self.counters.joined_feedback += 1;
        Ok(Outcome::Taken)
    }

    /// Keeps feedback whose impression has not come.
    fn keep_early(&mut self, key: Key, kind: u16, early: Early) -> Outcome {
        if self.has_passed(self.window_end(early.time)) {
            self.counters.late_feedback += 1;
            return Outcome::Late;
        }
        if !self.feedback.keep_early(key, kind, early) {
            self.counters.duplicate_feedback += 1;
            return Outcome::Duplicate;
        }
        while self.feedback.early_bytes() > self.settings.bounds.max_memory_bytes / EARLY_PART {
            let Some(evicted) = self.feedback.evict_one() else { break };
            self.counters.evicted_feedback += 1;
            if evicted == (key, kind) {
                return Outcome::Evicted;
            }
        }
        Outcome::Early
    }

    /// Moves the watermark by the time of an event that was taken, and forgets early feedback whose
    /// window has passed.
    fn advance(&mut self, partition: Partition, time: EventTime) -> JoinResult<()> {
        self.watermarks.advance(partition, time)?;
        self.expire_early();
        Ok(())
    }

    /// Forgets early feedback whose window has passed.
    pub(super) fn expire_early(&mut self) {
        let Some(watermark) = self.watermarks.watermark() else { return };
        let begin = watermark.0.saturating_sub_unsigned(self.settings.wait);
        // The windows of feedback at `begin` itself end at the watermark, and have not passed.
        while self.feedback.expire_one(begin.saturating_sub(1)) {
            self.counters.unmatched_feedback += 1;
        }
    }
}
