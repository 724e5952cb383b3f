//! The clock of a server, which counts from the start of its process.

use std::sync::OnceLock;
use std::time::Instant;

/// Returns the milliseconds from the first call in this process to a moment.
pub(super) fn milliseconds(moment: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    moment.saturating_duration_since(start).as_millis() as u64
}
