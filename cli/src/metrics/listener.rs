//! A small HTTP server for `/metrics`, in a program whose main task is different.
//!
//! # Concurrency
//! The server is one thread with its own runtime. It reads numbers that other threads update. The
//! thread ends when its [`Listener`] is dropped.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

/// The number of connections that are served at the same time. Further connections wait to be
/// accepted.
const CONNECTIONS: usize = 32;
/// The maximum time in which the head of a request must arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// The pause before the next attempt after the server could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The content type of Prometheus's text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A running HTTP server for a registry of metrics. It stops when the value is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts to listen on `address`. If the port is 0, the system chooses a free port.
    ///
    /// # Errors
    /// Returns an error if the address is not valid or if the server cannot listen on it.
    pub(crate) fn start(address: &str, registry: Registry) -> Result<Self> {
        let cannot = || format!("cannot serve metrics on {address}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .with_context(cannot)?;
        let listener = runtime.block_on(TcpListener::bind(address)).with_context(cannot)?;
        let bound = listener.local_addr().with_context(cannot)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("zillion-metrics".to_owned())
            .spawn(move || runtime.block_on(serve(listener, registry, stopped)))
            .with_context(cannot)?;
        Ok(Self { address: bound, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the URL at which the series are served.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The send fails if the listener has ended already. Dropping the sender would stop the
        // listener too.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(listener: TcpListener, registry: Registry, mut stopped: oneshot::Receiver<()>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("cannot accept a connection for metrics: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let registry = registry.clone();
        tokio::spawn(async move {
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
            let service = service_fn(|request: Request<Incoming>| {
                let answer = answer(&registry, request.method(), request.uri().path());
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            // Clients may disconnect at any time, so an error of a connection is not worth a
            // warning.
            if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!("a connection for metrics ended: {error}");
            }
            drop(place);
        });
    }
}

fn answer(registry: &Registry, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let plain = |status: StatusCode, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
        response
    };
    if path != "/metrics" {
        return plain(
            StatusCode::NOT_FOUND,
            "unknown path: the metrics are at /metrics\n".to_owned(),
        );
    }
    if method != Method::GET && method != Method::HEAD {
        let problem = "the method is not allowed: use GET\n".to_owned();
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, problem);
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => plain(StatusCode::OK, text),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    fn ask(listener: &Listener, head: &str) -> String {
        let mut stream = TcpStream::connect(listener.address).unwrap();
        write!(stream, "{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_and_nothing_else_are_served() {
        let registry = super::super::registry("test").unwrap();
        let listener = Listener::start("127.0.0.1:0", registry).unwrap();
        let metrics = ask(&listener, "GET /metrics");
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(metrics.contains("\nzillion_build_info{"), "{metrics}");
        assert!(ask(&listener, "HEAD /metrics").starts_with("HTTP/1.1 200"));
        assert!(ask(&listener, "POST /metrics").starts_with("HTTP/1.1 405"));
        assert!(ask(&listener, "GET /").starts_with("HTTP/1.1 404"));
        let taken = Listener::start(&listener.address.to_string(), Registry::new());
        let said = format!("{:#}", taken.unwrap_err());
        assert!(said.contains("cannot serve metrics on 127.0.0.1:"), "{said}");
    }
}
