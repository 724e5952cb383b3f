//! The moment of a step, in the unit in which a table measures the age of its rows.
//!
//! The metadata of a row have the step of its last push, or the event time of that push if the
//! table goes by event time. Event time is given with each step ([`EventClock`]). It comes from the
//! data, so the contents of a table are still a function of the data and the steps.

use zillion_rows::{TableClock, TableSpec};

/// The event time before and after a step, in seconds since the first step of the run.
///
/// The caller computes it from the batches that were learned, and never lets it go back. Seconds
/// are counted from the first step, so that 32 bits are enough and rows that were never pushed have
/// the time 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventClock {
    /// The event time at the end of the last step that was applied.
    pub before: u32,
    /// The event time of this step, at least `before`.
    pub now: u32,
}

/// The moment of a step as a table sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The number of the step.
    pub(crate) step: u32,
    /// The time before the step, in the unit of the table.
    pub(crate) before: u32,
    /// The time of the step, in the unit of the table. The metadata of pushed rows get it.
    pub(crate) now: u32,
}

impl Moment {
    /// Returns the moment of a step in a table that measures ages in steps.
    pub(crate) fn of_step(step: u32) -> Self {
        Self { step, before: step.saturating_sub(1), now: step }
    }

    /// Returns the moment of a step in a table. Without a clock, the event time is 0.
    pub(crate) fn new(spec: &TableSpec, step: u32, clock: Option<EventClock>) -> Self {
        match spec.clock() {
            TableClock::Steps => Self::of_step(step),
            TableClock::EventTime => {
                let EventClock { before, now } = clock.unwrap_or_default();
                Self { step, before, now }
            }
        }
    }
}
