//! The versions that a gate holds, and the newest one that it has passed.

use zillion_stream::EventTime;

use super::Judging;

impl Judging {
    /// Takes note that the gate holds the present state. Returns the event time since the first
    /// such verdict after the last publication, in milliseconds.
    pub(crate) fn note_held(&mut self) -> u64 {
        let now = self.history.watermark.unwrap_or_default();
        if let Some(gate) = &mut self.gate {
            self.anchor.admit(&gate.hold(EventTime(now)));
        }
        self.history.held_since.get_or_insert(now);
        self.held_ms().unwrap_or_default()
    }

    /// Returns the event time for which versions have been held, in milliseconds; `None` if the
    /// last one was published.
    pub(crate) fn held_ms(&self) -> Option<u64> {
        let now = self.history.watermark.unwrap_or_default();
        let held = now.saturating_sub(self.history.held_since?);
        Some(u64::try_from(held).unwrap_or_default())
    }

    /// Returns the number of the newest version, if there is one.
    pub(crate) fn newest_version(&self) -> Option<u64> {
        self.history.versions.back().map(|(_, version)| *version)
    }
}
