//! The network: listeners, their threads, and connections that are accepted up to a limit, held
//! under time limits, and drained at the end.
//!
//! # Concurrency
//! Each listener has threads of its own, each with its own socket on the same address
//! (`SO_REUSEPORT`) and its own runtime. So a listener for health and metrics answers whatever the
//! scoring listeners are doing. A connection stays on the thread that accepted it.

mod activity;
mod answer;
mod beats;
mod connection;
mod connections;
mod listener;
mod peer;
mod stream;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use zillion_device::machine;

pub use self::beats::Beats;
pub use self::connection::InMemoryServer;
pub(crate) use self::connections::Connections;
pub use self::listener::{Api, Listener, Proof};
pub(crate) use self::peer::Peer;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::grpc::Readiness;

/// The number of file descriptors that are left for other uses than connections.
const OTHER_FILES: u64 = 128;

/// The wait after a failed accept, which may come from a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The state of the server that its connections follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Connections are accepted and kept.
    Serving,
    /// Connections are accepted, and each is closed after its open requests.
    LameDuck,
    /// No connection is accepted, and open requests end.
    Draining,
}

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
        let (shared, sockets) = connection::Shared::new(&domain, own.clone(), &watched, listener)?;
        let shared = Arc::new(shared);
        for socket in sockets {
            let acceptor = Acceptor {
                shared: shared.clone(),
                connections: connections.clone(),
                phase: follow.clone(),
            };
            threads.push(start_thread(acceptor, socket, beats)?);
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

/// The parts of a thread that accepts connections.
struct Acceptor {
    shared: Arc<connection::Shared>,
    /// The connections of all listeners.
    connections: Arc<[Arc<Connections>]>,
    phase: watch::Receiver<Phase>,
}

/// Starts a thread that accepts the connections of one socket.
fn start_thread(
    acceptor: Acceptor,
    socket: std::net::TcpListener,
    beats: &Beats,
) -> Result<JoinHandle<()>> {
    let internal = |e: std::io::Error| {
        ServeError::Internal(format!(
            "cannot accept connections ({e}); raise the limits of the system on open files and \
             threads"
        ))
    };
    socket.set_nonblocking(true).map_err(internal)?;
    // The answers of the pool come before new requests. By default, the runtime takes one of them
    // for every 31 events of connections, so a flood of requests would delay ready answers.
    let runtime =
        tokio::runtime::Builder::new_current_thread().global_queue_interval(1).enable_all().build();
    let runtime = runtime.map_err(internal)?;
    let thread = thread::Builder::new().name("zillion-network".to_owned());
    let beat = beats.register();
    let run = move || {
        let accept = async {
            tokio::select! {
                ended = accept(acceptor, socket) => ended,
                never = beat.repeat() => match never {},
            }
        };
        if let Err(error) = runtime.block_on(accept) {
            tracing::error!("a network thread ended: {error}");
        }
    };
    thread.spawn(run).map_err(internal)
}

/// Accepts connections until the server drains, and waits for the end of the open ones.
async fn accept(acceptor: Acceptor, socket: std::net::TcpListener) -> std::io::Result<()> {
    let Acceptor { shared, connections, mut phase } = acceptor;
    let socket = TcpListener::from_std(socket)?;
    let mut open = tokio::task::JoinSet::new();
    let follow = phase.clone();
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, address)) => {
                    if let Some(connection) = connection::begin(&shared, stream, address) {
                        open.spawn(connection.run(follow.clone()));
                    }
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    if machine::is_out_of_files(&error) {
                        evict_one(&connections);
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = open.join_next() => {}
            changed = phase.wait_for(|phase| *phase == Phase::Draining) => {
                drop(changed);
                break;
            }
        }
    }
    drop(socket);
    while open.join_next().await.is_some() {}
    Ok(())
}

/// Closes an idle connection of the listener that has most of them.
fn evict_one(connections: &[Arc<Connections>]) {
    let mut all: Vec<_> = connections.iter().map(|own| (own.count(), own)).collect();
    all.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
    let _ = all.iter().any(|(_, own)| own.evict_idle());
}

#[cfg(test)]
mod tests;
