//! The network: listeners, their threads, and connections that are accepted up to a limit, held
//! under time limits, and drained at the end.
//!
//! # Concurrency
//! Each listener has threads of its own, each with its own socket on the same address
//! (`SO_REUSEPORT`) and its own runtime. So a listener for health and metrics answers whatever the
//! scoring listeners are doing. A connection stays on the thread that accepted it.

mod activity;
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

pub use self::connection::InMemoryServer;
pub(crate) use self::connections::Connections;
pub use self::listener::{Api, Listener, Proof};
pub(crate) use self::peer::Peer;
use crate::domain::Domain;
use crate::error::{Result, ServeError};

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
/// requests then have [`Limits::drain_time`](crate::Limits) to end. The limits hold for all
/// listeners together.
///
/// Returns the number of connections that were cut off at the end of that time.
///
/// # Errors
/// Returns an error if a socket cannot be used, or a thread or a service cannot be created.
pub async fn serve(
    domain: Arc<Domain>,
    listeners: Vec<Listener>,
    shutdown: impl Future<Output = ()>,
) -> Result<usize> {
    let (phase, follow) = watch::channel(Phase::Serving);
    let connections = Arc::new(Connections::default());
    let mut threads = Vec::new();
    for listener in listeners {
        let (shared, sockets) = connection::Shared::new(&domain, &connections, listener)?;
        let shared = Arc::new(shared);
        for socket in sockets {
            threads.push(start_thread(shared.clone(), socket, follow.clone())?);
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
            }
        }
    }
    domain.drain();
    phase.send_replace(Phase::Draining);
    let drained = tokio::time::timeout(domain.limits().drain_time, phase.closed()).await;
    let cut = if drained.is_ok() { 0 } else { connections.count() };
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

/// Starts a thread that accepts the connections of one socket.
fn start_thread(
    shared: Arc<connection::Shared>,
    socket: std::net::TcpListener,
    phase: watch::Receiver<Phase>,
) -> Result<JoinHandle<()>> {
    let internal = |e: std::io::Error| ServeError::Internal(format!("cannot listen: {e}"));
    socket.set_nonblocking(true).map_err(internal)?;
    // The answers of the pool come before new requests. By default, one of them is taken for each 31
    // events of connections, and a flood of requests would hold up the answers that are ready.
    let runtime =
        tokio::runtime::Builder::new_current_thread().global_queue_interval(1).enable_all().build();
    let runtime = runtime.map_err(internal)?;
    let thread = thread::Builder::new().name("zillion-network".to_owned());
    let run = move || {
        if let Err(error) = runtime.block_on(accept(shared, socket, phase)) {
            tracing::error!("a network thread ended: {error}");
        }
    };
    thread.spawn(run).map_err(internal)
}

/// Accepts connections until the server drains, and waits for the end of the open ones.
async fn accept(
    shared: Arc<connection::Shared>,
    socket: std::net::TcpListener,
    mut phase: watch::Receiver<Phase>,
) -> std::io::Result<()> {
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
