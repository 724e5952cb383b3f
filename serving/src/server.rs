//! Connections: accepted up to a limit, given their time, and drained at the end.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::domain::Domain;
use crate::http;

/// How long an accept that failed waits before the next: out of file descriptors, for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves HTTP/1.1 and HTTP/2 on `listener` until `shutdown` is there; then open requests have
/// [`Limits::drain_time`](crate::Limits) to end.
///
/// Returns how many connections were cut off at the end of that time.
pub async fn serve(
    domain: Arc<Domain>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> usize {
    let connections = domain.limits().connections;
    let router = http::router(domain.clone());
    let places = Arc::new(Semaphore::new(connections));
    let graceful = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        // A connection beyond the limit waits in the system's queue until another has ended.
        let place = tokio::select! {
            place = places.clone().acquire_owned() => place,
            () = &mut shutdown => break,
        };
        let Ok(place) = place else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        connect(&domain, router.clone(), stream, place, &graceful, domain.limits().head_time);
    }
    domain.drain();
    drop(listener);
    let open = graceful.count();
    match tokio::time::timeout(domain.limits().drain_time, graceful.shutdown()).await {
        Ok(()) => 0,
        Err(_) => open.min(connections - places.available_permits()),
    }
}

fn connect(
    domain: &Arc<Domain>,
    router: axum::Router,
    stream: TcpStream,
    place: OwnedSemaphorePermit,
    graceful: &GracefulShutdown,
    head_time: Duration,
) {
    // An answer is one small write: it must not wait for the next one.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!("cannot turn off Nagle's algorithm: {error}");
    }
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_time).keep_alive(true);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(256);
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection.into_owned());
    let open = domain.metrics().open_connections.clone();
    open.inc();
    tokio::spawn(async move {
        // Clients leave in all kinds of ways; none of them is news.
        if let Err(error) = connection.await {
            tracing::debug!("a connection ended: {error}");
        }
        open.dec();
        drop(place);
    });
}
