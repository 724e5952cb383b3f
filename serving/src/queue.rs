//! The queue of requests that wait for a thread of the pool.
//!
//! Above its capacity a server can finish only a part of what it is asked. A queue that is bounded
//! by a number of requests then fills up with requests that expire while they wait, and the server
//! works on requests whose clients have left. So this queue is bounded by *time*: the estimated
//! work of what waits, divided by the threads, stays below a bound of some milliseconds. A request
//! that comes to a full queue is refused at once, before its body is read, and the requests in the
//! queue are finished in time.
//!
//! # Order
//! Each pair of a model and a principal is a flow. The next request comes from the flow that had
//! the least work done (start-time fair queueing), so that a burst of one flow delays the others by
//! one request and not by a burst. A flow may always fill its share of the bound. Inside a flow the
//! oldest request comes first. If it waited for more than twice the bound, the estimates were too
//! low, and the newest comes first until the old ones have expired: a new request can still be
//! answered in time, an old one mostly cannot (Maurer, "Fail at Scale", 2015). A request whose time
//! left is shorter than its estimate is not begun.
//!
//! # Concurrency
//! One mutex guards the queue. It is taken three times for a request, for a few comparisons, and
//! never on the way of a key. Work runs outside of it.

mod estimate;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use self::estimate::{Estimates, Wire};

/// A model and a principal, which share the server with other flows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    /// The name of the model.
    pub(crate) model: Arc<str>,
    /// The name of the principal.
    pub(crate) principal: Arc<str>,
}

/// The claim of a request on the queue.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// The flow of the request.
    pub(crate) flow: FlowKey,
    /// The estimated time of a thread that the request needs.
    pub(crate) estimate: Duration,
    /// The time by which the answer must be there.
    pub(crate) deadline: Instant,
}

/// The reason why the queue does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    /// The number of requests that wait.
    pub(crate) waiting: usize,
    /// The estimated time of the work before the request.
    pub(crate) backlog: Duration,
}

/// The outcome of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The request has waited for this time, and its work begins.
    Begin(Duration),
    /// The time left is too short for the work, which is not begun.
    TooLate,
}

type Work = Box<dyn FnOnce(Turn) + Send>;

/// The requests that wait.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// The number of threads that take requests.
    threads: u32,
}

#[derive(Default)]
struct State {
    /// The flows that have waiting requests.
    flows: BTreeMap<FlowKey, Flow>,
    waiting: usize,
    /// The estimated work of the requests that wait, and of those in work.
    waiting_work: Duration,
    running_work: Duration,
    /// The work that was done for the flow of the last request when that request began. A flow
    /// that comes anew starts there.
    served: Duration,
    next_id: u64,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Flow {
    requests: VecDeque<Waiting>,
    waiting_work: Duration,
    /// The estimated work that was done for this flow.
    served: Duration,
}

struct Waiting {
    id: u64,
    arrived: Instant,
    claim: Claim,
    work: Work,
}

/// A request that was taken out of the queue. Its work counts as running until the value is
/// dropped.
struct Running<'a> {
    queue: &'a Queue,
    estimate: Duration,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.running_work = state.running_work.saturating_sub(self.estimate);
    }
}

/// A place in the queue. Dropping it withdraws a request that has not begun.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    flow: FlowKey,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        // The work of the request may own anything, and is dropped without the lock.
        let withdrawn = self.queue.lock().withdraw(&self.flow, self.id);
        drop(withdrawn);
    }
}

impl Queue {
    /// Creates an empty queue for this number of threads.
    pub(crate) fn new(threads: usize) -> Self {
        let threads = u32::try_from(threads.max(1)).unwrap_or(u32::MAX);
        Self { state: Mutex::default(), threads }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Returns the estimated time until a request that came now would begin.
    pub(crate) fn backlog(&self) -> Duration {
        self.lock().backlog(self.threads)
    }

    /// Checks whether a request would be taken now. Nothing is reserved, because a client could
    /// reserve work and never send its body.
    ///
    /// # Errors
    /// Returns [`Full`] if the request would not be taken.
    pub(crate) fn check(&self, claim: &Claim, bound: Duration, now: Instant) -> Result<(), Full> {
        self.lock().check(claim, bound, self.threads, now)
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// Returns [`Full`] if the request is not taken.
    pub(crate) fn push(
        self: &Arc<Self>,
        claim: Claim,
        bound: Duration,
        now: Instant,
        work: impl FnOnce(Turn) + Send + 'static,
    ) -> Result<Place, Full> {
        let mut state = self.lock();
        state.check(&claim, bound, self.threads, now)?;
        let id = state.next_id;
        state.next_id += 1;
        state.waiting += 1;
        state.waiting_work += claim.estimate;
        let served = state.served;
        let key = claim.flow.clone();
        let flow =
            state.flows.entry(key.clone()).or_insert_with(|| Flow { served, ..Flow::default() });
        flow.waiting_work += claim.estimate;
        flow.requests.push_back(Waiting { id, arrived: now, claim, work: Box::new(work) });
        Ok(Place { queue: self.clone(), flow: key, id })
    }

    /// Does the work of the request whose turn it is. Requests that cannot finish any more are
    /// told so on the way.
    pub(crate) fn run_next(&self, bound: Duration) {
        let now = Instant::now();
        let (late, next) = self.lock().take(bound, now);
        for request in late {
            (request.work)(Turn::TooLate);
        }
        let Some(request) = next else { return };
        let _running = Running { queue: self, estimate: request.claim.estimate };
        (request.work)(Turn::Begin(now.saturating_duration_since(request.arrived)));
    }
}

impl State {
    /// Returns the estimated time until a request that came now would begin. Requests in work are
    /// half done on average.
    fn backlog(&self, threads: u32) -> Duration {
        (self.waiting_work + self.running_work / 2) / threads
    }

    fn check(
        &self,
        claim: &Claim,
        bound: Duration,
        threads: u32,
        now: Instant,
    ) -> Result<(), Full> {
        if self.waiting == 0 {
            return Ok(());
        }
        let backlog = self.backlog(threads);
        let full = Err(Full { waiting: self.waiting, backlog });
        if now + backlog + claim.estimate > claim.deadline {
            return full;
        }
        if backlog + claim.estimate / threads <= bound {
            return Ok(());
        }
        // The bound is reached. A flow that has less than its share waiting is taken all the same,
        // up to twice the bound.
        let own = self.flows.get(&claim.flow);
        let flows = self.flows.len() + usize::from(own.is_none());
        let share = bound / u32::try_from(flows).unwrap_or(u32::MAX);
        let own = own.map_or(Duration::ZERO, |flow| flow.waiting_work) + claim.estimate;
        match flows > 1 && own / threads <= share && backlog <= bound * 2 {
            true => Ok(()),
            false => full,
        }
    }

    /// Takes the request whose turn it is, and the requests before it that cannot finish in time.
    fn take(&mut self, bound: Duration, now: Instant) -> (Vec<Waiting>, Option<Waiting>) {
        let mut late = Vec::new();
        loop {
            let next = self.flows.iter().min_by_key(|(_, flow)| flow.served);
            let Some(key) = next.map(|(key, _)| key.clone()) else { return (late, None) };
            let Some(flow) = self.flows.get_mut(&key) else { return (late, None) };
            let waited = |request: &Waiting| now.saturating_duration_since(request.arrived);
            let is_pressed = flow.requests.front().is_some_and(|oldest| waited(oldest) > bound * 2);
            let can_finish =
                |request: &Waiting| now + request.claim.estimate <= request.claim.deadline;
            let is_oldest_late = flow.requests.front().is_some_and(|oldest| !can_finish(oldest));
            let taken = match is_pressed && !is_oldest_late {
                true => flow.requests.pop_back(),
                false => flow.requests.pop_front(),
            };
            let Some(request) = taken else {
                self.flows.remove(&key);
                continue;
            };
            let estimate = request.claim.estimate;
            flow.waiting_work = flow.waiting_work.saturating_sub(estimate);
            let is_empty = flow.requests.is_empty();
            let served = flow.served;
            if can_finish(&request) {
                flow.served += estimate;
            }
            if is_empty {
                self.flows.remove(&key);
            }
            self.waiting -= 1;
            self.waiting_work = self.waiting_work.saturating_sub(estimate);
            if !can_finish(&request) {
                late.push(request);
                continue;
            }
            self.served = self.served.max(served);
            self.running_work += estimate;
            return (late, Some(request));
        }
    }

    fn withdraw(&mut self, key: &FlowKey, id: u64) -> Option<Waiting> {
        let flow = self.flows.get_mut(key)?;
        let at = flow.requests.iter().position(|request| request.id == id)?;
        let request = flow.requests.remove(at)?;
        flow.waiting_work = flow.waiting_work.saturating_sub(request.claim.estimate);
        if flow.requests.is_empty() {
            self.flows.remove(key);
        }
        self.waiting -= 1;
        self.waiting_work = self.waiting_work.saturating_sub(request.claim.estimate);
        Some(request)
    }
}

#[cfg(test)]
mod tests;
