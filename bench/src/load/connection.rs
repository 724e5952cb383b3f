//! A keep-alive connection. It is opened when it is first needed, and again after it was closed.

use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tonic::Code;

use super::grpc;
use super::target::{Target, Tls};

/// A connection that is used for many requests.
#[derive(Debug)]
pub(crate) struct Connection<'a> {
    target: &'a Target,
    open: Option<Open>,
    /// The connection of HTTP/2 that several values of this type use, if they use one.
    shared: Option<Arc<SharedConnection>>,
    /// The number of connections that have been opened.
    pub(crate) made: u64,
}

/// A connection of HTTP/2 for several streams of requests. The first stream opens it.
#[derive(Debug, Default)]
pub(crate) struct SharedConnection(Mutex<Option<http2::SendRequest<Full<Bytes>>>>);

/// The sender of requests over an open connection. In both protocols, only one request at a time is
/// in flight. A comparison therefore shows the protocols and not the number of concurrent requests.
#[derive(Debug)]
enum Open {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Open {
    async fn is_ready(&mut self) -> bool {
        match self {
            Self::Http1(open) => open.ready().await.is_ok(),
            Self::Http2(open) => open.ready().await.is_ok(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(open) => open.send_request(request).await,
            Self::Http2(open) => open.send_request(request).await,
        }
    }
}

/// The size of the flow-control windows in bytes. gRPC clients use this size for answers with many
/// rows.
const WINDOW: u32 = 2 << 20;

impl<'a> Connection<'a> {
    pub(crate) fn new(target: &'a Target) -> Self {
        Self { target, open: None, shared: None, made: 0 }
    }

    /// Creates a stream of requests over a connection that other streams use too. One request at a
    /// time is in flight in each stream. The target must speak HTTP/2.
    pub(crate) fn stream(target: &'a Target, shared: Arc<SharedConnection>) -> Self {
        Self { shared: Some(shared), ..Self::new(target) }
    }

    /// Opens a connection if none is open. A server may close an idle connection, and this does not
    /// count as a failed request.
    ///
    /// # Errors
    /// Returns an error if the connection is refused.
    pub(crate) async fn open(&mut self) -> Result<()> {
        if let Some(open) = &mut self.open
            && open.is_ready().await
        {
            return Ok(());
        }
        self.open = None;
        let Some(shared) = self.shared.clone() else { return self.connect().await };
        let mut held = shared.0.lock().await;
        if let Some(sender) = &mut *held
            && sender.ready().await.is_ok()
        {
            self.open = Some(Open::Http2(sender.clone()));
            return Ok(());
        }
        self.connect().await?;
        if let Some(Open::Http2(sender)) = &self.open {
            *held = Some(sender.clone());
        }
        Ok(())
    }

    /// Opens a connection to the target, with TLS if the target has it.
    async fn connect(&mut self) -> Result<()> {
        let stream = TcpStream::connect(&self.target.address).await?;
        // A request is one small write, which must not wait for the next one (Nagle's algorithm).
        stream.set_nodelay(true)?;
        let Some(Tls(config)) = &self.target.tls else {
            self.open = Some(self.begin(stream).await?);
            self.made += 1;
            return Ok(());
        };
        let host = self.target.address.rsplit_once(':').map_or("", |(host, _)| host);
        let name = ServerName::try_from(host.to_owned())?;
        let stream = TlsConnector::from(config.clone()).connect(name, stream).await?;
        self.open = Some(self.begin(stream).await?);
        self.made += 1;
        Ok(())
    }

    /// Begins the protocol of the target on a new connection.
    async fn begin<S>(&self, stream: S) -> Result<Open>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let io = TokioIo::new(stream);
        // The task of a connection ends with the connection. Its error can be ignored here, because
        // the call that waits for an answer gets an error too.
        Ok(if self.target.is_grpc {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
            let (sender, connection) = builder.handshake(io).await?;
            tokio::spawn(connection);
            Open::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            tokio::spawn(connection);
            Open::Http1(sender)
        })
    }

    /// Sends a request and receives the whole answer. After an error, the connection is not used
    /// again.
    ///
    /// # Errors
    /// Returns an error if the connection breaks.
    pub(crate) async fn post(&mut self, body: Bytes) -> Result<(StatusCode, Bytes)> {
        let Some(mut open) = self.open.take() else {
            anyhow::bail!("the connection is not open");
        };
        let Target { path, host, is_grpc, .. } = self.target;
        let request = match is_grpc {
            true => Request::post(format!("http://{host}{path}"))
                .header(header::CONTENT_TYPE, "application/grpc")
                .header(header::TE, "trailers"),
            false => Request::post(path.as_str())
                .header(header::HOST, host.as_str())
                .header(header::CONTENT_TYPE, "application/json"),
        };
        let response = open.send(request.body(Full::new(body))?).await?;
        let (mut status, mut code) = (response.status(), code_of(response.headers()));
        let answer = response.into_body().collect().await?;
        if *is_grpc && status.is_success() {
            code = code.or_else(|| answer.trailers().and_then(code_of));
            // The gRPC status is converted to an HTTP status, so that failures have the same names
            // in all protocols.
            let code = code.unwrap_or(Code::Unknown);
            status = StatusCode::from_u16(zillion_serving::http_status(code))?;
        }
        let mut answer = answer.to_bytes();
        if *is_grpc && status.is_success() {
            answer = grpc::unframe(answer)?;
        }
        self.open = Some(open);
        Ok((status, answer))
    }

    /// Drops the connection, so that a late answer is not mistaken for the answer to the next
    /// request.
    pub(crate) fn drop_open(&mut self) {
        self.open = None;
    }
}

/// Returns the gRPC status in headers or trailers, or `None` if they contain no status. A failed
/// call has its status in the headers; an answer has it in the trailers.
fn code_of(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()))
}
