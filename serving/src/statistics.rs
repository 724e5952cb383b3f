//! The counters of a version's requests, and the time of their stages: Triton's model statistics.
//!
//! # Concurrency
//! A request takes one lock when it ends, for a few additions by the task that waited for it. A key
//! or a row costs nothing. A reader sees the counters of whole requests.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

mod series;

pub(crate) use series::triton_series;

/// The counters of the requests of one loaded version. They begin at zero when the version is
/// loaded.
#[derive(Debug, Default)]
pub struct VersionStatistics(Mutex<Totals>);

/// A number of events and their total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// The number of events.
    pub count: u64,
    /// The total time in nanoseconds.
    pub nanos: u64,
}

/// The counters of a version at one moment. All but `fail` belong to requests that were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The requests that were answered, with the time from the arrival of the body to the
    /// answer.
    pub success: Total,
    /// The requests that were not answered: refused, too late, or abandoned by their
    /// client.
    pub fail: Total,
    /// The time that requests waited for a thread.
    pub queue: Total,
    /// The time of reading bodies into raw columns.
    pub compute_input: Total,
    /// The time from raw columns to scores: keys, lookup and model.
    pub compute_infer: Total,
    /// The time of writing scores into the bodies of answers.
    pub compute_output: Total,
    /// The number of scored rows.
    pub inference_count: u64,
    /// The number of runs of the model. Small requests may share one.
    pub execution_count: u64,
    /// The time of the last answer, in milliseconds since 1970; 0 before the first.
    pub last_inference_ms: u64,
}

/// The time of the stages of one request, and the numbers of its rows and runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) queue: Duration,
    pub(crate) input: Duration,
    pub(crate) infer: Duration,
    pub(crate) output: Duration,
    pub(crate) rows: u64,
    pub(crate) executions: u64,
}

impl VersionStatistics {
    /// Returns the current values of the counters.
    pub fn totals(&self) -> Totals {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_answer(&self, took: Duration, spent: &Spent) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let mut totals = self.lock();
        totals.success.add(took);
        totals.queue.add(spent.queue);
        totals.compute_input.add(spent.input);
        totals.compute_infer.add(spent.infer);
        totals.compute_output.add(spent.output);
        totals.inference_count += spent.rows;
        totals.execution_count += spent.executions;
        totals.last_inference_ms = totals.last_inference_ms.max(now);
    }
}

impl Total {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos = self.nanos.wrapping_add(nanos);
    }
}

/// A request that is being answered. [`Begun::finish`] counts it as answered; a drop before
/// that counts it as failed.
#[derive(Debug)]
pub(crate) struct Begun<'a> {
    statistics: &'a VersionStatistics,
    at: Instant,
    is_answered: bool,
}

impl<'a> Begun<'a> {
    pub(crate) fn now(statistics: &'a VersionStatistics) -> Self {
        Self { statistics, at: Instant::now(), is_answered: false }
    }

    pub(crate) fn finish(mut self, spent: &Spent) {
        self.is_answered = true;
        self.statistics.record_answer(self.at.elapsed(), spent);
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.statistics.lock().fail.add(self.at.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_or_has_failed() {
        let statistics = VersionStatistics::default();
        let micros = Duration::from_micros;
        let spent = Spent {
            queue: micros(1),
            input: micros(2),
            infer: micros(3),
            output: micros(4),
            rows: 7,
            executions: 1,
        };
        Begun::now(&statistics).finish(&spent);
        drop(Begun::now(&statistics));
        Begun::now(&statistics).finish(&spent);
        let totals = statistics.totals();
        assert_eq!((totals.success.count, totals.fail.count), (2, 1));
        assert_eq!(totals.queue, Total { count: 2, nanos: 2_000 });
        assert_eq!(totals.compute_output, Total { count: 2, nanos: 8_000 });
        assert_eq!((totals.inference_count, totals.execution_count), (14, 2));
        assert!(totals.last_inference_ms > 0 && totals.success.nanos > 0);
    }
}
