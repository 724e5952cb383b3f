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
//! one request and not by a burst. The work of a flow is counted by its measured time, and is
//! remembered while the flow has no waiting request, so that a client that always has one of them
//! does not come first each time. A flow may always fill its share of the bound, and may always
//! have one waiting request. Inside a flow the oldest request comes first. Work of the lowest
//! priority, as that of shadow versions, runs only if no request waits.
//!
//! # Time
//! Estimates are never exact, so that the queue compares the estimated work that it gave out with
//! the time that passed while it was never empty ([`Pace`]), and corrects the backlog by the ratio.
//! A request that waited much longer than the bound all the same is refused like one that comes to
//! a full queue: a late answer helps nobody and delays all others. A request with less time left
//! than its estimate is not begun after a wait above the bound. A server that is not crowded tries
//! each request, so an estimate that is too high is measured again.
//!
//! # Concurrency
//! One mutex guards the queue. It is taken three or four times for a request, for a few
//! comparisons, and never on the way of a key. Work runs outside of it.
//!
//! A small request that comes while no request waits is begun by the network thread that read it
//! ([`Queue::begin_now`]), and is counted like one that was taken out of the queue.

mod estimate;
mod pace;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use self::estimate::{Estimates, Known, OfWires, SmallWork, Wire};
use self::pace::Pace;

/// The number of flows whose work is remembered before those that have no claim left are forgotten.
const REMEMBERED: usize = 1024;

/// The largest number of flows whose work is remembered.
const MOST_REMEMBERED: usize = 65_536;

/// The largest number of works of the lowest priority that wait.
const MOST_IDLE: usize = 4;

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
    /// The request waited too long, because the server is crowded. Its work is not begun.
    Crowded(Full),
}

type Work = Box<dyn FnOnce(Turn) + Send>;
type IdleWork = Box<dyn FnOnce() + Send>;

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
    /// The work that was done for flows without waiting requests, as far as it is more than
    /// `served`.
    finished: BTreeMap<FlowKey, Duration>,
    /// The number of entries of `finished` above which those without a claim are removed.
    sweep_above: usize,
    /// The works of the lowest priority, with their estimates.
    idle: VecDeque<(Duration, IdleWork)>,
    waiting: usize,
    /// The estimated work of the requests that wait, and of those in work.
    waiting_work: Duration,
    running_work: Duration,
    pace: Pace,
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
    /// The longest time that the request waits.
    patience: Duration,
    claim: Claim,
    work: Work,
}

/// The outcome of a look at the queue.
#[derive(Default)]
struct Taken {
    /// The requests that are not begun any more, each with what it is told.
    ended: Vec<(Waiting, Turn)>,
    next: Option<Waiting>,
    /// The work of the lowest priority that runs because no request waits.
    idle: Option<(Duration, IdleWork)>,
}

/// A request that was taken out of the queue. Its work counts as running until the value is
/// dropped. What it took beyond its estimate is charged to its flow then.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    queue: &'a Queue,
    estimate: Duration,
    /// The flow that pays for the work, and the time when it began.
    charged: Option<(FlowKey, Instant)>,
    /// The time of the work, if it is not all the time since it began.
    took: Option<Duration>,
}

impl Running<'_> {
    /// Ends work that had turns with other work between them, and took this time.
    pub(crate) fn end(mut self, took: Duration) {
        self.took = Some(took);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let elapsed = self.charged.as_ref().map(|(_, began)| began.elapsed());
        let elapsed = self.took.or(elapsed);
        let mut state = self.queue.lock();
        state.running_work = state.running_work.saturating_sub(self.estimate);
        let surplus = elapsed.unwrap_or_default().saturating_sub(self.estimate);
        match self.charged.take() {
            Some((key, _)) if !surplus.is_zero() => state.charge(key, surplus),
            _ => {}
        }
    }
}

/// A place in the queue. Dropping it withdraws a request that has not begun.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    flow: FlowKey,
    id: u64,
    /// The longest time that the request waits.
    pub(crate) patience: Duration,
}

impl Place {
    /// Takes the request out of the queue, and returns the state of the queue, or `None` if the
    /// work has begun.
    pub(crate) fn withdraw(&self) -> Option<Full> {
        let (withdrawn, full) = {
            let mut state = self.queue.lock();
            let full = state.full(self.queue.threads);
            (state.withdraw(&self.flow, self.id), full)
        };
        // The work of the request may own anything, and is dropped without the lock.
        withdrawn.map(|_| full)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.withdraw();
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
        if state.waiting == 0 {
            state.begin_busy();
        }
        let id = state.next_id;
        state.next_id += 1;
        state.waiting += 1;
        state.waiting_work += claim.estimate;
        // Work that has begun cannot be interrupted, so that it is waited for.
        let begun = state.running_work / self.threads;
        let patience = bound + bound / 4 + claim.estimate.max(begun);
        let (key, served) = (claim.flow.clone(), state.served);
        let State { flows, finished, .. } = &mut *state;
        let flow = flows.entry(key.clone()).or_insert_with(|| {
            let own = finished.remove(&key).unwrap_or_default();
            Flow { served: own.max(served), ..Flow::default() }
        });
        flow.waiting_work += claim.estimate;
        let work = Box::new(work);
        flow.requests.push_back(Waiting { id, arrived: now, patience, claim, work });
        Ok(Place { queue: self.clone(), flow: key, id, patience })
    }

    /// Begins the work of a request on the thread that read it, as if the request had been put into
    /// the queue and taken out at once. Returns `None` if a request waits, whose turn comes first.
    pub(crate) fn begin_now(&self, claim: &Claim) -> Option<Running<'_>> {
        let (key, estimate) = (claim.flow.clone(), claim.estimate);
        let mut state = self.lock();
        if state.waiting > 0 {
            return None;
        }
        state.begin_busy();
        let own = state.finished.get(&key).copied().unwrap_or_default();
        state.served = state.served.max(own);
        let served = state.served + estimate;
        state.remember(key.clone(), served);
        state.running_work += estimate;
        drop(state);
        Some(Running { queue: self, estimate, charged: Some((key, Instant::now())), took: None })
    }

    /// Puts work of the lowest priority into the queue, and returns whether it was taken. A few of
    /// them wait at most, and none comes while requests wait.
    pub(crate) fn push_idle(
        &self,
        estimate: Duration,
        work: impl FnOnce() + Send + 'static,
    ) -> bool {
        let mut state = self.lock();
        if state.waiting > 0 || state.idle.len() >= MOST_IDLE {
            return false;
        }
        state.idle.push_back((estimate, Box::new(work)));
        true
    }

    /// Does the work of the request whose turn it is, or else work of the lowest priority. Requests
    /// that are not begun any more are told so on the way.
    pub(crate) fn run_next(&self, bound: Duration) {
        let now = Instant::now();
        let Taken { ended, next, idle } = self.lock().take(bound, self.threads, now);
        for (request, turn) in ended {
            (request.work)(turn);
        }
        if let Some(request) = next {
            let Waiting { claim, work, arrived, .. } = request;
            let charged = Some((claim.flow, Instant::now()));
            let estimate = claim.estimate;
            let _running = Running { queue: self, estimate, charged, took: None };
            work(Turn::Begin(now.saturating_duration_since(arrived)));
        } else if let Some((estimate, work)) = idle {
            let _running = Running { queue: self, estimate, charged: None, took: None };
            work();
        }
    }
}

impl State {
    /// Returns the time that the threads need for estimated work.
    fn time_of(&self, work: Duration, threads: u32) -> Duration {
        self.pace.correct(work) / threads
    }

    /// Returns the estimated time until a request that came now would begin. Requests in work are
    /// half done on average.
    fn backlog(&self, threads: u32) -> Duration {
        self.time_of(self.waiting_work + self.running_work / 2, threads)
    }

    fn full(&self, threads: u32) -> Full {
        Full { waiting: self.waiting, backlog: self.backlog(threads) }
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
        let full = self.full(threads);
        let own = self.flows.get(&claim.flow);
        // The first request of a flow is taken whatever its estimate is. An estimate that is too
        // high is measured again in this way.
        if own.is_none() && full.backlog <= bound && now + full.backlog <= claim.deadline {
            return Ok(());
        }
        if now + full.backlog + claim.estimate > claim.deadline {
            return Err(full);
        }
        if full.backlog + self.time_of(claim.estimate, threads) <= bound {
            return Ok(());
        }
        // The bound is reached. A flow that has less than its share waiting is taken all the same:
        // flows take turns, so that its requests begin within the bound.
        let flows = self.flows.len() + usize::from(own.is_none());
        let share = bound / u32::try_from(flows).unwrap_or(u32::MAX);
        let own = own.map_or(Duration::ZERO, |flow| flow.waiting_work) + claim.estimate;
        match flows > 1 && self.time_of(own, threads) <= share {
            true => Ok(()),
            false => Err(full),
        }
    }

    /// Takes the request whose turn it is, and the requests before it that are not begun any more.
    fn take(&mut self, bound: Duration, threads: u32, now: Instant) -> Taken {
        let mut taken = Taken::default();
        loop {
            let order = |flow: &Flow| (flow.served, flow.requests.front().map(|first| first.id));
            let next = self.flows.iter().min_by_key(|(_, flow)| order(flow));
            let Some(key) = next.map(|(key, _)| key.clone()) else {
                self.pace.end();
                taken.idle = self.idle.pop_front();
                let estimate = taken.idle.as_ref().map(|(estimate, _)| *estimate);
                self.running_work += estimate.unwrap_or_default();
                return taken;
            };
            let Some(flow) = self.flows.get_mut(&key) else { return taken };
            let Some(request) = flow.requests.pop_front() else {
                self.forget(&key);
                continue;
            };
            let (estimate, deadline) = (request.claim.estimate, request.claim.deadline);
            let waited = now.saturating_duration_since(request.arrived);
            let is_crowded = waited > request.patience;
            let is_late = now >= deadline || (waited > bound && now + estimate > deadline);
            let served = flow.served;
            flow.waiting_work = flow.waiting_work.saturating_sub(estimate);
            if !is_crowded && !is_late {
                flow.served += estimate;
            }
            if flow.requests.is_empty() {
                self.forget(&key);
            }
            self.waiting -= 1;
            self.waiting_work = self.waiting_work.saturating_sub(estimate);
            if is_crowded || is_late {
                let turn = match is_late {
                    true => Turn::TooLate,
                    false => Turn::Crowded(self.full(threads)),
                };
                taken.ended.push((request, turn));
                continue;
            }
            self.served = self.served.max(served);
            self.running_work += estimate;
            self.pace.take(now, estimate / threads, self.waiting > 0);
            taken.next = Some(request);
            return taken;
        }
    }

    fn withdraw(&mut self, key: &FlowKey, id: u64) -> Option<Waiting> {
        let flow = self.flows.get_mut(key)?;
        let at = flow.requests.iter().position(|request| request.id == id)?;
        let request = flow.requests.remove(at)?;
        flow.waiting_work = flow.waiting_work.saturating_sub(request.claim.estimate);
        if flow.requests.is_empty() {
            self.forget(key);
        }
        self.waiting -= 1;
        self.waiting_work = self.waiting_work.saturating_sub(request.claim.estimate);
        Some(request)
    }

    /// Removes a flow that has no waiting request, and remembers the work that was done for it.
    fn forget(&mut self, key: &FlowKey) {
        let Some((key, flow)) = self.flows.remove_entry(key) else { return };
        self.remember(key, flow.served);
    }

    fn remember(&mut self, key: FlowKey, served: Duration) {
        if served <= self.served {
            self.finished.remove(&key);
            return;
        }
        self.finished.insert(key, served);
        if self.finished.len() > self.sweep_above.max(REMEMBERED) {
            let reached = self.served;
            self.finished.retain(|_, served| *served > reached);
            if self.finished.len() > MOST_REMEMBERED {
                self.finished.clear();
            }
            self.sweep_above = 2 * self.finished.len();
        }
    }

    /// Charges the time by which the work of a request took longer than its estimate to its flow.
    fn charge(&mut self, key: FlowKey, surplus: Duration) {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.served += surplus;
            return;
        }
        // A flow that was forgotten meanwhile was at most there.
        let before = self.finished.get(&key).copied().unwrap_or(self.served);
        self.remember(key, before + surplus);
    }

    /// Prepares for a request that comes to an empty queue. Nobody owes anything to others after a
    /// time in which the server had nothing to do.
    fn begin_busy(&mut self) {
        self.pace.end();
        if self.running_work.is_zero() && !self.finished.is_empty() {
            let last = self.finished.values().max().copied().unwrap_or_default();
            self.served = self.served.max(last);
            self.finished.clear();
        }
    }
}

#[cfg(test)]
mod tests;
