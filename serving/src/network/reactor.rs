//! The reactors of a listener: threads that each have a runtime of one thread, and serve the
//! connections that were dealt to them.
//!
//! The first reactor of a listener also accepts its connections. It deals each to the reactor that
//! has the fewest, so that a few connections keep all reactors busy, also if systemd opened the
//! socket. Rejected: a socket for each reactor (`SO_REUSEPORT`). The kernel deals by a hash of the
//! addresses, and gives all of four connections to one of two threads in one of eight cases.
//!
//! # Invariants
//! A connection is dealt once, and never moves. The channel to a reactor is bounded, and a reactor
//! that takes no connections gets no more of them.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use zillion_device::machine;

use super::beats::Beats;
use super::connection::{self, Connection};
use super::connections::Connections;
use super::phase::Phase;
use crate::error::{Result, ServeError};
use crate::gathering::Gathering;

/// The wait after a failed accept, which may come from a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The number of connections that may wait for a reactor.
const MOST_DEALT: usize = 256;

/// The place of a reactor, at which connections arrive.
#[derive(Debug)]
pub(super) struct Seat<C> {
    dealt: mpsc::Receiver<(C, Seated)>,
}

/// A connection that counts for its reactor, until the value is dropped.
#[derive(Debug)]
pub(super) struct Seated(Arc<AtomicUsize>);

impl Drop for Seated {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The sender of connections to the reactors of a listener.
#[derive(Debug)]
pub(super) struct Dealer<C> {
    reactors: Vec<Reactor<C>>,
    /// The reactor that comes first among those with the same number of connections.
    first: usize,
}

/// A reactor, as the dealer sees it.
#[derive(Debug)]
struct Reactor<C> {
    sender: mpsc::Sender<(C, Seated)>,
    /// The number of its connections.
    open: Arc<AtomicUsize>,
}

/// Creates the places of `count` reactors, and the dealer that sends connections to them.
pub(super) fn seats<C>(count: NonZeroUsize) -> (Dealer<C>, Vec<Seat<C>>) {
    let channels = (0..count.get()).map(|_| {
        let (sender, dealt) = mpsc::channel(MOST_DEALT);
        (Reactor { sender, open: Arc::default() }, Seat { dealt })
    });
    let (reactors, seats) = channels.unzip();
    (Dealer { reactors, first: 0 }, seats)
}

impl<C> Dealer<C> {
    /// Returns the numbers of the reactors in the order in which they are asked to take the next
    /// connection.
    fn order(&mut self) -> Vec<usize> {
        let count = self.reactors.len();
        let mut order: Vec<usize> = (0..count).map(|at| (self.first + at) % count).collect();
        order.sort_by_key(|&at| self.reactors[at].open.load(Ordering::Relaxed));
        self.first = (self.first + 1) % count.max(1);
        order
    }

    /// Sends a connection to the reactor that has the fewest.
    ///
    /// # Errors
    /// Returns the connection if no reactor takes it.
    fn deal(&mut self, mut connection: C) -> Result<(), C> {
        for at in self.order() {
            let Reactor { sender, open } = &self.reactors[at];
            open.fetch_add(1, Ordering::Relaxed);
            match sender.try_send((connection, Seated(open.clone()))) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full((back, _)) | TrySendError::Closed((back, _))) => {
                    connection = back;
                }
            }
        }
        Err(connection)
    }
}

/// The parts of a reactor that accepts the connections of its listener.
pub(super) struct Acceptor {
    pub(super) shared: Arc<connection::Shared>,
    pub(super) socket: std::net::TcpListener,
    /// The connections of all listeners.
    pub(super) connections: Arc<[Arc<Connections>]>,
    pub(super) dealer: Dealer<Connection>,
}

/// Starts the thread of a reactor, which also accepts connections if it has an acceptor.
///
/// # Errors
/// Returns an error if the system refuses the socket or the thread.
pub(super) fn start(
    seat: Seat<Connection>,
    acceptor: Option<Acceptor>,
    phase: watch::Receiver<Phase>,
    beats: &Beats,
) -> Result<JoinHandle<()>> {
    let internal = |e: std::io::Error| {
        ServeError::Internal(format!(
            "cannot accept connections ({e}); raise the limits of the system on open files and \
             threads"
        ))
    };
    if let Some(acceptor) = &acceptor {
        acceptor.socket.set_nonblocking(true).map_err(internal)?;
    }
    // The answers of the pool come before new requests. By default, the runtime takes one of them
    // for every 31 events of connections, so a flood of requests would delay ready answers.
    let runtime =
        tokio::runtime::Builder::new_current_thread().global_queue_interval(1).enable_all().build();
    let runtime = runtime.map_err(internal)?;
    let thread = thread::Builder::new().name("zillion-network".to_owned());
    let beat = beats.register();
    let run = move || {
        let work = async {
            let accept = async {
                match acceptor {
                    Some(acceptor) => accept(acceptor, phase.clone()).await,
                    None => Ok(()),
                }
            };
            let (accepted, ()) = tokio::join!(accept, serve_dealt(seat, phase.clone()));
            accepted
        };
        let beating = async {
            tokio::select! {
                ended = work => ended,
                never = beat.repeat() => match never {},
            }
        };
        if let Err(error) = runtime.block_on(beating) {
            tracing::error!("a network thread ended: {error}");
        }
    };
    thread.spawn(run).map_err(internal)
}

/// Serves the connections that are dealt to this thread, until no more of them come and the last
/// one has ended.
async fn serve_dealt(mut seat: Seat<Connection>, phase: watch::Receiver<Phase>) {
    let mut open = JoinSet::new();
    let gathering = Arc::<Gathering>::default();
    loop {
        tokio::select! {
            dealt = seat.dealt.recv() => {
                let Some((connection, seated)) = dealt else { break };
                let served = connection.run(phase.clone(), gathering.clone());
                open.spawn(async move {
                    served.await;
                    drop(seated);
                });
            }
            Some(_) = open.join_next() => {}
        }
    }
    while open.join_next().await.is_some() {}
}

/// Accepts connections and deals them out until the server drains.
async fn accept(acceptor: Acceptor, mut phase: watch::Receiver<Phase>) -> std::io::Result<()> {
    let Acceptor { shared, socket, connections, mut dealer } = acceptor;
    let socket = TcpListener::from_std(socket)?;
    loop {
        tokio::select! {
            accepted = socket.accept() => match accepted {
                Ok((stream, address)) => {
                    if let Some(connection) = connection::begin(&shared, stream, address)
                        && let Err(connection) = dealer.deal(connection)
                    {
                        connection.refuse();
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
            changed = phase.wait_for(|phase| *phase == Phase::Draining) => {
                drop(changed);
                return Ok(());
            }
        }
    }
}

/// Closes an idle connection of the listener that has most of them.
fn evict_one(connections: &[Arc<Connections>]) {
    let mut all: Vec<_> = connections.iter().map(|own| (own.count(), own)).collect();
    all.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
    let _ = all.iter().any(|(_, own)| own.evict_idle());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(dealer: &Dealer<u32>) -> Vec<usize> {
        dealer.reactors.iter().map(|reactor| reactor.open.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn connections_are_spread_evenly() {
        let (mut dealer, mut seats) = seats(NonZeroUsize::new(3).unwrap());
        for connection in 0..8 {
            dealer.deal(connection).unwrap();
        }
        let mut spread = count(&dealer);
        spread.sort_unstable();
        assert_eq!(spread, [2, 3, 3]);
        // All connections of one reactor end, and it gets the next ones.
        while seats[1].dealt.try_recv().is_ok() {}
        assert_eq!(count(&dealer)[1], 0);
        (8..10).for_each(|connection| dealer.deal(connection).unwrap());
        assert_eq!(count(&dealer)[1], 2);
        assert_eq!(seats[1].dealt.try_recv().unwrap().0, 8);
    }

    #[test]
    fn a_reactor_that_is_stuck_or_gone_gets_no_more() {
        let (mut dealer, mut seats) = seats(NonZeroUsize::new(2).unwrap());
        // One reactor serves its connections fast, and the other takes none.
        for connection in 0..3 * MOST_DEALT as u32 {
            dealer.deal(connection).unwrap();
            while seats[0].dealt.try_recv().is_ok() {}
        }
        assert!(count(&dealer)[1] <= MOST_DEALT && count(&dealer)[0] == 0);
        drop(seats.pop());
        assert_eq!(dealer.deal(1), Ok(()));
        assert_eq!(count(&dealer)[0], 1);
        drop(seats);
        assert_eq!(dealer.deal(2), Err(2));
        assert_eq!(count(&dealer), [0, 0]);
    }
}
