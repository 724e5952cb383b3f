//! The wait of a request for its network thread.

use std::time::Duration;

use axum::http::Extensions;

/// The time for which a request waited for its network thread after it was read. The requests of an
/// HTTP/2 connection are read together, and answered one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lag(pub(super) Duration);

/// Returns the time for which the request with these extensions waited for its network thread.
pub(crate) fn read_lag(extensions: &Extensions) -> Duration {
    extensions.get().map_or(Duration::ZERO, |Lag(lag)| *lag)
}
