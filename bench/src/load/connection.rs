//! A keep-alive connection, which is opened when it is needed, and again after it broke.

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tonic::Code;

use super::grpc;
use super::target::Target;

/// A connection that lives for many requests.
#[derive(Debug)]
pub(crate) struct Connection<'a> {
    target: &'a Target,
    open: Option<Open>,
    /// Times that a connection was made.
    pub(crate) made: u64,
}

/// The sender of requests over an open connection. One request is under way at a time in either
/// protocol, so that a comparison shows the protocols and not the number of requests at once.
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

/// The windows that gRPC clients have for answers of many rows.
const WINDOW: u32 = 2 << 20;

impl<'a> Connection<'a> {
    pub(crate) fn new(target: &'a Target) -> Self {
        Self { target, open: None, made: 0 }
    }

    /// Connects unless there is a connection that lives. A server may close one that is idle: that
    /// is no failure of a request.
    ///
    /// # Errors
    /// The connection is refused.
    pub(crate) async fn open(&mut self) -> Result<()> {
        if let Some(open) = &mut self.open
            && open.is_ready().await
        {
            return Ok(());
        }
        self.open = None;
        let stream = TcpStream::connect(&self.target.address).await?;
        // A request is one small write: it must not wait for the next one.
        stream.set_nodelay(true)?;
        let io = TokioIo::new(stream);
        // A connection's task ends with it; the task that waits for an answer gets the error.
        self.open = Some(if self.target.is_grpc {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
            let (sender, connection) = builder.handshake(io).await?;
            tokio::spawn(connection);
            Open::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            tokio::spawn(connection);
            Open::Http1(sender)
        });
        self.made += 1;
        Ok(())
    }

    /// Sends a request and receives the whole answer. After an error the connection is not used
    /// again.
    ///
    /// # Errors
    /// The connection broke.
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
            // Said in the words of HTTP, so that figures of all protocols have the same.
            let code = code.unwrap_or(Code::Unknown);
            status = StatusCode::from_u16(zillion_serving::http_status(code))?;
        }
        let mut answer = answer.to_bytes();
        if *is_grpc && status.is_success() {
            answer = grpc::unframed(answer)?;
        }
        self.open = Some(open);
        Ok((status, answer))
    }

    /// Gives up the connection: an answer that comes too late must not be taken for the next one's.
    pub(crate) fn drop_open(&mut self) {
        self.open = None;
    }
}

/// Reads the gRPC status of a call, which stands in the head of a failure and behind the body of an
/// answer.
fn code_of(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes()))
}
