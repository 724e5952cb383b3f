//! An open loop of requests. The times at which requests are due do not depend on the server.
//!
//! A client that sends the next request only after the last answer sends fewer requests to a slow
//! server. Such a client leaves out exactly the requests that would have waited ("coordinated
//! omission", Gil Tene). Here, request `k` is due at `start + k / rate`, and its latency counts
//! from this time. If all connections are busy, the request waits, and its latency includes the
//! wait.
//!
//! # Concurrency
//! A separate thread watches the clock, because the timers of an async runtime are accurate only to
//! a millisecond, and this module measures tenths of a millisecond. The thread issues one permit
//! for each request. The thread of the connections looks at the clock after each answer too, and
//! issues the permits that are due. Near the capacity it nearly always comes first, so that it is
//! not woken for each request. Connections receive permits in the order in which they asked for
//! them, and take requests in the order of their due times. All connections are tasks on one
//! thread, because a client must not use more processors if the server runs on the same machine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use super::answers::Answers;
use super::connection::{Connection, SharedConnection};
use super::target::Target;

/// The maximum sleep of the thread that watches the clock. After at most this time, the thread
/// notices that the run has been stopped.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// The plan of a run: the rate, the number and the time limit of the requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The number of requests per second.
    pub(crate) rate: f64,
    /// The total number of requests.
    pub(crate) requests: u64,
    pub(crate) connections: usize,
    /// The maximum time until the answer to a request, counted from its due time.
    pub(crate) timeout: Duration,
    /// The maximum time from the due time of a request until it is sent. A generator that cannot
    /// send at the planned rate leaves out requests after this time, so that a server answers
    /// requests of now and not of a backlog in the generator.
    pub(crate) send_within: Duration,
}

impl Plan {
    /// Returns the due time of a request, counted from the start of the run.
    pub(crate) fn due(&self, request: u64) -> Duration {
        Duration::from_secs_f64(request as f64 / self.rate)
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The request was answered with this status.
    Status(u16),
    /// The connection was refused.
    NoConnection,
    /// The connection broke before the answer was complete.
    Broken,
    /// The request was sent, but not answered in time.
    Timeout,
    /// The request was not sent, because the time limit of sending was reached while the request
    /// waited for a connection.
    NotSent,
}

/// A request that has been answered or has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) request: u64,
    /// The time from the due time of the request to the end of the answer.
    pub(crate) latency: Duration,
    pub(crate) outcome: Outcome,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    /// The requests in the order in which they ended.
    pub(crate) done: Vec<Done>,
    pub(crate) answers: Answers,
    /// The time from the due time of the first request to the last answer.
    pub(crate) elapsed: Duration,
    /// The number of connections that were opened. It is larger than the number in the arguments if
    /// connections broke or were closed.
    pub(crate) connections_made: u64,
}

/// Sends requests at the times of `plan`, and adds the answers to `answers`. The requests use
/// `bodies` in a cycle.
pub(crate) fn run(target: &Target, bodies: &[Bytes], plan: Plan, answers: Answers) -> Result<Run> {
    run_streams(target, bodies, plan, 1, answers)
}

/// Does what [`run`] does, with `streams` requests in flight on each connection. The plan has the
/// number of all streams as that of its connections. More than one stream needs gRPC.
pub(crate) fn run_streams(
    target: &Target,
    bodies: &[Bytes],
    plan: Plan,
    streams: usize,
    answers: Answers,
) -> Result<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime for the network cannot start")?;
    let start = Instant::now();
    let (permits, issued) = (Semaphore::new(0), AtomicU64::new(0));
    let due = Arc::new(Due { plan, start, permits, issued });
    let stop = Arc::new(AtomicBool::new(false));
    let clock = {
        let (due, stop) = (due.clone(), stop.clone());
        let watch = move || due.watch_clock(&stop);
        std::thread::Builder::new().name("zillion-loadgen-clock".to_owned()).spawn(watch)?
    };
    let state = Rc::new(State {
        due,
        next: Cell::new(0),
        start,
        plan,
        done: RefCell::new(Vec::new()),
        answers: RefCell::new(answers),
        made: Cell::new(0),
    });
    let local = LocalSet::new();
    let outcome = local.block_on(&runtime, async {
        let mut tasks = Vec::new();
        let mut shared = None;
        for stream in 0..plan.connections {
            let (state, target) = (state.clone(), target.clone());
            let bodies = bodies.to_vec();
            if streams > 1 && stream % streams == 0 {
                shared = Some(Arc::<SharedConnection>::default());
            }
            let shared = shared.clone();
            tasks.push(tokio::task::spawn_local(async move {
                let connection = match shared {
                    Some(shared) => Connection::stream(&target, shared),
                    None => Connection::new(&target),
                };
                state.connection(connection, &bodies).await;
            }));
        }
        for task in tasks {
            task.await.context("the task of a connection panicked")?;
        }
        anyhow::Ok(())
    });
    stop.store(true, Ordering::Relaxed);
    // The thread only sleeps and issues permits, so the result of the join can be ignored.
    let _ = clock.join();
    outcome?;
    drop(local);
    let elapsed = start.elapsed();
    let state = Rc::into_inner(state).context("a connection's task has not ended")?;
    Ok(Run {
        done: state.done.into_inner(),
        answers: state.answers.into_inner(),
        elapsed,
        connections_made: state.made.get(),
    })
}

/// The permits of the requests that are due.
struct Due {
    plan: Plan,
    start: Instant,
    permits: Semaphore,
    /// The number of permits that were issued.
    issued: AtomicU64,
}

impl Due {
    /// Issues the permits of all requests that are due now. Returns the number of permits that were
    /// issued until now.
    fn issue(&self) -> u64 {
        let (plan, now) = (&self.plan, self.start.elapsed());
        let mut until = self.issued.load(Ordering::Relaxed);
        while until < plan.requests && plan.due(until) <= now {
            until += 1;
        }
        // The other thread may have issued some of them meanwhile.
        let before = self.issued.fetch_max(until, Ordering::Relaxed);
        if before < until {
            self.permits.add_permits((until - before) as usize);
        }
        before.max(until)
    }

    /// Issues a permit at the due time of each request.
    fn watch_clock(&self, stop: &AtomicBool) {
        let plan = &self.plan;
        let mut issued = 0;
        while issued < plan.requests && !stop.load(Ordering::Relaxed) {
            issued = self.issue();
            if issued < plan.requests {
                let next = plan.due(issued).saturating_sub(self.start.elapsed());
                std::thread::sleep(next.min(LONGEST_SLEEP));
            }
        }
        // The run has ended, so a connection that still waits has no more requests to send. It must
        // be released.
        match issued < plan.requests {
            true => self.permits.close(),
            false => self.permits.add_permits(plan.connections),
        }
    }
}

/// The state that all connections share.
struct State {
    due: Arc<Due>,
    next: Cell<u64>,
    start: Instant,
    plan: Plan,
    done: RefCell<Vec<Done>>,
    answers: RefCell<Answers>,
    made: Cell<u64>,
}

impl State {
    /// Waits until the next request is due, and returns its number. Returns `None` after the last
    /// request.
    async fn next(&self) -> Option<u64> {
        self.due.permits.acquire().await.ok()?.forget();
        let request = self.next.get();
        self.next.set(request + 1);
        (request < self.plan.requests).then_some(request)
    }

    async fn connection(&self, mut connection: Connection<'_>, bodies: &[Bytes]) {
        while let Some(request) = self.next().await {
            let due = self.start + self.plan.due(request);
            let body = (request % bodies.len() as u64) as usize;
            let late = due.elapsed();
            let left = self.plan.timeout.saturating_sub(late);
            let outcome = if left.is_zero() || late > self.plan.send_within {
                Outcome::NotSent
            } else {
                let ask = self.ask(&mut connection, body, bodies);
                let outcome = tokio::time::timeout(left, ask).await;
                outcome.unwrap_or_else(|_| {
                    connection.drop_open();
                    Outcome::Timeout
                })
            };
            let latency = due.elapsed();
            self.done.borrow_mut().push(Done { request, latency, outcome });
            self.due.issue();
        }
        self.made.set(self.made.get() + connection.made);
    }

    async fn ask(&self, connection: &mut Connection<'_>, body: usize, bodies: &[Bytes]) -> Outcome {
        if connection.open().await.is_err() {
            return Outcome::NoConnection;
        }
        match connection.post(bodies[body].clone()).await {
            Err(_) => Outcome::Broken,
            Ok((status, answer)) => {
                if status.is_success() {
                    self.answers.borrow_mut().add(body, answer);
                }
                Outcome::Status(status.as_u16())
            }
        }
    }
}

#[cfg(test)]
mod tests;
