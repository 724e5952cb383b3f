//! The client of the administration of one server, for commands.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::codegen::Service;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status};

use super::proto;
use super::proto::admin_client;
use crate::error::{Error, Result, start_error};
use crate::tls::{ClientTls, alert_problem, server_name, tls_problem};
use crate::token::Token;

/// A client of the administration of one server. Each call waits on the calling thread.
#[derive(Debug)]
pub struct AdminClient {
    runtime: Runtime,
    server: String,
    token: Option<MetadataValue<Ascii>>,
    calls: admin_client::AdminClient<Channel>,
    deadline: Duration,
}

impl AdminClient {
    /// Connects to a server.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached within `deadline`, or if the TLS handshake
    /// fails.
    pub fn connect(
        server: &str,
        token: Option<&Token>,
        tls: Option<&ClientTls>,
        deadline: Duration,
    ) -> Result<Self> {
        let fails = |problem: &dyn std::fmt::Display| {
            start_error(format!("server {server} cannot be reached: {problem}; start it first"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| fails(&e))?;
        let token = token.map(|token| {
            let text = format!("Bearer {}", token.show());
            text.parse().map_err(|_| {
                start_error(
                    "the token has characters that a header of HTTP cannot hold; write a secret of \
                     visible ASCII characters into the token file",
                )
            })
        });
        let opened = runtime.block_on(async { timeout(deadline, open(server, tls)).await });
        let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let channel = opened.map_err(|e| match explain(&e) {
            Problem::Tls(problem) => start_error(format!("server {server}: {problem}")),
            Problem::Other(problem) => fails(&problem),
        })?;
        Ok(Self {
            runtime,
            server: server.to_owned(),
            token: token.transpose()?,
            calls: admin_client::AdminClient::new(channel),
            deadline,
        })
    }

    /// Returns the address of the server.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Asks for the state of the server.
    ///
    /// # Errors
    /// Returns an error if the server does not answer in time, or refuses the caller.
    pub fn status(&mut self) -> Result<proto::StatusResponse> {
        let question = proto::StatusRequest {};
        self.call(question, |mut calls, question| async move { calls.status(question).await })
    }

    /// Asks for all data of a table about a key.
    ///
    /// # Errors
    /// Returns an error if no run is open, if the table is unknown, or if the server does not
    /// answer in time or refuses the caller.
    pub fn explain(&mut self, table: &str, key: u64) -> Result<proto::ExplainResponse> {
        let question = proto::ExplainRequest { table: table.to_owned(), key };
        self.call(question, |mut calls, question| async move { calls.explain(question).await })
    }

    /// Asks the run to write a checkpoint after its present step.
    ///
    /// # Errors
    /// Returns an error if no run is open, or if the server does not answer in time or refuses the
    /// caller.
    pub fn checkpoint(&mut self) -> Result<proto::CheckpointResponse> {
        let question = proto::CheckpointRequest {};
        self.call(question, |mut calls, question| async move { calls.checkpoint(question).await })
    }

    /// Sets the run back to the checkpoint of a step, or to the newest one.
    ///
    /// # Errors
    /// Returns an error if no run is open, if there is no such checkpoint, or if the server does
    /// not answer in time or refuses the caller.
    pub fn restore(&mut self, step: Option<u64>) -> Result<proto::RestoreResponse> {
        let question = proto::RestoreRequest { step };
        self.call(question, |mut calls, question| async move { calls.restore(question).await })
    }

    fn call<Q, A, F>(
        &mut self,
        question: Q,
        call: impl FnOnce(admin_client::AdminClient<Channel>, Request<Q>) -> F,
    ) -> Result<A>
    where
        F: Future<Output = std::result::Result<Response<A>, Status>>,
    {
        let mut request = Request::new(question);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        let (called, within) = (call(self.calls.clone(), request), self.deadline);
        match self.runtime.block_on(async move { timeout(within, called).await }) {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(self.refusal(&status)),
            Err(_) => Err(start_error(format!(
                "server {} did not answer within {within:?}; look at its log",
                self.server
            ))),
        }
    }

    /// Makes the error of a call that was refused or lost.
    fn refusal(&self, status: &Status) -> Error {
        let server = &self.server;
        let text = match status.source().map(explain) {
            Some(Problem::Tls(problem)) => {
                return start_error(format!("server {server}: {problem}"));
            }
            Some(Problem::Other(problem)) => problem,
            None => status.message().to_owned(),
        };
        start_error(match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal => {
                format!("server {server} does not answer: {text}; look at its log")
            }
            _ => format!("server {server}: {text}"),
        })
    }
}

/// The problem of a call that failed.
enum Problem {
    /// The TLS settings of the client and the server do not fit.
    Tls(String),
    Other(String),
}

/// Returns the problem that an error comes from: that of TLS, or else the last one.
fn explain(error: &(dyn StdError + 'static)) -> Problem {
    let mut next = Some(error);
    let mut text = String::new();
    while let Some(error) = next {
        if let Some(problem) = error.downcast_ref::<io::Error>().and_then(tls_problem) {
            return Problem::Tls(problem);
        }
        text = error.to_string();
        next = error.source();
    }
    if let Some(problem) = alert_problem(&text) {
        return Problem::Tls(problem);
    }
    Problem::Other(text)
}

/// Opens a channel over one connection, which is not opened again.
async fn open(server: &str, tls: Option<&ClientTls>) -> io::Result<Channel> {
    let tcp = TcpStream::connect(server).await?;
    tcp.set_nodelay(true)?;
    let stream: Stream = match tls {
        None => Box::new(tcp),
        Some(tls) => {
            let name = server_name(server)?;
            Box::new(TlsConnector::from(tls.config()).connect(name, tcp).await?)
        }
    };
    let endpoint = Endpoint::from_static("http://server");
    endpoint.connect_with_connector(Once(Some(stream))).await.map_err(io::Error::other)
}

/// A connection of any kind.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

type Stream = Box<dyn Connection>;

/// A connector that gives out one connection.
struct Once(Option<Stream>);

impl Service<Uri> for Once {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let stream = self.0.take().map(TokioIo::new);
        Box::pin(async move { stream.ok_or_else(|| io::ErrorKind::NotConnected.into()) })
    }
}
