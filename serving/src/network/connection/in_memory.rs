//! Connections in memory, on which fuzzers and tests reach the protocols without a socket.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::{Activity, Connections, Peer, Requests, Rules, Shared, protocols};
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::grpc::Readiness;

/// The number of bytes of a direction that may be on their way.
const WINDOW: usize = 64 << 10;

/// The longest time of a connection. Its client has sent all that it will send, so that nothing is
/// worth a longer wait.
const LONGEST: Duration = Duration::from_secs(10);

/// The number of turns that the server has after the last byte. Nothing but the bytes of the client
/// makes it wait, so that a few turns are enough for each request.
const TURNS: usize = 256;

/// A server whose connections are in memory. It answers every call of every caller, as a listener
/// without proofs does.
#[derive(Debug)]
pub struct InMemoryServer {
    runtime: Runtime,
    shared: Arc<Shared>,
    _readiness: watch::Sender<Readiness>,
}

impl InMemoryServer {
    /// Creates a server for a domain.
    ///
    /// # Errors
    /// Returns an error if a service cannot be created, which is a bug.
    pub fn new(domain: &Arc<Domain>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| ServeError::Internal(e.to_string()))?;
        let rules = Rules::open();
        let connections = Arc::new(Connections::new(usize::MAX));
        let (sender, readiness) = watch::channel(Readiness::of(domain));
        let shared = Shared::new(domain, connections, &readiness, rules, None)?;
        Ok(Self { runtime, shared: Arc::new(shared), _readiness: sender })
    }

    /// Sends bytes as all that a client sends on a connection, and returns the bytes of the answer.
    /// Fuzzers call this function.
    pub fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let shared = &self.shared;
        let address = Ipv4Addr::LOCALHOST.into();
        let (rules, watches) = (shared.rules.clone(), Arc::default());
        let gathering = Arc::default();
        let peer = Arc::new(Peer { address, certificate: None, rules, watches, gathering });
        let activity = Arc::new(Activity::new());
        let service = Requests { shared: shared.clone(), peer, activity };
        let builder = protocols();
        let mut answer = Vec::new();
        self.runtime.block_on(async {
            let (client, server) = tokio::io::duplex(WINDOW);
            let (mut reading, mut writing) = tokio::io::split(client);
            let serve = builder.serve_connection(TokioIo::new(server), service);
            let send = async {
                // A server that closes the connection early has answered all that it will answer.
                let _ = writing.write_all(bytes).await;
                // The client leaves when the server has had many turns: hyper drops the requests of
                // a client that has left.
                for _ in 0..TURNS {
                    tokio::task::yield_now().await;
                }
                let _ = writing.shutdown().await;
            };
            let receive = reading.read_to_end(&mut answer);
            // A connection ends with an error if its client made one.
            let all = async { tokio::join!(serve, send, receive) };
            let _ = tokio::time::timeout(LONGEST, all).await;
        });
        answer
    }
}
