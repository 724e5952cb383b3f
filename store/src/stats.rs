//! The counters of a store: requests by operation and outcome, retries, and the time waited between
//! them.
//!
//! They are plain counters, so that the owner of metrics can export them, and a command can print
//! them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// The operation that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Reads an object, or a range of one.
    Get,
    /// Writes an object in one request.
    Put,
    /// Writes an object that must not exist yet.
    Create,
    /// Begins, ends or gives up an upload in parts, or uploads one part.
    Upload,
    /// Reads a page of a listing.
    List,
    /// Asks for the size and age of an object.
    Head,
    /// Removes an object from the store.
    Delete,
}

/// The way a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The request succeeded completely.
    Ok,
    /// The object, or the bucket, does not exist.
    Missing,
    /// An object of this name exists already.
    Exists,
    /// The credentials do not allow the request.
    Denied,
    /// The store does not support the request.
    Refused,
    /// The store has too many requests: 429, 503.
    Throttled,
    /// The store failed: 500 and others.
    ServerError,
    /// The answer did not arrive, or not completely, in time.
    Timeout,
    /// The connection could not be opened, or was cut.
    Connection,
}

impl Operation {
    /// All operations, in the order of their counters.
    pub const ALL: [Self; 7] =
        [Self::Get, Self::Put, Self::Create, Self::Upload, Self::List, Self::Head, Self::Delete];

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Create => "create",
            Self::Upload => "upload",
            Self::List => "list",
            Self::Head => "head",
            Self::Delete => "delete",
        }
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

    /// Returns the name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Exists => "exists",
            Self::Denied => "denied",
            Self::Refused => "refused",
            Self::Throttled => "throttled",
            Self::ServerError => "server_error",
            Self::Timeout => "timeout",
            Self::Connection => "connection",
        }
    }

    /// Returns whether the same request may succeed later.
    pub(crate) fn is_transient(self) -> bool {
        matches!(self, Self::Throttled | Self::ServerError | Self::Timeout | Self::Connection)
    }
}

/// The counters of a store. They only ever grow.
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
    /// The number of requests that repeated a failed one.
    pub retries: u64,
    /// The number of operations that were given up.
    pub failures: u64,
    /// The time between requests of one operation, in seconds.
    pub backoff_seconds: f64,
    /// The number of bytes of objects that the store took.
    pub sent_bytes: u64,
    /// The number of bytes of objects that the store delivered.
    pub received_bytes: u64,
}

impl StoreStats {
    /// Returns the number of requests of an operation that had this outcome.
    pub fn requests(&self, operation: Operation, outcome: Outcome) -> u64 {
        load(&self.requests[operation as usize][outcome as usize])
    }

    /// Returns the time spent in requests of an operation, from the first byte to the last.
    pub fn request_time(&self, operation: Operation) -> Duration {
        Duration::from_nanos(load(&self.request_nanos[operation as usize]))
    }

    /// Returns the number of requests of an operation that repeated a failed one.
    pub fn retries(&self, operation: Operation) -> u64 {
        load(&self.retries[operation as usize])
    }

    /// Returns the number of operations that were given up although another attempt might have
    /// helped.
    pub fn failures(&self, operation: Operation) -> u64 {
        load(&self.failures[operation as usize])
    }

    /// Returns the time waited between requests.
    pub fn backoff(&self) -> Duration {
        Duration::from_nanos(load(&self.backoff_nanos))
    }

    /// Returns the number of bytes of objects that the store took.
    pub fn sent_bytes(&self) -> u64 {
        load(&self.sent)
    }

    /// Returns the number of bytes of objects that the store delivered.
    pub fn received_bytes(&self) -> u64 {
        load(&self.received)
    }

    /// Returns the sums of all counters, for people.
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

    /// Adds time to an operation whose requests are counted apart.
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
