//! One keep-alive connection: connected when it is needed, and again after it broke.

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::target::Target;

/// A connection that lives for many requests.
#[derive(Debug)]
pub(crate) struct Connection<'a> {
    target: &'a Target,
    open: Option<SendRequest<Full<Bytes>>>,
    /// Times that a connection was made.
    pub(crate) made: u64,
}

impl<'a> Connection<'a> {
    pub(crate) fn new(target: &'a Target) -> Self {
        Self { target, open: None, made: 0 }
    }

    /// Connects unless there is a connection that lives. A server may close one that is idle: that is no failure
    /// of a request.
    ///
    /// # Errors
    /// Nobody listens.
    pub(crate) async fn open(&mut self) -> Result<()> {
        if let Some(open) = &mut self.open
            && open.ready().await.is_ok()
        {
            return Ok(());
        }
        self.open = None;
        let stream = TcpStream::connect(&self.target.address).await?;
        // A request is one small write: it must not wait for the next one.
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the connection; what goes wrong on it is told to whoever waits for an answer.
        tokio::spawn(connection);
        self.open = Some(sender);
        self.made += 1;
        Ok(())
    }

    /// Sends a request and receives the whole answer. After an error the connection is not used again.
    ///
    /// # Errors
    /// The connection broke.
    pub(crate) async fn post(&mut self, body: Bytes) -> Result<(StatusCode, Bytes)> {
        let Some(mut open) = self.open.take() else {
            anyhow::bail!("the connection is not open");
        };
        let request = Request::post(self.target.path.as_str())
            .header(header::HOST, self.target.host.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let response = open.send_request(request).await?;
        let status = response.status();
        let answer = response.into_body().collect().await?.to_bytes();
        self.open = Some(open);
        Ok((status, answer))
    }

    /// Gives up the connection: an answer that comes too late must not be taken for the next one's.
    pub(crate) fn drop_open(&mut self) {
        self.open = None;
    }
}
