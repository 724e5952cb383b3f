//! The checks of tables that go by event time.

use zillion_config::ConfigError;
use zillion_rows::{Span, TableClock, TableSpec};

use super::Job;
use crate::error::Result;

impl Job {
    /// Checks that a job whose tables go by event time reads event times, and has its tables where
    /// the event time is known.
    pub(super) fn check_event_time(&self) -> Result<()> {
        let is_timed = |table: &&TableSpec| table.clock() == TableClock::EventTime;
        let Some(table) = self.tables.iter().find(is_timed) else { return Ok(()) };
        let key = format!("tables.{}.{}", table.name, find_span(table));
        let message = if self.schema.event_time.is_none() || self.schema.event_time_unit.is_none() {
            "is a span of event time, but the job does not read event times; set \
             `columns.event_time` and `columns.event_time_unit`, or give the span in steps"
        } else if self.ps.is_some() {
            "is a span of event time, which the protocol of a parameter service does not carry; \
             remove `[ps]`, so that the tables are in the trainer, or give the span in steps"
        } else {
            return Ok(());
        };
        Err(ConfigError::at(&key, message).into())
    }
}

/// Returns the key of the first span of event time of a table.
fn find_span(table: &TableSpec) -> String {
    let is_timed = |span: &Span| span.clock() == TableClock::EventTime;
    match table.eviction.age() {
        Some((key, span)) if is_timed(&span) => format!("eviction.{key}"),
        _ if table.admission_window.is_some() => "admission_window".to_owned(),
        _ => "statistics.every".to_owned(),
    }
}
