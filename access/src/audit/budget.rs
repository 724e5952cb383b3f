//! The budget of lines that callers without a right can cause.
//!
//! A second has a number of lines, and a day has a number of bytes. Events above them are counted,
//! and the count is written as one line, at most once a minute: less than 1 MiB a day.

use std::time::Duration;

/// The smallest number of seconds between two lines that hold a count.
const COUNT_SECONDS: u64 = 60;

/// The number of seconds of a day.
const DAY_SECONDS: u64 = 86_400;

/// The budget of one kind of event, and what was used of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The name of the events in a line that holds a count.
    name: &'static str,
    lines_per_second: u32,
    bytes_per_day: u64,
    /// The second in which lines are counted, and their number.
    second: u64,
    lines: u32,
    /// The day in which bytes are counted, and their number.
    day: u64,
    bytes: u64,
    /// The number of events that were only counted, and are in no line yet.
    unwritten: u64,
    /// The second of the last line that holds a count.
    counted_at: Option<u64>,
}

impl Budget {
    pub(super) const fn new(name: &'static str, lines_per_second: u32, bytes_per_day: u64) -> Self {
        Self {
            name,
            lines_per_second,
            bytes_per_day,
            second: 0,
            lines: 0,
            day: 0,
            bytes: 0,
            unwritten: 0,
            counted_at: None,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns whether an event gets a line at `now`. Otherwise the event is counted.
    pub(super) fn take_line(&mut self, now: Duration) -> bool {
        let (second, day) = (now.as_secs(), now.as_secs() / DAY_SECONDS);
        if self.second != second {
            (self.second, self.lines) = (second, 0);
        }
        if self.day != day {
            (self.day, self.bytes) = (day, 0);
        }
        if self.lines >= self.lines_per_second || self.bytes >= self.bytes_per_day {
            self.count(1);
            return false;
        }
        self.lines += 1;
        true
    }

    /// Takes the bytes of a written line from the budget of the day.
    pub(super) fn take_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Counts events that get no line.
    pub(super) fn count(&mut self, number: u64) {
        self.unwritten += number;
    }

    /// Returns the number of events that a line should hold now, if there are any. The second of a
    /// flood must be over, unless `is_forced` is set.
    pub(super) fn due_count(&self, now: Duration, is_forced: bool) -> Option<u64> {
        let now = now.as_secs();
        let is_due = now != self.second
            && self.counted_at.is_none_or(|last| now.abs_diff(last) >= COUNT_SECONDS);
        (self.unwritten > 0 && (is_due || is_forced)).then_some(self.unwritten)
    }

    /// Records that the count was written.
    pub(super) fn end_count(&mut self, now: Duration) {
        self.unwritten = 0;
        self.counted_at = Some(now.as_secs());
    }
}
