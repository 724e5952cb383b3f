//! The options of a remote store, which the environment variables `ZILLION_STORE_…` set.

use std::time::Duration;

use crate::environment::Environment;
use crate::error::{Error, Result};

/// The options of a remote store: retries, time limits, sizes and concurrency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// The maximum number of requests for one operation, including the first request.
    pub(crate) tries: u32,
    /// The maximum wait before the second request of an operation. The maximum doubles before each
    /// further request.
    pub(crate) backoff: Duration,
    /// The upper bound of the maximum wait, which limits the doubling.
    pub(crate) longest_backoff: Duration,
    /// The time limit for opening a connection.
    pub(crate) connect_time: Duration,
    /// The time limit for one request and its response.
    pub(crate) request_time: Duration,
    /// The time limit for one operation with all its requests.
    pub(crate) operation_time: Duration,
    /// The minimum size in bytes of an object that is uploaded in parts.
    pub(crate) multipart_bytes: usize,
    /// The number of bytes of a part of an object.
    pub(crate) part_bytes: usize,
    /// The number of bytes that one request fetches.
    pub(crate) fetch_bytes: usize,
    /// The maximum number of requests at the same time.
    pub(crate) at_once: usize,
    /// The number of bytes of training data that a reader may keep in memory.
    pub(crate) cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tries: 10,
            backoff: Duration::from_millis(100),
            longest_backoff: Duration::from_secs(10),
            connect_time: Duration::from_secs(5),
            request_time: Duration::from_secs(30),
            operation_time: Duration::from_secs(120),
            multipart_bytes: 16 << 20,
            part_bytes: 8 << 20,
            fetch_bytes: 2 << 20,
            at_once: 8,
            cache_bytes: 256 << 20,
        }
    }
}

impl Options {
    /// Reads the options from the environment. An option that is not set keeps its default.
    ///
    /// # Errors
    /// Returns [`Error::StoreSetting`] if a value is not a number or is out of range. The error
    /// names the variable.
    pub(crate) fn of(environment: &Environment) -> Result<Self> {
        const HOUR_MS: u64 = 3_600_000;
        let number = |name: &str, most: u64, default: u64| match environment.get(name) {
            None => Ok(default),
            Some(text) => {
                let number = text.parse().ok().filter(|number| (1..=most).contains(number));
                let refused =
                    || format!("`{text}` is not an integer from 1 to {most}; set such an integer");
                number.ok_or_else(|| Error::setting(name, refused()))
            }
        };
        let millis = |name: &str, default: Duration| {
            number(name, HOUR_MS, default.as_millis() as u64).map(Duration::from_millis)
        };
        let size = |name: &str, most: u64, default: usize| {
            number(name, most, default as u64).map(|size| size as usize)
        };
        let default = Self::default();
        Ok(Self {
            tries: size("ZILLION_STORE_TRIES", 1000, default.tries as usize)? as u32,
            backoff: millis("ZILLION_STORE_BACKOFF_MS", default.backoff)?,
            longest_backoff: millis("ZILLION_STORE_LONGEST_BACKOFF_MS", default.longest_backoff)?,
            connect_time: millis("ZILLION_STORE_CONNECT_MS", default.connect_time)?,
            request_time: millis("ZILLION_STORE_REQUEST_MS", default.request_time)?,
            operation_time: millis("ZILLION_STORE_OPERATION_MS", default.operation_time)?,
            // Stores accept parts of at least 5 MiB. The stand-ins in tests also accept smaller
            // parts.
            multipart_bytes: size(
                "ZILLION_STORE_MULTIPART_BYTES",
                5 << 30,
                default.multipart_bytes,
            )?,
            part_bytes: size("ZILLION_STORE_PART_BYTES", 1 << 30, default.part_bytes)?,
            fetch_bytes: size("ZILLION_STORE_FETCH_BYTES", 1 << 30, default.fetch_bytes)?,
            at_once: size("ZILLION_STORE_AT_ONCE", 256, default.at_once)?,
            cache_bytes: size("ZILLION_STORE_CACHE_BYTES", 1 << 40, default.cache_bytes)?,
        })
    }
}

/// The names of the environment variables that set options of a remote store.
pub const STORE_SETTINGS: [&str; 11] = [
    "ZILLION_STORE_TRIES",
    "ZILLION_STORE_BACKOFF_MS",
    "ZILLION_STORE_LONGEST_BACKOFF_MS",
    "ZILLION_STORE_CONNECT_MS",
    "ZILLION_STORE_REQUEST_MS",
    "ZILLION_STORE_OPERATION_MS",
    "ZILLION_STORE_MULTIPART_BYTES",
    "ZILLION_STORE_PART_BYTES",
    "ZILLION_STORE_FETCH_BYTES",
    "ZILLION_STORE_AT_ONCE",
    "ZILLION_STORE_CACHE_BYTES",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_sets_and_is_checked() {
        for name in STORE_SETTINGS {
            let options = Options::of(&Environment::from([(name, "77")])).unwrap();
            assert_ne!(options, Options::default(), "{name}");
            for bad in ["0", "-1", "x", "9999999999999"] {
                let message =
                    Options::of(&Environment::from([(name, bad)])).unwrap_err().to_string();
                assert!(message.contains(name), "{message}");
            }
        }
        assert_eq!(Options::of(&Environment::default()).unwrap(), Options::default());
    }
}
