//! A blocking client, which sends one request after another. The load of the benchmarks comes from
//! the module `load`.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::load::connection::Connection;
use crate::load::target::Target;

/// A blocking client of one server. It opens a new connection for each GET.
pub struct Asker {
    runtime: Runtime,
    /// The host and the port of the server.
    host: String,
}

impl Asker {
    /// Creates a client of the server with this URL, such as `http://127.0.0.1:8080`.
    pub fn new(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, host: url.trim_start_matches("http://").to_owned() })
    }

    /// Sends a GET request. Returns the status and the body of the answer.
    pub fn get(&self, path: &str) -> Result<(u16, Bytes)> {
        self.runtime.block_on(async {
            let stream = TcpStream::connect(&self.host).await;
            let stream = stream.with_context(|| {
                format!(
                    "server `{}` does not accept connections; start it, or correct the URL",
                    self.host
                )
            })?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let connection = tokio::spawn(connection);
            let request = Request::get(path)
                .header(header::HOST, self.host.as_str())
                .body(Full::new(Bytes::new()))?;
            let answer = sender.send_request(request).await?;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await?.to_bytes();
            connection.abort();
            Ok((status, body))
        })
    }

    /// Sends one body with a POST request. Returns the status and the body of the answer.
    pub fn post(&self, target: &Target, body: &Bytes) -> Result<(u16, Bytes)> {
        let mut once = Some(body.clone());
        let mut outcome = None;
        self.post_each(target, || once.take(), |answer| outcome = Some(answer));
        outcome.context("the request was not sent")?
    }

    /// Sends `count` POST requests over one connection, with the bodies in a cycle. Returns the
    /// time of each request, and the size of the last answer in bytes.
    ///
    /// # Errors
    /// Returns an error if the connection breaks or if the status of an answer is not 200.
    pub(crate) fn post_all(
        &self,
        target: &Target,
        bodies: &[Bytes],
        count: usize,
    ) -> Result<(Vec<Duration>, usize)> {
        let mut next = bodies.iter().cycle().take(count).cloned();
        let sent = Cell::new(Instant::now());
        let (mut times, mut bytes, mut failure) = (Vec::with_capacity(count), 0, None);
        let give = || {
            let body = next.next();
            sent.set(Instant::now());
            body
        };
        self.post_each(target, give, |answer| {
            times.push(sent.get().elapsed());
            match answer {
                Ok((200, answer)) => bytes = answer.len(),
                Ok((status, answer)) => {
                    let body = String::from_utf8_lossy(&answer).into_owned();
                    failure = Some(anyhow!("the server answered with status {status}: {body}"));
                }
                Err(error) => failure = Some(error),
            }
        });
        match failure {
            Some(error) => Err(error.context("a request failed")),
            None => Ok((times, bytes)),
        }
    }

    /// Sends the bodies that `next` returns with POST requests over one connection, until `next`
    /// returns `None`. Calls `answered` with the status and the body of each answer, or with an
    /// error if the connection breaks.
    pub(crate) fn post_each(
        &self,
        target: &Target,
        mut next: impl FnMut() -> Option<Bytes>,
        mut answered: impl FnMut(Result<(u16, Bytes)>),
    ) {
        self.runtime.block_on(async {
            let mut connection = Connection::new(target);
            while let Some(body) = next() {
                let answer = async {
                    connection.open().await?;
                    let (status, answer) = connection.post(body).await?;
                    Ok((status.as_u16(), answer))
                };
                answered(answer.await);
            }
        });
    }
}
