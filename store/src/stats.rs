//! The counters of a store: the requests by operation and outcome, the retries, and the waits
//! between requests.
//!
//! The counters are plain numbers. A registry of metrics can export them, and a command can print
//! them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// The operation that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// A request that reads an object or a range of an object.
    Get,
    /// A request that writes a whole object.
    Put,
    /// A request that writes an object which must not exist yet.
    Create,
    /// A request of an upload in parts: the beginning, one part, the end or the cancellation.
    Upload,
    /// A request that reads one page of a listing.
    List,
    /// A request that reads the size of an object and the time of its last write.
    Head,
    /// A request that removes an object.
    Delete,
}

/// The outcome of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The request succeeded, and the response was complete.
    Ok,
    /// The object or the bucket does not exist.
    Missing,
    /// An object with this name already exists.
    Exists,
    /// The credentials do not allow the request.
    Denied,
    /// The store does not support the request.
    Refused,
    /// The store has too many requests at the moment (status code 429 or 503).
    Throttled,
    /// The store had an internal error (status code 500 or another code above 500).
    ServerError,
    /// The response was not complete within the time limit.
    Timeout,
    /// The connection could not be opened or was interrupted.
    Connection,
}

impl Operation {
    /// All operations, in the order of their counters.
    pub const ALL: [Self; 7] =
        [Self::Get, Self::Put, Self::Create, Self::Upload, Self::List, Self::Head, Self::Delete];

    /// Returns the name of the operation in metrics.
    pub fn name(self) -> &'static str {
        ["get", "put", "create", "upload", "list", "head", "delete"][self as usize]
    }
}

impl Outcome {
    /// All outcomes, in the order of their counters.
    pub const ALL: [Self; 9] = [
        Self::Ok,
        Self::Missing,
        Self::Exists,
        Self::Denied,
        Self::Refused,
        Self::Throttled,
        Self::ServerError,
        Self::Timeout,
        Self::Connection,
    ];

    /// Returns the name of the outcome in metrics.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; Outcome::ALL.len()] = [
            "ok",
            "missing",
            "exists",
            "denied",
            "refused",
            "throttled",
            "server_error",
            "timeout",
            "connection",
        ];
        NAMES[self as usize]
    }

    /// Returns whether the same request can succeed later.
    pub(crate) fn is_transient(self) -> bool {
        matches!(self, Self::Throttled | Self::ServerError | Self::Timeout | Self::Connection)
    }
}

/// The counters of a store, which never decrease.
#[derive(Debug, Default)]
pub struct StoreStats {
    requests: [[AtomicU64; Outcome::ALL.len()]; Operation::ALL.len()],
    request_nanos: [AtomicU64; Operation::ALL.len()],
    retries: [AtomicU64; Operation::ALL.len()],
    failures: [AtomicU64; Operation::ALL.len()],
    backoff_nanos: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// The sums of a store's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StoreSums {
    /// The number of requests.
    pub requests: u64,
    /// The number of requests that repeated a failed request.
    pub retries: u64,
    /// The number of operations that failed because they exceeded a limit on requests or time.
    pub failures: u64,
    /// The total time of the waits between requests, in seconds.
    pub backoff_seconds: f64,
    /// The number of bytes of object contents that were sent to the store.
    pub sent_bytes: u64,
    /// The number of bytes of object contents that were received from the store.
    pub received_bytes: u64,
}

impl StoreStats {
    /// Returns the number of requests with this operation and this outcome.
    pub fn requests(&self, operation: Operation, outcome: Outcome) -> u64 {
        load(&self.requests[operation as usize][outcome as usize])
    }

    /// Returns the total time of the requests of an operation. A request ends with the last byte of
    /// its response.
    pub fn request_time(&self, operation: Operation) -> Duration {
        Duration::from_nanos(load(&self.request_nanos[operation as usize]))
    }

    /// Returns the number of requests with this operation that repeated a failed request.
    pub fn retries(&self, operation: Operation) -> u64 {
        load(&self.retries[operation as usize])
    }

    /// Returns the number of operations that failed because they exceeded a limit on requests or
    /// time. A further request might have succeeded.
    pub fn failures(&self, operation: Operation) -> u64 {
        load(&self.failures[operation as usize])
    }

    /// Returns the total time of the waits between requests.
    pub fn backoff(&self) -> Duration {
        Duration::from_nanos(load(&self.backoff_nanos))
    }

    /// Returns the number of bytes of object contents that were sent to the store.
    pub fn sent_bytes(&self) -> u64 {
        load(&self.sent)
    }

    /// Returns the number of bytes of object contents that were received from the store.
    pub fn received_bytes(&self) -> u64 {
        load(&self.received)
    }

    /// Returns the sums of the counters over all operations, to show them to people.
    pub fn sums(&self) -> StoreSums {
        let sum = |counters: &[AtomicU64]| counters.iter().map(load).sum();
        StoreSums {
            requests: self.requests.iter().flatten().map(load).sum(),
            retries: sum(&self.retries),
            failures: sum(&self.failures),
            backoff_seconds: self.backoff().as_secs_f64(),
            sent_bytes: self.sent_bytes(),
            received_bytes: self.received_bytes(),
        }
    }

    pub(crate) fn request(&self, operation: Operation, outcome: Outcome, time: Duration) {
        add(&self.requests[operation as usize][outcome as usize], 1);
        add(&self.request_nanos[operation as usize], nanos(time));
    }

    /// Adds time to an operation. The requests of this operation are counted separately.
    pub(crate) fn time(&self, operation: Operation, time: Duration) {
        add(&self.request_nanos[operation as usize], nanos(time));
    }

    pub(crate) fn retry(&self, operation: Operation, waited: Duration) {
        add(&self.retries[operation as usize], 1);
        add(&self.backoff_nanos, nanos(waited));
    }

    pub(crate) fn failure(&self, operation: Operation) {
        add(&self.failures[operation as usize], 1);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        add(&self.sent, bytes as u64);
    }

    pub(crate) fn received(&self, bytes: usize) {
        add(&self.received, bytes as u64);
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_in_the_order_of_the_counters() {
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index);
        }
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }

    #[test]
    fn sums_add_up_all_counters() {
        let stats = StoreStats::default();
        stats.request(Operation::Get, Outcome::Throttled, Duration::from_millis(2));
        stats.retry(Operation::Get, Duration::from_millis(500));
        stats.request(Operation::Get, Outcome::Ok, Duration::from_millis(3));
        stats.received(7);
        stats.failure(Operation::List);
        assert_eq!(stats.request_time(Operation::Get), Duration::from_millis(5));
        let wanted = StoreSums {
            requests: 2,
            retries: 1,
            failures: 1,
            backoff_seconds: 0.5,
            sent_bytes: 0,
            received_bytes: 7,
        };
        assert_eq!(stats.sums(), wanted);
    }
}
