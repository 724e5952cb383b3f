//! The turn of a request: on the network thread that read it, or on the pool.
//!
//! A small request costs less than the way to the pool and back: a lock, two wake-ups and a cold
//! cache. So its work is done where it was read, if no request waits and the average work of
//! requests of its size is small. The work itself is the same function in both places.
//!
//! On the network thread, the work of a request has two turns: its rows are read, and then its
//! answer is written. Between them they are scored together with those of other requests
//! ([`Gathering`]).
//!
//! # Invariants
//! A network thread begins the work of a request only if requests with as many bytes, and with as
//! many rows and values, were measured and took at most [`Limits::inline_time`] on average. The
//! rows are known after the body was read. If they are too many, the work ends there, and is done
//! again on the pool.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::Span;

use super::{Admitted, Scoring, overloaded};
use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::gathering::{Gathering, Joined, ReadRows};
use crate::metrics::{Metrics, Stage};
use crate::queue::{Claim, Known, SmallWork, Turn};
use crate::trace::span;

/// The largest body that a network thread reads, in bytes. Reading it takes about 0.1 ms.
const MOST_BYTES: usize = 16 << 10;

/// The smallest wait for a network thread after which its requests go to the queue.
const LEAST_LAG: Duration = Duration::from_millis(2);

/// The turn of a request, as its work sees it.
#[derive(Debug)]
pub(crate) struct Turned {
    /// The time for which the request waited in the queue.
    pub(crate) waited: Duration,
    /// The time by which the answer must be there.
    pub(crate) deadline: Instant,
    /// The largest average work of requests of this size, if the turn is on a network thread.
    pub(crate) inline_time: Option<Duration>,
    /// Whether the work may end with [`Outcome::Read`].
    pub(crate) gathers: bool,
    /// The scores of the rows that an earlier turn of the request has read.
    pub(crate) joined: RefCell<Option<Joined>>,
}

/// The outcome of the work of a request.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    /// The work is done. The number is that of rows and values, if they were counted.
    Done(Result<T>, Option<usize>),
    /// The work is too long for a network thread, and was not done.
    HandedOver,
    /// The rows were read. The work gets another turn with their scores.
    Read(ReadRows),
}

/// The bounds of a request on the network thread that read it.
#[derive(Clone, Copy, Debug)]
struct Inline {
    /// The largest average work of requests of this size.
    time: Duration,
    /// Whether the rows may be scored together with those of other requests.
    gathers: bool,
}

/// The outcome of the first turn of a request.
enum FirstTurn<T> {
    Done(Result<T>),
    HandedOver,
    Read(ReadRows),
}

/// The facts of a request that its work needs, on whatever thread it is done.
struct Facts {
    estimates: Known,
    small: Arc<SmallWork>,
    metrics: Arc<Metrics>,
    bytes: usize,
    limit: Duration,
    deadline: Instant,
}

impl Facts {
    /// Does the work of a request whose turn has come. Records its time if it is done.
    fn perform<T>(
        &self,
        turn: Turn,
        inline: Option<Inline>,
        work: &mut impl FnMut(&Turned) -> Outcome<T>,
    ) -> FirstTurn<T> {
        let waited = match turn {
            Turn::Begin(waited) => waited,
            Turn::TooLate => return FirstTurn::Done(Err(self.late())),
            Turn::Crowded(full) => return FirstTurn::Done(Err(overloaded(full))),
        };
        let began = Instant::now();
        match work(&self.turned(waited, inline, None)) {
            Outcome::HandedOver => FirstTurn::HandedOver,
            Outcome::Read(rows) => FirstTurn::Read(rows),
            Outcome::Done(result, values) => {
                self.record(waited, began.elapsed(), &result, values);
                FirstTurn::Done(result)
            }
        }
    }

    fn turned(&self, waited: Duration, inline: Option<Inline>, joined: Option<Joined>) -> Turned {
        Turned {
            waited,
            deadline: self.deadline,
            inline_time: inline.map(|inline| inline.time),
            gathers: inline.is_some_and(|inline| inline.gathers),
            joined: RefCell::new(joined),
        }
    }

    /// Takes the time of the work into the averages.
    fn record<T>(
        &self,
        waited: Duration,
        took: Duration,
        result: &Result<T>,
        values: Option<usize>,
    ) {
        self.metrics.record_stage(Stage::Queue, waited);
        self.estimates.record(self.bytes, took, result.is_err());
        if let (true, Some(values)) = (result.is_ok(), values) {
            self.small.record(self.bytes, values, took);
        }
    }

    fn late(&self) -> ServeError {
        ServeError::Deadline { limit: self.limit }
    }
}

impl Scoring {
    /// Runs `work` and returns its result: at once if it is small and no request waits, and on the
    /// pool otherwise. The body has arrived, and has `bytes` bytes. `is_packed` says whether the
    /// body must be unpacked first, which may take long.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        admitted: &Admitted,
        (bytes, is_packed): (usize, bool),
        limits: &Limits,
        mut work: impl FnMut(&Turned) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let now = Instant::now();
        let (limit, deadline) = (admitted.limit, now + admitted.limit);
        let estimates = admitted.estimates.clone();
        let estimate = estimates.of_bytes(bytes);
        let claim = Claim { flow: admitted.flow.clone(), estimate, deadline };
        let (metrics, small) = (self.metrics.clone(), admitted.small.clone());
        let facts = Facts { estimates, small, metrics, bytes, limit, deadline };
        if !is_packed
            && admitted.may_be_inline(bytes, limits)
            && let Some(result) = {
                let gathering = (limits, admitted.gathering.as_deref());
                self.run_here(&claim, &facts, gathering, &mut work).await
            }
        {
            return result;
        }
        self.run_queued(claim, facts, limits, work).await
    }

    /// Does the work on this thread, and returns its result. Returns `None` if a request waits, or
    /// the work is too long. `gathering` has other requests that may be scored in the same pass.
    async fn run_here<T>(
        &self,
        claim: &Claim,
        facts: &Facts,
        (limits, gathering): (&Limits, Option<&Gathering>),
        work: &mut impl FnMut(&Turned) -> Outcome<T>,
    ) -> Option<Result<T>> {
        let turn = match Instant::now() < claim.deadline {
            true => Turn::Begin(Duration::ZERO),
            false => Turn::TooLate,
        };
        let running = self.queue.begin_now(claim)?;
        let began = Instant::now();
        // A panic of one request must not end the thread of all others.
        let inline = Inline { time: limits.inline_time, gathers: gathering.is_some() };
        let first = catch_unwind(AssertUnwindSafe(|| facts.perform(turn, Some(inline), work)));
        let (result, has_others) = match (first, gathering) {
            (Err(_), _) | (Ok(FirstTurn::Read(_)), None) => (Err(ended_without_result()), false),
            (Ok(FirstTurn::HandedOver), _) => return None,
            (Ok(FirstTurn::Done(result)), _) => (result, false),
            (Ok(FirstTurn::Read(rows)), Some(gathering)) => {
                let read = began.elapsed();
                let joined = gathering.score(rows).await;
                let (share, has_others, again) = (joined.took, joined.has_others, Instant::now());
                let turned = facts.turned(Duration::ZERO, Some(inline), Some(joined));
                let done = catch_unwind(AssertUnwindSafe(|| work(&turned)));
                let took = read + share + again.elapsed();
                running.end(took);
                match done {
                    Ok(Outcome::Done(result, values)) => {
                        facts.record(Duration::ZERO, took, &result, values);
                        (result, has_others)
                    }
                    _ => (Err(ended_without_result()), has_others),
                }
            }
        };
        if result.is_ok() {
            self.metrics.record_inline(&claim.flow.model, has_others);
            Span::current().record("inline", true);
        }
        Some(result)
    }

    /// Does the work on the pool, when its turn comes.
    async fn run_queued<T: Send + 'static>(
        &self,
        claim: Claim,
        facts: Facts,
        limits: &Limits,
        mut work: impl FnMut(&Turned) -> Outcome<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, mut receiver) = oneshot::channel();
        let (now, bound) = (Instant::now(), limits.queue_time);
        let (limit, deadline) = (facts.limit, facts.deadline);
        let (request, queued) = (Span::current(), span!("queue"));
        let turn = move |turn: Turn| {
            drop(queued);
            let _inside = request.enter();
            // The client may have left meanwhile, so that the result is not wanted any more.
            if sender.is_closed() {
                return;
            }
            let result = match facts.perform(turn, None, &mut work) {
                FirstTurn::Done(result) => result,
                // The pool takes all work, and scores each request alone.
                FirstTurn::HandedOver | FirstTurn::Read(_) => Err(ended_without_result()),
            };
            let _ = sender.send(result);
        };
        // The place is held until the answer has come: dropping it withdraws a request that has not
        // begun.
        let place = self.queue.push(claim, bound, now, turn).map_err(overloaded)?;
        let queue = self.queue.clone();
        self.workers.spawn_detached(move || queue.run_next(bound));
        // A request that has waited too long is refused at once, and not when a thread comes to it.
        let outcome = match tokio::time::timeout(place.patience.min(limit), &mut receiver).await {
            Ok(outcome) => Ok(outcome),
            Err(_) => match place.withdraw() {
                Some(_) if now.elapsed() >= limit => return Err(ServeError::Deadline { limit }),
                Some(full) => return Err(overloaded(full)),
                None => tokio::time::timeout_at(deadline.into(), receiver).await,
            },
        };
        match outcome {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(ended_without_result()),
            Err(_) => Err(ServeError::Deadline { limit }),
        }
    }
}

impl Admitted {
    /// Returns whether the request may be begun on the network thread that read it, as far as its
    /// bytes say it. A thread that lags behind its requests leaves them to the queue, which is fair
    /// to all flows.
    fn may_be_inline(&self, bytes: usize, limits: &Limits) -> bool {
        bytes <= MOST_BYTES
            && !limits.inline_time.is_zero()
            && self.lag <= (limits.queue_time / 3).max(LEAST_LAG)
            && self.small.has_bytes(bytes, limits.inline_time)
    }
}

fn ended_without_result() -> ServeError {
    ServeError::Internal("the task of the request ended without a result".to_owned())
}

#[cfg(test)]
mod tests;
