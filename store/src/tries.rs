//! One operation on a remote store: a request, and others like it while they fail for reasons that
//! pass.
//!
//! `object_store` would try again by itself, and nobody would see it; here every request is
//! counted. Waits double from try to try and are drawn evenly from nothing to their length, so that
//! many clients that were refused together do not come back together.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::options::Options;
use crate::stats::{Operation, Outcome, StoreStats};

/// What all operations of a store share.
#[derive(Debug)]
pub(crate) struct Patience {
    pub(crate) options: Options,
    pub(crate) stats: StoreStats,
    /// What must never be printed.
    secrets: Vec<String>,
    random: RandomState,
    draws: AtomicU64,
}

/// The tries of one operation.
#[derive(Debug)]
pub(crate) struct Tries<'a> {
    patience: &'a Patience,
    operation: Operation,
    began: Instant,
    made: u32,
}

impl Patience {
    pub(crate) fn new(options: Options, secrets: Vec<String>) -> Self {
        let draws = AtomicU64::new(0);
        // The random state differs from process to process, and so do their waits.
        Self { options, stats: StoreStats::default(), secrets, random: RandomState::new(), draws }
    }

    pub(crate) fn begin(&self, operation: Operation) -> Tries<'_> {
        Tries { patience: self, operation, began: Instant::now(), made: 0 }
    }

    /// Makes requests until one does not fail for a reason that passes, or patience is over.
    pub(crate) async fn persist<T, F>(
        &self,
        operation: Operation,
        mut request: impl FnMut() -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut tries = self.begin(operation);
        loop {
            match tries.make(request()).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => tries.rest(failure).await?,
            }
        }
    }

    /// A wait of up to `longest`.
    fn draw(&self, longest: Duration) -> Duration {
        let draw = self.random.hash_one(self.draws.fetch_add(1, Ordering::Relaxed));
        longest.mul_f64((draw >> 11) as f64 / (1u64 << 53) as f64)
    }
}

impl std::fmt::Display for Tries<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tries in {:.1} s", self.made, self.began.elapsed().as_secs_f64())
    }
}

impl Tries<'_> {
    /// One request.
    pub(crate) async fn make<T>(
        &mut self,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        let Patience { options, stats, secrets, .. } = self.patience;
        self.made += 1;
        let left = options.operation_time.saturating_sub(self.began.elapsed());
        let patience = options.request_time.min(left);
        let began = Instant::now();
        // The client has its own limit for a request; this one is for whatever else it does:
        // credentials.
        let answer = match tokio::time::timeout(patience, request).await {
            Ok(answer) => answer.map_err(|error| Failure::of(&error).without(secrets)),
            Err(_) => Err(Failure::late(patience)),
        };
        let outcome = answer.as_ref().map_or_else(|failure| failure.outcome, |_| Outcome::Ok);
        stats.request(self.operation, outcome, began.elapsed());
        answer
    }

    /// Waits before the next request.
    ///
    /// # Errors
    /// The failure itself, where another request would not help or patience is over.
    pub(crate) async fn rest(&mut self, failure: Failure) -> Result<(), Failure> {
        let Patience { options, stats, .. } = self.patience;
        if !failure.outcome.may_pass() {
            return Err(failure);
        }
        let doubled = options.backoff.saturating_mul(1 << (self.made - 1).min(20));
        let wait = self.patience.draw(doubled.min(options.longest_backoff));
        if self.made >= options.tries || self.began.elapsed() + wait >= options.operation_time {
            stats.failure(self.operation);
            let reason = format!("{}, after {self}", failure.reason);
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

    fn patience() -> Patience {
        let backoff = Duration::from_millis(2);
        Patience::new(Options { tries: 5, backoff, ..Options::default() }, Vec::new())
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(future)
    }

    fn broken() -> object_store::Error {
        object_store::Error::Generic { store: "test", source: "cut".into() }
    }

    #[test]
    fn what_passes_is_tried_again_and_counted() {
        let patience = patience();
        let left = Cell::new(3);
        let answer = run(patience.persist(Operation::Get, || async {
            left.set(left.get() - 1);
            if left.get() == 0 { Ok("there") } else { Err(broken()) }
        }));
        assert_eq!(answer, Ok("there"));
        let stats = &patience.stats;
        assert_eq!(stats.requests(Operation::Get, Outcome::Connection), 2);
        assert_eq!(stats.requests(Operation::Get, Outcome::Ok), 1);
        assert_eq!((stats.retries(Operation::Get), stats.failures(Operation::Get)), (2, 0));
    }

    #[test]
    fn patience_ends_and_says_so() {
        let patience = patience();
        let answer = run(patience.persist::<(), _>(Operation::List, || async { Err(broken()) }));
        assert!(answer.unwrap_err().reason.contains("after 5 tries"));
        assert_eq!(patience.stats.failures(Operation::List), 1);
        assert_eq!(patience.stats.retries(Operation::List), 4);
    }

    #[test]
    fn what_does_not_pass_is_not_tried_again() {
        let patience = patience();
        let missing = || object_store::Error::NotFound { path: "x".into(), source: "no".into() };
        let answer = run(patience.persist::<(), _>(Operation::Get, || async { Err(missing()) }));
        assert_eq!(answer.unwrap_err().outcome, Outcome::Missing);
        assert_eq!(patience.stats.sums().requests, 1);
        assert_eq!(patience.stats.sums().failures, 0);
    }

    #[test]
    fn a_request_that_hangs_is_cut_off() {
        let request_time = Duration::from_millis(5);
        let options =
            Options { tries: 2, request_time, backoff: request_time, ..Options::default() };
        let patience = Patience::new(options, Vec::new());
        let hang = || std::future::pending::<object_store::Result<()>>();
        let answer = run(patience.persist(Operation::Get, hang));
        assert_eq!(answer.unwrap_err().outcome, Outcome::Timeout);
        assert_eq!(patience.stats.requests(Operation::Get, Outcome::Timeout), 2);
    }
}
