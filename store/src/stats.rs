//! What a store counts about itself: every request by what it was for and how it ended, what was
//! tried again, how long was waited between tries.
//!
//! Plain counters, so that whoever owns metrics can export them, and a command can print them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Reading an object, or a range of one.
    Get,
    /// Writing an object in one request.
    Put,
    /// Writing an object that must not be there yet.
    Create,
    /// Beginning, ending or giving up an upload in parts, or one of its parts.
    Upload,
    /// A page of a listing.
    List,
    /// Size and age of an object.
    Head,
    /// Removing an object.
    Delete,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// As it should.
    Ok,
    /// There is no such object (or no such bucket).
    Missing,
    /// There is an object of this name already.
    Exists,
    /// The credentials do not allow it.
    Denied,
    /// The store does not do it, and will not.
    Refused,
    /// The store has too much to do: 429, 503.
    Throttled,
    /// The store failed: 500 and others.
    ServerError,
    /// No answer, or no whole one, in time.
    Timeout,
    /// The connection could not be made, or was cut.
    Connection,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Get, Self::Put, Self::Create, Self::Upload, Self::List, Self::Head, Self::Delete];

    /// As metrics name it.
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
    /// All of them.
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

    /// As metrics name it.
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

    /// Whether the same request may end otherwise next time.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Self::Throttled | Self::ServerError | Self::Timeout | Self::Connection)
    }
}

/// A store's counters. They only ever grow.
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
    /// Requests.
    pub requests: u64,
    /// Requests that were made again after one that failed.
    pub retries: u64,
    /// Operations that were given up.
    pub failures: u64,
    /// Time between tries, in seconds.
    pub backoff_seconds: f64,
    /// Bytes of objects that the store took.
    pub sent_bytes: u64,
    /// Bytes of objects that the store gave.
    pub received_bytes: u64,
}

impl StoreStats {
    /// Requests of an operation that ended so.
    pub fn requests(&self, operation: Operation, outcome: Outcome) -> u64 {
        load(&self.requests[operation as usize][outcome as usize])
    }

    /// Time in requests of an operation: from the first byte to the last.
    pub fn request_time(&self, operation: Operation) -> Duration {
        Duration::from_nanos(load(&self.request_nanos[operation as usize]))
    }

    /// Requests of an operation that were made again after one that failed.
    pub fn retries(&self, operation: Operation) -> u64 {
        load(&self.retries[operation as usize])
    }

    /// Operations that were given up although another try might have helped.
    pub fn failures(&self, operation: Operation) -> u64 {
        load(&self.failures[operation as usize])
    }

    /// Time that was waited between tries.
    pub fn backoff(&self) -> Duration {
        Duration::from_nanos(load(&self.backoff_nanos))
    }

    /// Bytes of objects that the store took.
    pub fn sent_bytes(&self) -> u64 {
        load(&self.sent)
    }

    /// Bytes of objects that the store gave.
    pub fn received_bytes(&self) -> u64 {
        load(&self.received)
    }

    /// Everything added up, for people.
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

    /// Time that is counted beside its requests.
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
    fn sums_are_of_everything() {
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
