//! The event time of a set, and the scheduled work of its tables.

use zillion_rows::TableClock;

use crate::error::{Error, Result};
use crate::eviction::Due;
use crate::eviction::clock::{EventClock, Moment};
use crate::set::TableSet;

impl TableSet {
    /// Returns whether any table goes by event time. If so, each step needs an event time
    /// ([`TableSet::set_clock`]).
    pub fn needs_clock(&self) -> bool {
        self.specs().any(|spec| spec.clock() == TableClock::EventTime)
    }

    /// Sets the event time of the next step, which must come before the push of the step. Tables
    /// that go by steps ignore it.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if the time goes back.
    pub fn set_clock(&mut self, clock: EventClock) -> Result<()> {
        if clock.now < clock.before {
            let reason = format!(
                "the event time goes back from {} to {} seconds; give times that never go back",
                clock.before, clock.now
            );
            return Err(Error::misuse(reason));
        }
        self.clock = Some(clock);
        Ok(())
    }

    /// Checks that the step has an event time, if a table needs it.
    pub(super) fn check_clock(&self) -> Result<()> {
        if self.clock.is_none() && self.needs_clock() {
            let reason = "a table goes by event time, but the step has none; set the clock first";
            return Err(Error::misuse(reason.to_owned()));
        }
        Ok(())
    }

    /// Returns the scheduled work of each table at the end of a step. A frozen table has none.
    pub(crate) fn scheduled_work(&self, step: u32) -> Vec<Vec<Due>> {
        let tables = self.shapes.iter().zip(&self.frozen);
        let work = tables.map(|(shape, &frozen)| match frozen {
            true => Vec::new(),
            false => {
                let at = Moment::new(&shape.spec, step, self.clock);
                Due::of_table(&shape.spec, shape.priority, at)
            }
        });
        work.collect()
    }
}
