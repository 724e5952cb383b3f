//! A closed loop of requests: each stream sends the next request after the answer to its last one,
//! for a given time. The loop measures the capacity of a server, in answers per second.
//!
//! The latencies of a closed loop are those of a server that is always busy. A slow answer delays
//! the requests behind it, so these latencies say little about requests that come by themselves.
//! The module [`super::open_loop`] measures those.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use tokio::task::LocalSet;

use super::connection::{Connection, SharedConnection};
use super::figures::failure;
use super::open_loop::Outcome;
use super::target::Target;

/// The pause of a stream after a request that failed.
const PAUSE: Duration = Duration::from_millis(5);

/// The size of a closed loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) connections: usize,
    /// The number of requests in flight on each connection. More than one needs gRPC.
    pub(crate) streams: usize,
    /// The time after which no request is sent.
    pub(crate) time: Duration,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// The times from sending a request to its answer, of the requests that were answered with
    /// scores.
    pub(crate) latencies: Vec<Duration>,
    /// The number of failed requests, by status or by kind of failure.
    pub(crate) failures: BTreeMap<String, u64>,
    /// The size of an answer in bytes.
    pub(crate) answer_bytes: usize,
    /// The time from the first request to the last answer.
    pub(crate) elapsed: Duration,
}

/// Sends requests in the streams of `load`, with the bodies in a cycle. All streams are tasks on
/// one thread, because a client must not use more processors if the server runs on the same
/// machine.
///
/// # Errors
/// Returns an error if the runtime for the network cannot start.
pub(crate) fn run(target: &Target, bodies: &[Bytes], load: Load) -> Result<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime for the network cannot start")?;
    let state = Rc::new(RefCell::new(Run::default()));
    let (local, began) = (LocalSet::new(), Instant::now());
    let end = began + load.time;
    local.block_on(&runtime, async {
        let mut tasks = Vec::new();
        for connection in 0..load.connections {
            let shared = (load.streams > 1).then(Arc::<SharedConnection>::default);
            for stream in 0..load.streams {
                let (state, target, shared) = (state.clone(), target.clone(), shared.clone());
                let (bodies, first) = (bodies.to_vec(), connection * load.streams + stream);
                tasks.push(tokio::task::spawn_local(async move {
                    let connection = match shared {
                        Some(shared) => Connection::stream(&target, shared),
                        None => Connection::new(&target),
                    };
                    send_until(end, connection, bodies.iter().cycle().skip(first), &state).await;
                }));
            }
        }
        for task in tasks {
            task.await.context("the task of a connection panicked")?;
        }
        anyhow::Ok(())
    })?;
    drop(local);
    let run = Rc::into_inner(state).context("a connection's task has not ended")?.into_inner();
    Ok(Run { elapsed: began.elapsed(), ..run })
}

/// Sends requests one after another until `end`. A stream without a connection ends at once.
async fn send_until<'a>(
    end: Instant,
    mut connection: Connection<'_>,
    bodies: impl Iterator<Item = &'a Bytes>,
    state: &RefCell<Run>,
) {
    for body in bodies {
        let sent = Instant::now();
        if sent >= end {
            return;
        }
        let outcome = match connection.open().await {
            Err(_) => Outcome::NoConnection,
            Ok(()) => match connection.post(body.clone()).await {
                Err(_) => Outcome::Broken,
                Ok((status, answer)) => {
                    if status.is_success() {
                        let mut run = state.borrow_mut();
                        run.latencies.push(sent.elapsed());
                        run.answer_bytes = answer.len();
                    }
                    Outcome::Status(status.as_u16())
                }
            },
        };
        if let Some(failure) = failure(outcome) {
            *state.borrow_mut().failures.entry(failure).or_default() += 1;
            // A client that was refused and came back at once would keep the server busy with
            // refusals.
            tokio::time::sleep(PAUSE).await;
        }
        if outcome == Outcome::NoConnection {
            return;
        }
    }
}
