//! The network: listeners, their threads, and connections that are accepted up to a limit, held
//! under time limits, and drained at the end.
//!
//! # Concurrency
//! Each listener has threads of its own, each with its own runtime ([`reactor`]). So a listener for
//! health and metrics answers whatever the scoring listeners are doing. The first thread of a
//! listener accepts its connections and deals them out. A connection stays on the thread that it
//! was dealt to.

mod activity;
mod answer;
mod beats;
mod connection;
mod connections;
mod lag;
mod listener;
mod peer;
mod phase;
mod reactor;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use zillion_access::Principal;
use zillion_device::machine;

pub use self::beats::Beats;
pub use self::connection::InMemoryServer;
pub(crate) use self::connections::Connections;
pub(crate) use self::lag::read_lag;
pub use self::listener::{Api, Listener, Proof};
pub(crate) use self::peer::Peer;
use self::peer::Rules;
use self::phase::Phase;
use self::reactor::Acceptor;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::grpc::Readiness;

/// The number of file descriptors that are left for other uses than connections.
const OTHER_FILES: u64 = 128;

/// Serves HTTP/1.1, HTTP/2 and gRPC on each of `listeners` until `shutdown` completes. Open
/// requests then have [`Limits::drain_time`](crate::Limits) to end. Each listener has its own
/// connections under the limits, so that a flood of one leaves the others alone. The network
/// threads report to `beats` that they move.
///
/// Returns the number of connections that were cut off at the end of that time.
///
/// # Errors
/// Returns an error if a socket cannot be used, or a thread or a service cannot be created.
pub async fn serve(
    domain: Arc<Domain>,
    listeners: Vec<Listener>,
    beats: &Beats,
    shutdown: impl Future<Output = ()>,
) -> Result<usize> {
    let (phase, follow) = watch::channel(Phase::Serving);
    let (readiness, watched) = watch::channel(Readiness::of(&domain));
    let most = most_connections(listeners.len(), domain.limits().connections);
    let connections: Arc<[Arc<Connections>]> =
        listeners.iter().map(|_| Arc::new(Connections::new(most))).collect();
    let mut threads = Vec::new();
    for (listener, own) in listeners.into_iter().zip(connections.iter()) {
        let Listener { socket, threads: count, apis, tls, proofs, identities } = listener;
        let rules = Rules { apis, proofs, identities, anonymous: Arc::new(Principal::anonymous()) };
        let shared = connection::Shared::new(&domain, own.clone(), &watched, rules, tls)?;
        let (dealer, seats) = reactor::seats(count);
        let connections = connections.clone();
        let mut acceptor = Some(Acceptor { shared: Arc::new(shared), socket, connections, dealer });
        for seat in seats {
            let thread = reactor::start(seat, acceptor.take(), follow.clone(), beats)?;
            threads.push(thread);
        }
    }
    drop(follow);
    let mut shutdown = std::pin::pin!(shutdown);
    // The server is a lame duck from the first signal on, and `shutdown` completes later.
    let mut look = tokio::time::interval(Duration::from_millis(50));
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            _ = look.tick() => {
                if domain.is_draining() {
                    phase.send_replace(Phase::LameDuck);
                }
                // One look serves all clients that watch.
                readiness.send_if_modified(|last| {
                    let now = Readiness::of(&domain);
                    std::mem::replace(last, now) != now
                });
            }
        }
    }
    domain.drain();
    readiness.send_replace(Readiness::of(&domain));
    phase.send_replace(Phase::Draining);
    let drained = tokio::time::timeout(domain.limits().drain_time, phase.closed()).await;
    let cut = if drained.is_ok() { 0 } else { connections.iter().map(|own| own.count()).sum() };
    // The threads that are still busy end with the process.
    if drained.is_ok() {
        for thread in threads {
            if thread.join().is_err() {
                return Err(ServeError::Internal("a network thread panicked".to_owned()));
            }
        }
    }
    Ok(cut)
}

/// Returns the largest number of connections of each listener for which the process has file
/// descriptors, and logs if the settings ask for more.
fn most_connections(listeners: usize, wanted: usize) -> usize {
    let Some(limit) = machine::file_limit() else { return usize::MAX };
    let left = usize::try_from(limit.soft.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
    let most = (left / listeners.max(1)).max(1);
    if most < wanted {
        tracing::warn!(
            "the limit of {} open files allows {most} connections for each listener, and \
             `serve.max_connections` is {wanted}; raise the limit (`LimitNOFILE`)",
            limit.soft
        );
    }
    most
}

#[cfg(test)]
mod tests;
