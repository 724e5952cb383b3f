//! Quotas: the amount of work that a principal may ask for.
//!
//! # Concurrency
//! One mutex guards the use of one principal. It is held for a few additions, and principals do not
//! wait for each other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;

/// The amount of work that a principal may ask for. A field that is absent sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The largest number of open requests.
    pub concurrent: Option<usize>,
    /// The number of rows a second, on average. One second's rows may come at once.
    pub rows_per_second: Option<f64>,
    /// The largest number of rows of a request.
    pub rows: Option<usize>,
    /// The largest number of bytes of a body.
    pub body_bytes: Option<usize>,
}

/// The reason why a quota does not admit a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The principal has as many open requests as it may have.
    TooManyRequests,
    /// The principal asked for its rows of this second already. It may ask again after this time.
    TooManyRows(Duration),
}

/// The present use of a principal's quota.
#[derive(Debug, Default)]
pub struct QuotaUse {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// The rows that may be asked for at once. A negative number is a debt.
    rows: f64,
    /// The time of the last refill.
    at: Option<Duration>,
}

/// An open request of a principal. It ends when the value is dropped.
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

    /// Counts a request as open until the returned value is dropped.
    ///
    /// # Errors
    /// Returns the reason if the quota does not admit the request: too many open requests, or a
    /// debt of rows.
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

    /// Takes the rows of an open request from the quota. The number of rows is known only after
    /// the body was read, so that the last request of a second may leave a debt that later seconds
    /// pay.
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
        // A clock that steps back neither pays nor panics.
        used.take_rows(&quota, 1000, at(1520));
        assert!(used.open(&quota, at(0)).is_err());
    }
}
