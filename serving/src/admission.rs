//! Admission: the way of a request from its head to its turn on the pool.
//!
//! [`Scoring::admit`] decides from the head of a request alone: the work is estimated from the
//! bytes that the head announces, so that a request which will be refused need not send its body.
//! The work itself (reading the body, encoding, lookup, model, writing the answer) is one piece,
//! which [`Scoring::run`] does on the network thread that read the request if it is small and no
//! request waits, and on the pool otherwise. A request whose client has left is not begun.

mod run;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zillion_access::{OpenRequest, Principal, QuotaUse, Usage};
use zillion_device::Workers;

use crate::budget::{Budget, HeldBytes, Holder};
use crate::config::Limits;
use crate::error::{Result, ServeError};
use crate::gathering::Gathering;
use crate::host::Host;
use crate::metrics::Metrics;
use crate::queue::{Claim, FlowKey, Full, Known, OfWires, Queue, SmallWork, Wire};

pub(crate) use self::run::{Outcome, Turned};

/// The bytes in flight after which freed memory is returned to the system.
const BURST_BYTES: usize = 4 << 20;

/// The number of principals whose use of a quota is remembered. Only principals with a quota are.
const MOST_PRINCIPALS: usize = 100_000;

/// The number of pairs of a model and a principal whose work is remembered. They are forgotten
/// together, and measured again.
const MOST_ESTIMATES: usize = 4096;

/// The smallest wait for a network thread after which requests are refused. Shorter waits come from
/// other processes.
const LEAST_LAG: Duration = Duration::from_millis(10);

/// The name of the principal of a listener without authentication.
const ANONYMOUS: &str = "anonymous";

/// The facts of a request's head that admission needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head<'a> {
    pub(crate) host: &'a Arc<Host>,
    pub(crate) caller: &'a Arc<Caller>,
    pub(crate) wire: Wire,
    /// The number of bytes of the body, or 0 if the head does not announce it.
    pub(crate) bytes: usize,
    /// The holder of the bytes of the request.
    pub(crate) holder: Holder<'a>,
    /// The number of bytes that the request holds from now on. A body that is announced holds its
    /// bytes as they come, so that a head alone keeps nobody out.
    pub(crate) booked: usize,
    /// The time that the client gives the request, if the head says one.
    pub(crate) time: Option<Duration>,
    /// The time for which the request waited for its network thread after it was read.
    pub(crate) lag: Duration,
    /// The small requests of the network thread, if the request may be scored with others.
    pub(crate) gathering: Option<&'a Arc<Gathering>>,
}

/// A request that was admitted. It counts as open until the value is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    flow: FlowKey,
    estimates: Known,
    pub(crate) small: Arc<SmallWork>,
    lag: Duration,
    gathering: Option<Arc<Gathering>>,
    pub(crate) limit: Duration,
    /// The bytes of the request that are in flight.
    pub(crate) held: HeldBytes,
    pub(crate) caller: Arc<Caller>,
    _open: Open,
}

/// The principal of an open request, with the use of its quota.
#[derive(Debug)]
pub(crate) struct Caller {
    principal: Arc<Principal>,
    used: Arc<QuotaUse>,
    began: Instant,
    _open: Option<OpenRequest>,
}

impl Caller {
    /// Returns the name of the principal.
    fn name(&self) -> &str {
        &self.principal.name
    }

    /// Returns the principal of the request.
    pub(crate) fn principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// Returns the largest number of bytes of a body that the quota allows.
    pub(crate) fn body_bytes(&self) -> Option<usize> {
        self.principal.quota.body_bytes
    }

    /// Takes the rows of the request from the quota.
    ///
    /// # Errors
    /// Returns an error if the quota allows fewer rows in a request.
    pub(crate) fn take_rows(&self, rows: usize) -> Result<()> {
        let quota = &self.principal.quota;
        if let Some(limit) = quota.rows.filter(|&limit| rows > limit) {
            return Err(ServeError::TooLarge {
                what: "the number of rows",
                limit,
                remedy: "send fewer rows at a time, or raise `quota.rows` of the caller",
            });
        }
        self.used.take_rows(quota, rows, self.began.elapsed());
        Ok(())
    }
}

/// A guard that counts one request as open while it lives.
#[derive(Debug)]
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The pool that does the work of requests, with the queue before it.
#[derive(Clone, Debug)]
pub(crate) struct Scoring {
    workers: Arc<Workers>,
    queue: Arc<Queue>,
    budget: Arc<Budget>,
    /// The number of requests that were admitted and have no answer yet.
    open: Arc<AtomicUsize>,
    quotas: Arc<Mutex<HashMap<String, Arc<QuotaUse>>>>,
    /// The estimates of principals that are not anonymous.
    estimates: Arc<Mutex<BTreeMap<FlowKey, OfWires>>>,
    metrics: Arc<Metrics>,
    began: Instant,
}

impl Scoring {
    pub(crate) fn new(workers: Arc<Workers>, threads: usize, metrics: Arc<Metrics>) -> Self {
        Self {
            workers,
            queue: Arc::new(Queue::new(threads)),
            budget: Arc::default(),
            open: Arc::default(),
            quotas: Arc::default(),
            estimates: Arc::default(),
            metrics,
            began: Instant::now(),
        }
    }

    /// Returns the shared number of open requests. Loaders rest while it is above zero.
    pub(crate) fn open(&self) -> Arc<AtomicUsize> {
        self.open.clone()
    }

    /// Checks that the queue has room for any flow.
    ///
    /// # Errors
    /// Returns [`ServeError::Overloaded`] if it has none.
    pub(crate) fn check_crowded(&self, limits: &Limits) -> Result<()> {
        let backlog = self.queue.backlog();
        match backlog > limits.queue_time * 2 && self.queue.waiting() > 0 {
            true => Err(ServeError::Overloaded { waiting: self.queue.waiting(), backlog }),
            false => Ok(()),
        }
    }

    /// Returns a claim of a holder on no bytes of the budget of bytes in flight.
    pub(crate) fn hold_bytes(&self, holder: Holder<'_>) -> HeldBytes {
        self.budget.empty(holder)
    }

    /// Returns whether a burst of bytes in flight has ended since the last call.
    pub(crate) fn has_burst_ended(&self) -> bool {
        self.budget.has_burst_ended(BURST_BYTES)
    }

    /// Returns whether requests wait.
    pub(crate) fn has_waiting(&self) -> bool {
        self.queue.waiting() > 0
    }

    /// Returns the number of requests that wait, the estimated time of their work, and the bytes in
    /// flight.
    pub(crate) fn load(&self) -> (usize, Duration, usize) {
        (self.queue.waiting(), self.queue.backlog(), self.budget.used())
    }

    /// Runs `work` when no request waits, without counting it as one, and returns whether it will
    /// run. A crowded server does not take it.
    pub(crate) fn run_idle(
        &self,
        estimate: Duration,
        limits: &Limits,
        work: impl FnOnce() + Send + 'static,
    ) -> bool {
        let (queue, bound) = (self.queue.clone(), limits.queue_time);
        let taken = queue.push_idle(estimate, work);
        if taken {
            self.workers.spawn_detached(move || queue.run_next(bound));
        }
        taken
    }

    /// Counts a request in the quota of its principal, before its body is received.
    ///
    /// # Errors
    /// Returns [`ServeError::Quota`] if the quota is used up.
    pub(crate) fn enter(&self, principal: &Arc<Principal>) -> Result<Arc<Caller>> {
        let (used, open) = self.open_quota(principal)?;
        let principal = principal.clone();
        Ok(Arc::new(Caller { principal, used, began: self.began, _open: open }))
    }

    /// Admits a request by its head.
    ///
    /// # Errors
    /// Returns [`ServeError::Overloaded`] if the request must come again later, and
    /// [`ServeError::TooLarge`] if its body is larger than the quota allows.
    pub(crate) fn admit(&self, head: &Head<'_>, limits: &Limits) -> Result<Admitted> {
        let now = Instant::now();
        if let Some(limit) = head.caller.body_bytes().filter(|&limit| head.bytes > limit) {
            let what = "the size of the body in bytes";
            let remedy = "send fewer rows at a time, or raise `quota.body_bytes` of the caller";
            return Err(ServeError::TooLarge { what, limit, remedy });
        }
        let waiting = self.open.fetch_add(1, Ordering::Relaxed);
        let open = Open(self.open.clone());
        // Requests of one connection can come faster than their network thread reads them.
        if waiting >= limits.waiting || head.lag > limits.queue_time.max(LEAST_LAG) {
            return Err(ServeError::Overloaded { waiting, backlog: self.queue.backlog() });
        }
        let limit = head.time.unwrap_or(limits.request_time).min(limits.request_time);
        let flow = FlowKey { model: head.host.shared_name(), principal: head.caller.name().into() };
        let estimates = self.known(head, &flow);
        let claim = Claim {
            flow: flow.clone(),
            estimate: estimates.of_bytes(head.bytes),
            deadline: now + limit,
        };
        self.queue.check(&claim, limits.queue_time, now).map_err(overloaded)?;
        let (mut held, most) = (self.budget.empty(head.holder), limits.bytes_in_flight);
        if !held.fits(head.bytes, most) || !held.grow(head.booked, most) {
            return Err(ServeError::Overloaded { waiting, backlog: self.queue.backlog() });
        }
        let (small, caller) = (head.host.small(head.wire).clone(), head.caller.clone());
        let (lag, gathering) = (head.lag, head.gathering.cloned());
        let admitted =
            Admitted { flow, estimates, small, lag, gathering, limit, held, caller, _open: open };
        Ok(admitted)
    }

    /// Returns the averages that estimate a request. Anonymous callers share those of the model.
    fn known(&self, head: &Head<'_>, flow: &FlowKey) -> Known {
        let shared = head.host.estimates(head.wire).clone();
        if head.caller.name() == ANONYMOUS {
            return Known::new(shared, None);
        }
        let mut all = self.estimates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get(flow) {
            return Known::new(shared, Some(own[head.wire as usize].clone()));
        }
        if all.len() >= MOST_ESTIMATES {
            all.clear();
        }
        let own: &mut OfWires = all.entry(flow.clone()).or_default();
        Known::new(shared, Some(own[head.wire as usize].clone()))
    }

    /// Counts the request in the quota of its principal, if the principal has one.
    fn open_quota(&self, caller: &Principal) -> Result<(Arc<QuotaUse>, Option<OpenRequest>)> {
        let quota = &caller.quota;
        if quota.concurrent.is_none() && quota.rows_per_second.is_none() {
            return Ok((Arc::default(), None));
        }
        let used = {
            let mut all = self.quotas.lock().unwrap_or_else(PoisonError::into_inner);
            if all.len() >= MOST_PRINCIPALS {
                all.retain(|_, used| Arc::strong_count(used) > 1);
            }
            all.entry(caller.name.clone()).or_default().clone()
        };
        let open = used.open(quota, self.began.elapsed()).map_err(|usage| {
            let wait = match usage {
                Usage::TooManyRequests => Duration::from_secs(1),
                Usage::TooManyRows(wait) => wait,
            };
            ServeError::Quota { caller: caller.name.clone(), wait }
        })?;
        Ok((used, Some(open)))
    }
}

fn overloaded(full: Full) -> ServeError {
    ServeError::Overloaded { waiting: full.waiting, backlog: full.backlog }
}
