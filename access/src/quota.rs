//! Quotas: the maximum amount of work that a principal may request.
//!
//! # Concurrency
//! One mutex for each principal guards its use of the quota. A thread holds the mutex only for a
//! few additions. Requests of different principals do not wait for each other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

/// The maximum amount of work that a principal may request. A field that is `None` sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The maximum number of requests that are open at the same time.
    pub concurrent: Option<usize>,
    /// The maximum number of rows per second, on average. The rows of one second may come all at
    /// once.
    pub rows_per_second: Option<f64>,
    /// The maximum number of rows in one request.
    pub rows: Option<usize>,
    /// The maximum number of bytes in the body of one request.
    pub body_bytes: Option<usize>,
}

/// The reason why a quota refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The principal already has the maximum number of open requests.
    TooManyRequests,
    /// The principal has used up its rows for now. It may send the request again after this time.
    TooManyRows(Duration),
}

/// The present use of the quota of one principal.
#[derive(Debug, Default)]
pub struct QuotaUse {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// The number of rows that may be requested now. A negative number is a debt.
    rows: f64,
    /// The time at which `rows` was last increased, or `None` before the first request.
    at: Option<Duration>,
}

/// An open request of a principal. Dropping the value ends the request.
#[derive(Debug)]
pub struct OpenRequest(Arc<QuotaUse>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.lock().open -= 1;
    }
}

impl QuotaUse {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request as open until the returned value is dropped. `now` counts from any fixed
    /// moment.
    ///
    /// # Errors
    /// Returns the reason if the quota refuses the request: there are too many open requests, or
    /// the principal has no rows left.
    pub fn open(self: &Arc<Self>, quota: &Quota, now: Duration) -> Result<OpenRequest, Usage> {
        let mut state = self.lock();
        if quota.concurrent.is_some_and(|most| state.open >= most) {
            return Err(Usage::TooManyRequests);
        }
        if let Some(rate) = quota.rows_per_second {
            state.refill(rate, now);
            if state.rows <= 0.0 {
                let wait = (1.0 - state.rows) / rate.max(f64::MIN_POSITIVE);
                return Err(Usage::TooManyRows(Duration::from_secs_f64(wait.min(3600.0))));
            }
        }
        state.open += 1;
        Ok(OpenRequest(self.clone()))
    }

    /// Subtracts `rows`, the number of rows of an open request, from the rows that may be
    /// requested. The number of rows is known only after the body has been read. So the last
    /// request of a second may cause a debt, which reduces the rows of later seconds.
    pub fn take_rows(&self, quota: &Quota, rows: usize, now: Duration) {
        let Some(rate) = quota.rows_per_second else { return };
        let mut state = self.lock();
        state.refill(rate, now);
        state.rows -= rows as f64;
    }
}

impl State {
    fn refill(&mut self, rate: f64, now: Duration) {
        self.rows = match self.at {
            None => rate,
            Some(at) => (self.rows + now.saturating_sub(at).as_secs_f64() * rate).min(rate),
        };
        self.at = Some(now.max(self.at.unwrap_or_default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_requests_are_bounded_and_given_back() {
        let quota = Quota { concurrent: Some(2), ..Quota::default() };
        let used = Arc::new(QuotaUse::default());
        let first = used.open(&quota, Duration::ZERO).unwrap();
        let _second = used.open(&quota, Duration::ZERO).unwrap();
        assert_eq!(used.open(&quota, Duration::ZERO).unwrap_err(), Usage::TooManyRequests);
        drop(first);
        assert!(used.open(&quota, Duration::ZERO).is_ok());
    }

    #[test]
    fn rows_of_a_second_may_leave_a_debt_that_time_pays() {
        let quota = Quota { rows_per_second: Some(100.0), ..Quota::default() };
        let used = Arc::new(QuotaUse::default());
        let at = Duration::from_millis;
        drop(used.open(&quota, at(0)).unwrap());
        used.take_rows(&quota, 250, at(0));
        let Err(Usage::TooManyRows(wait)) = used.open(&quota, at(1000)) else {
            panic!("the debt of 150 rows is not paid after a second");
        };
        assert!(wait > Duration::from_millis(500) && wait < Duration::from_millis(520), "{wait:?}");
        assert!(used.open(&quota, at(1520)).is_ok());
        // A clock that steps back does not refill the quota and does not cause a panic.
        used.take_rows(&quota, 1000, at(1520));
        assert!(used.open(&quota, at(0)).is_err());
    }
}
