//! One operation on a remote store: its first request, and the retries after transient failures.
//!
//! The retries of `object_store` itself cannot be observed, so they are not used, and every request
//! is counted here. The maximum wait doubles with each attempt. Each wait is a random time between
//! zero and this maximum. As a result, clients that were refused at the same time send their next
//! requests at different times. The crate `backon` does not fit: its jitter adds to the wait and
//! does not replace it, and the crate neither counts requests nor limits the time of each request.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::options::Options;
use crate::stats::{Operation, Outcome, StoreStats};

/// The rules for retries, and the state that all operations of a store share.
#[derive(Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) options: Options,
    pub(crate) stats: StoreStats,
    /// The secret values, which no message may contain.
    secrets: Vec<String>,
    random: RandomState,
    draws: AtomicU64,
}

/// The attempts that one operation has made so far.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    policy: &'a RetryPolicy,
    operation: Operation,
    began: Instant,
    made: u32,
}

impl RetryPolicy {
    pub(crate) fn new(options: Options, secrets: Vec<String>) -> Self {
        let draws = AtomicU64::new(0);
        // Each process has a different random state, so the waits of different processes differ.
        Self { options, stats: StoreStats::default(), secrets, random: RandomState::new(), draws }
    }

    pub(crate) fn begin(&self, operation: Operation) -> Attempts<'_> {
        Attempts { policy: self, operation, began: Instant::now(), made: 0 }
    }

    /// Sends a request repeatedly until it succeeds, until it fails permanently, or until a limit
    /// is exceeded.
    pub(crate) async fn retry<T, F>(
        &self,
        operation: Operation,
        mut request: impl FnMut() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut attempts = self.begin(operation);
        loop {
            match attempts.make(request()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => attempts.wait(failure).await?,
            }
        }
    }

    /// Draws a random wait between zero and `longest`.
    fn draw_wait(&self, longest: Duration) -> Duration {
        let draw = self.random.hash_one(self.draws.fetch_add(1, Ordering::Relaxed));
        longest.mul_f64((draw >> 11) as f64 / (1u64 << 53) as f64)
    }
}

impl Attempts<'_> {
    /// Sends one request and counts it.
    pub(crate) async fn make<T>(
        &mut self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        let RetryPolicy { options, stats, secrets, .. } = self.policy;
        self.made += 1;
        let left = options.operation_time.saturating_sub(self.began.elapsed());
        let limit = options.request_time.min(left);
        let began = Instant::now();
        // The client limits the time of the request itself. This limit covers the rest too, such as
        // the credentials.
        let answer = match tokio::time::timeout(limit, request).await {
            Ok(answer) => answer.map_err(|error| Failure::of(&error).redact(secrets)),
            Err(_) => Err(Failure::timed_out(limit)),
        };
        let outcome = answer.as_ref().map_or_else(|failure| failure.outcome, |_| Outcome::Ok);
        stats.request(self.operation, outcome, began.elapsed());
        answer
    }

    /// Waits until the next request may be sent.
    ///
    /// # Errors
    /// Returns the given failure if a further request would not help, or if a limit is exceeded.
    pub(crate) async fn wait(&mut self, failure: Failure) -> Result<(), Failure> {
        let RetryPolicy { options, stats, .. } = self.policy;
        if !failure.outcome.is_transient() {
            return Err(failure);
        }
        let doubled = options.backoff.saturating_mul(1 << (self.made - 1).min(20));
        let wait = self.policy.draw_wait(doubled.min(options.longest_backoff));
        if self.made >= options.tries || self.began.elapsed() + wait >= options.operation_time {
            stats.failure(self.operation);
            let (tries, seconds) = (self.made, self.began.elapsed().as_secs_f64());
            let reason = format!("{} (after {tries} tries in {seconds:.1} s)", failure.reason);
            return Err(Failure { reason, ..failure });
        }
        tokio::time::sleep(wait).await;
        stats.retry(self.operation, wait);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn policy() -> RetryPolicy {
        let backoff = Duration::from_millis(2);
        RetryPolicy::new(Options { tries: 5, backoff, ..Options::default() }, Vec::new())
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(future)
    }

    fn broken() -> object_store::Error {
        object_store::Error::Generic { store: "test", source: "cut".into() }
    }

    #[test]
    fn transient_failures_are_retried_and_counted() {
        let policy = policy();
        let left = Cell::new(3);
        let answer = run(policy.retry(Operation::Get, || async {
            left.set(left.get() - 1);
            if left.get() == 0 { Ok("there") } else { Err(broken()) }
        }));
        assert_eq!(answer, Ok("there"));
        let stats = &policy.stats;
        assert_eq!(stats.requests(Operation::Get, Outcome::Connection), 2);
        assert_eq!(stats.requests(Operation::Get, Outcome::Ok), 1);
        assert_eq!((stats.retries(Operation::Get), stats.failures(Operation::Get)), (2, 0));
    }

    #[test]
    fn attempts_end_at_the_limit() {
        let policy = policy();
        let answer = run(policy.retry::<(), _>(Operation::List, || async { Err(broken()) }));
        assert!(answer.unwrap_err().reason.contains("after 5 tries"));
        assert_eq!(policy.stats.failures(Operation::List), 1);
        assert_eq!(policy.stats.retries(Operation::List), 4);
    }

    #[test]
    fn lasting_failures_are_not_retried() {
        let policy = policy();
        let missing = || object_store::Error::NotFound { path: "x".into(), source: "no".into() };
        let answer = run(policy.retry::<(), _>(Operation::Get, || async { Err(missing()) }));
        assert_eq!(answer.unwrap_err().outcome, Outcome::Missing);
        assert_eq!(policy.stats.sums().requests, 1);
        assert_eq!(policy.stats.sums().failures, 0);
    }

    #[test]
    fn hanging_requests_are_cut_off() {
        let request_time = Duration::from_millis(5);
        let options =
            Options { tries: 2, request_time, backoff: request_time, ..Options::default() };
        let policy = RetryPolicy::new(options, Vec::new());
        let hang = || std::future::pending::<object_store::Result<()>>();
        let answer = run(policy.retry(Operation::Get, hang));
        assert_eq!(answer.unwrap_err().outcome, Outcome::Timeout);
        assert_eq!(policy.stats.requests(Operation::Get, Outcome::Timeout), 2);
    }
}
