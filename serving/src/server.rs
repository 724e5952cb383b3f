//! Connections: accepted up to a limit, held under time limits, and drained at the end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::Service as _;

use crate::config::Limits;
use crate::domain::Domain;
use crate::error::Result;
use crate::grpc::{Grpc, is_grpc};
use crate::http;

/// The largest number of open requests of an HTTP/2 connection.
const STREAMS: u32 = 256;

/// The flow-control window of an HTTP/2 request in bytes. The window is large, so that a
/// request of many candidates arrives without a pause.
const STREAM_WINDOW: u32 = 2 << 20;

/// The flow-control window of an HTTP/2 connection in bytes, for all its requests together.
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The time without traffic after which the server sends a ping on an HTTP/2 connection.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The time in which the client must answer a ping. Otherwise the connection is closed.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(20);

/// The wait after a failed accept, which may come from a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves HTTP/1.1, HTTP/2 and gRPC on each of `listeners` until `shutdown` completes. Open
/// requests then have [`Limits::drain_time`](crate::Limits) to end. The limits hold for all
/// listeners together.
///
/// Returns the number of connections that were cut off at the end of that time.
///
/// # Errors
/// Returns an error if the services cannot be built, which is a bug.
pub async fn serve(
    domain: Arc<Domain>,
    listeners: Vec<TcpListener>,
    shutdown: impl Future<Output = ()>,
) -> Result<usize> {
    let connections = domain.limits().connections;
    let protocols =
        Protocols { http: http::router(domain.clone()), grpc: Grpc::new(domain.clone())? };
    let places = Arc::new(Semaphore::new(connections));
    let graceful = GracefulShutdown::new();
    tokio::pin!(shutdown);
    let mut turn = 0;
    loop {
        // A connection beyond the limit waits in the queue of the system until another one has
        // ended.
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            () = &mut shutdown => break,
        };
        let Ok(place) = place else { break };
        turn += 1;
        let accepted = tokio::select! {
            accepted = accept(&listeners, turn) => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        connect(&domain, protocols.clone(), stream, place, &graceful, &domain.limits());
    }
    domain.drain();
    drop(listeners);
    let open = graceful.count();
    match tokio::time::timeout(domain.limits().drain_time, graceful.shutdown()).await {
        Ok(()) => Ok(0),
        Err(_) => Ok(open.min(connections - places.available_permits())),
    }
}

/// Accepts the next connection of any listener. The listener that is asked first changes with
/// `turn`.
async fn accept(listeners: &[TcpListener], turn: usize) -> io::Result<TcpStream> {
    poll_fn(|context| {
        for at in 0..listeners.len() {
            let listener = &listeners[(turn + at) % listeners.len()];
            if let Poll::Ready(accepted) = listener.poll_accept(context) {
                return Poll::Ready(accepted.map(|(stream, _)| stream));
            }
        }
        Poll::Pending
    })
    .await
}

/// The services of a connection: HTTP and gRPC.
#[derive(Clone, Debug)]
struct Protocols {
    http: axum::Router,
    grpc: Grpc,
}

impl hyper::service::Service<hyper::Request<Incoming>> for Protocols {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: hyper::Request<Incoming>) -> Self::Future {
        let request = request.map(Body::new);
        if is_grpc(request.headers()) {
            let grpc = self.grpc.clone();
            return Box::pin(async move { Ok(grpc.answer(request).await) });
        }
        Box::pin(self.http.clone().call(request))
    }
}

fn connect(
    domain: &Arc<Domain>,
    protocols: Protocols,
    stream: TcpStream,
    place: OwnedSemaphorePermit,
    graceful: &GracefulShutdown,
    limits: &Limits,
) {
    // An answer is one small write, which must not wait for the next one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot turn off Nagle's algorithm: {error}");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_time).keep_alive(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_ANSWER);
    let connection = builder.serve_connection(TokioIo::new(stream), protocols);
    let connection = graceful.watch(connection.into_owned());
    let open = domain.metrics().open_connections.clone();
    open.inc();
    tokio::spawn(async move {
        // Clients leave in many ways, and none of them is worth more than a debug line.
        if let Err(error) = connection.await {
            tracing::debug!("a connection ended: {error}");
        }
        open.dec();
        drop(place);
    });
}
