//! One connection: its TLS handshake, its protocol, its requests, and its end.

mod in_memory;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tonic::codegen::Service as _;
use zillion_access::{CertificateNames, client_names};

use super::activity::{Activity, Expired};
use super::answer::AnswerBody;
use super::connections::{Connections, Crowded, Member};
use super::lag::Lag;
use super::listener::FromFiles;
use super::peer::{Peer, Rules};
use super::phase::Phase;
use super::stream::{Transport, Watched};
use crate::budget::HeldBytes;
use crate::domain::Domain;
use crate::error::Result;
use crate::gathering::Gathering;
use crate::grpc::{Grpc, Readiness, is_grpc, is_stream};
use crate::http;

pub use self::in_memory::InMemoryServer;

/// The largest number of open requests of an HTTP/2 connection.
const STREAMS: u32 = 256;

/// The number of bytes of a request that may be on their way before the server acknowledges any: a
/// request of many candidates comes without a pause.
const STREAM_WINDOW: u32 = 2 << 20;

/// The number of bytes that all requests of a connection may have on their way.
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The largest size of an HTTP/2 head, unpacked.
const HEAD_BYTES: u32 = 16 << 10;

/// The time after which a silent HTTP/2 connection is asked whether it still exists.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The time for the answer to that question.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(20);

/// The time in which an idle client may take the message that its connection ends.
const GOODBYE_TIME: Duration = Duration::from_secs(1);

/// The time of a TLS handshake. Their number is not limited: a handshake waits for its client, and
/// clients that do not go on must keep nobody out.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// The parts that the connections of a listener share.
#[derive(Debug)]
pub(super) struct Shared {
    domain: Arc<Domain>,
    connections: Arc<Connections>,
    http: axum::Router,
    grpc: Grpc,
    rules: Arc<Rules>,
    tls: Option<FromFiles<Arc<rustls::ServerConfig>>>,
}

impl Shared {
    /// Creates the shared parts of a listener with these rules.
    ///
    /// # Errors
    /// Returns an error if a service cannot be created, which is a bug.
    pub(super) fn new(
        domain: &Arc<Domain>,
        connections: Arc<Connections>,
        readiness: &watch::Receiver<Readiness>,
        rules: Rules,
        tls: Option<FromFiles<Arc<rustls::ServerConfig>>>,
    ) -> Result<Self> {
        Ok(Self {
            domain: domain.clone(),
            connections,
            http: http::router(domain.clone()),
            grpc: Grpc::new(domain.clone(), readiness)?,
            rules: Arc::new(rules),
            tls,
        })
    }
}

/// A connection that was accepted, and belongs to no network thread yet.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    stream: std::net::TcpStream,
    address: SocketAddr,
    member: Member,
}

/// Takes in a connection, or closes it if there are too many.
pub(super) fn begin(
    shared: &Arc<Shared>,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<Connection> {
    // An answer is one small write, which must not wait for the next one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot turn off Nagle's algorithm: {error}");
    }
    // The thread that serves the connection waits for its bytes, and not the one that accepts it.
    let stream = match stream.into_std() {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!("a connection ended before it began: {error}");
            return None;
        }
    };
    match shared.connections.admit(address.ip(), &shared.domain.limits()) {
        Ok(member) => Some(Connection { shared: shared.clone(), stream, address, member }),
        Err(reason) => {
            let reason = match reason {
                Crowded::All => "full",
                Crowded::Address => "address_full",
            };
            shared.domain.metrics().record_closed(reason);
            None
        }
    }
}

impl Connection {
    /// Closes a connection that no network thread can take.
    pub(super) fn refuse(self) {
        self.shared.domain.metrics().record_closed("full");
    }

    /// Serves the connection to its end, on this thread, whose small requests `gathering` has.
    pub(super) async fn run(self, mut phase: watch::Receiver<Phase>, gathering: Arc<Gathering>) {
        let Self { shared, stream, address, member } = self;
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("cannot serve a connection: {error}");
                return;
            }
        };
        let domain = &shared.domain;
        let activity = member.activity();
        let shaken = tokio::select! {
            shaken = shared.handshake(stream) => shaken,
            // The socket is closed at once: handshakes that are left hang must not use up the file
            // descriptors.
            () = activity.evicted() => {
                domain.metrics().record_closed(Expired::Evicted.name());
                return;
            }
        };
        let (transport, certificate) = match shaken {
            Ok(shaken) => shaken,
            Err(error) => {
                domain.metrics().record_closed("handshake");
                domain.record_handshake(address.ip(), &error);
                tracing::debug!("a TLS handshake failed: {error}");
                return;
            }
        };
        let (address, rules) = (address.ip(), shared.rules.clone());
        let watches = Arc::default();
        let peer = Arc::new(Peer { address, certificate, rules, watches, gathering });
        let service = Requests { shared: shared.clone(), peer, activity: activity.clone() };
        let limits = domain.limits();
        let builder = protocols();
        let io = TokioIo::new(Watched::new(transport, activity.clone()));
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut expired = pin!(activity.expired(&limits));
        domain.metrics().open_connections.inc();
        let mut seen = Phase::Serving;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    // Clients leave in many ways, and none of them is worth more than a debug line.
                    if let Err(error) = ended {
                        tracing::debug!("a connection ended: {error}");
                    }
                    break;
                }
                reason = expired.as_mut() => {
                    domain.metrics().record_closed(reason.name());
                    // A client that is only idle learns that the connection ends (GOAWAY).
                    if reason == Expired::Idle || reason == Expired::Silent && activity.is_http2() {
                        connection.as_mut().graceful_shutdown();
                        let _ = tokio::time::timeout(GOODBYE_TIME, connection.as_mut()).await;
                    }
                    break;
                }
                changed = wait_for_change(&mut phase, seen), if seen != Phase::Draining => {
                    seen = changed;
                    // A connection without a request would be closed here before it is answered.
                    // Its client learns of the end with the first answer.
                    if seen == Phase::Draining || activity.has_begun() {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                () = activity.asked_goodbye() => connection.as_mut().graceful_shutdown(),
            }
        }
        domain.metrics().open_connections.dec();
    }
}

/// Waits until the server has left the phase `seen`, and returns the new one.
async fn wait_for_change(phase: &mut watch::Receiver<Phase>, seen: Phase) -> Phase {
    // The sender is gone only if the server has ended.
    phase.wait_for(|phase| *phase != seen).await.map_or(Phase::Draining, |phase| *phase)
}

impl Shared {
    async fn handshake(
        &self,
        stream: TcpStream,
    ) -> std::io::Result<(Transport, Option<CertificateNames>)> {
        let Some(tls) = &self.tls else { return Ok((Transport::Plain(stream), None)) };
        let shaken = async {
            let config = Arc::clone(&*tls.get());
            TlsAcceptor::from(config).accept(stream).await
        };
        let stream = tokio::time::timeout(HANDSHAKE_TIME, shaken).await??;
        let names = client_names(stream.get_ref().1);
        Ok((Transport::Tls(Box::new(stream)), names))
    }
}

/// Returns the settings of HTTP/1 and HTTP/2. The time of a head is limited by [`Activity`],
/// because hyper's own limit would also end a connection that waits for its next request.
fn protocols() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_ANSWER);
    builder
}

/// The requests of a connection, for HTTP and for gRPC.
#[derive(Clone, Debug)]
struct Requests {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    activity: Arc<Activity>,
}

impl hyper::service::Service<hyper::Request<Incoming>> for Requests {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let is_http2 = request.version() == hyper::Version::HTTP_2;
        let open = self.activity.begin_request(is_http2);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.peer.clone());
        let (shared, activity) = (self.shared.clone(), self.activity.clone());
        let is_endless = is_grpc(request.headers()) && is_stream(request.uri().path());
        let read = Instant::now();
        Box::pin(async move {
            request.extensions_mut().insert(Lag(read.elapsed()));
            let response = if is_grpc(request.headers()) {
                shared.grpc.clone().answer(request).await
            } else {
                match shared.http.clone().call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            };
            let mut response = response;
            match (shared.domain.is_draining(), is_http2) {
                (false, _) => {}
                (true, false) => {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                (true, true) => activity.ask_goodbye(),
            }
            if is_endless {
                // A stream, as that of a health watch, is no reason to keep a connection.
                return Ok(response);
            }
            let held = response.extensions_mut().remove::<Arc<HeldBytes>>();
            Ok(response.map(|body| Body::new(AnswerBody::new(body, open, held))))
        })
    }
}
