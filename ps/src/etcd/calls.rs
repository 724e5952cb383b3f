//! The calls to etcd: the choice of a member, the deadline, and the login.

use std::error::Error as _;
use std::time::Duration;

use prost::Message;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::{StreamExt as _, once, pending};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::messages::{
    AuthenticateRequest, AuthenticateResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};
use super::options::{EtcdOptions, read_file, read_user};
use crate::error::{Error, Result, start_error};

/// The time within which a member must answer before another one is asked.
const CALL: Duration = Duration::from_secs(2);

/// The interval of signs of life on an open connection, and the time for their answers.
const ALIVE: Duration = Duration::from_secs(2);

const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// The members of etcd.
#[derive(Debug)]
pub(super) struct Calls {
    /// The address of each member and the connection to it, which is opened when it is needed.
    members: Vec<(String, Channel)>,
    /// The user and the password.
    user: Option<(String, String)>,
    session: Mutex<Session>,
}

/// The state that calls leave for later calls.
#[derive(Debug, Default)]
struct Session {
    /// The member that has answered last.
    member: usize,
    /// The token of the login; `None` before it.
    token: Option<AsciiMetadataValue>,
}

/// A call that has failed.
#[derive(Clone, Debug)]
pub(super) enum CallError {
    /// No member has answered.
    Away(String),
    /// The keys or the lease have changed since they were read, and the next attempt sees the
    /// change.
    Changed(String),
    /// A member has refused the call.
    Refused(Code, String),
}

impl Calls {
    /// Prepares the connections. Must be called on the thread of the runtime.
    pub(super) fn new(options: &EtcdOptions) -> Result<Self> {
        let user = options.user_file.as_deref().map(read_user).transpose()?;
        let tls = match &options.ca_file {
            Some(ca) => {
                let ca = Certificate::from_pem(read_file("ps.etcd_ca", ca)?);
                let tls = ClientTlsConfig::new().ca_certificate(ca);
                Some(match (&options.cert_file, &options.key_file) {
                    (Some(cert), Some(key)) => tls.identity(Identity::from_pem(
                        read_file("ps.etcd_cert", cert)?,
                        read_file("ps.etcd_key", key)?,
                    )),
                    _ => tls,
                })
            }
            None => None,
        };
        let connect = |address: &String| {
            let fails = |e: tonic::transport::Error| {
                start_error(format!("cannot use the address `{address}` of etcd: {}", causes(&e)))
            };
            let endpoint = Endpoint::from_shared(address.clone()).map_err(fails)?;
            let endpoint = match &tls {
                Some(tls) => endpoint.tls_config(tls.clone()).map_err(fails)?,
                None => endpoint,
            };
            let endpoint = endpoint
                .connect_timeout(CALL)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(ALIVE)
                .keep_alive_timeout(ALIVE)
                .keep_alive_while_idle(true);
            Ok((address.clone(), endpoint.connect_lazy()))
        };
        let members = options.endpoints.iter().map(connect).collect::<Result<_>>()?;
        Ok(Self { members, user, session: Mutex::default() })
    }

    /// Makes a call, and asks each member once at most. A member that does not answer may have done
    /// the work.
    pub(super) async fn unary<Q, A>(&self, path: &'static str, request: Q) -> Result<A, CallError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.on_each(|mut grpc, token| {
            let request = with_token(Request::new(request.clone()), token);
            async move {
                grpc.ready().await.map_err(not_ready)?;
                let codec = ProstCodec::<Q, A>::default();
                let answer = grpc.unary(request, PathAndQuery::from_static(path), codec).await?;
                Ok(answer.into_inner())
            }
        })
        .await
    }

    /// Makes a call of one question and one answer to a method that takes a stream of questions.
    pub(super) async fn exchange<Q, A>(
        &self,
        path: &'static str,
        request: Q,
    ) -> Result<A, CallError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.on_each(|mut grpc, token| {
            let request = with_token(Request::new(once(request.clone())), token);
            async move {
                grpc.ready().await.map_err(not_ready)?;
                let codec = ProstCodec::<Q, A>::default();
                let path = PathAndQuery::from_static(path);
                let mut answers = grpc.streaming(request, path, codec).await?.into_inner();
                let answer = answers.message().await?;
                answer.ok_or_else(|| Status::unavailable("the answer is missing"))
            }
        })
        .await
    }

    /// Begins to watch keys.
    pub(super) async fn watch(
        &self,
        create: WatchCreateRequest,
    ) -> Result<Streaming<WatchResponse>, CallError> {
        let request = WatchRequest { create: Some(create) };
        self.on_each(|mut grpc, token| {
            // The watching ends with the stream of questions, so that the stream must stay open.
            let questions = once(request.clone()).chain(pending());
            let request = with_token(Request::new(questions), token);
            async move {
                grpc.ready().await.map_err(not_ready)?;
                let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
                let path = PathAndQuery::from_static(WATCH);
                Ok(grpc.streaming(request, path, codec).await?.into_inner())
            }
        })
        .await
    }

    /// Makes a call to one member after another, until one answers. Logs in if that is needed.
    async fn on_each<A, F>(
        &self,
        call: impl Fn(Grpc<Channel>, Option<AsciiMetadataValue>) -> F,
    ) -> Result<A, CallError>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let first = self.session.lock().await.member;
        let mut problems = Vec::new();
        for turn in 0..self.members.len() {
            let member = (first + turn) % self.members.len();
            let mut result = self.ask(member, &call).await;
            if self.user.is_some() && result.as_ref().is_err_and(needs_login) {
                self.session.lock().await.token = None;
                result = self.ask(member, &call).await;
            }
            match result {
                Ok(answer) => {
                    self.session.lock().await.member = member;
                    return Ok(answer);
                }
                Err(status) if is_refusal(&status) => {
                    return Err(CallError::Refused(status.code(), status.message().to_owned()));
                }
                Err(status) => {
                    let address = &self.members[member].0;
                    problems.push(format!("{address}: {}", describe(&status)));
                }
            }
        }
        Err(CallError::Away(problems.join("; ")))
    }

    /// Makes a call to one member.
    async fn ask<A, F>(
        &self,
        member: usize,
        call: &impl Fn(Grpc<Channel>, Option<AsciiMetadataValue>) -> F,
    ) -> Result<A, Status>
    where
        F: Future<Output = Result<A, Status>>,
    {
        let token = self.token(member).await?;
        let answer = timeout(CALL, call(Grpc::new(self.members[member].1.clone()), token)).await;
        answer.map_err(|_| late())?
    }

    /// Returns the token of the login, and logs in before if that is needed. Returns `None` if etcd
    /// asks for no login.
    async fn token(&self, member: usize) -> Result<Option<AsciiMetadataValue>, Status> {
        let Some((name, password)) = &self.user else { return Ok(None) };
        if let Some(token) = &self.session.lock().await.token {
            return Ok(Some(token.clone()));
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.clone() };
        let mut grpc = Grpc::new(self.members[member].1.clone());
        let answer = timeout(CALL, async {
            grpc.ready().await.map_err(not_ready)?;
            let codec = ProstCodec::<AuthenticateRequest, AuthenticateResponse>::default();
            grpc.unary(Request::new(request), PathAndQuery::from_static(AUTHENTICATE), codec).await
        })
        .await
        .map_err(|_| late())??;
        let token: AsciiMetadataValue = (answer.into_inner().token.parse())
            .map_err(|_| Status::internal("the token of the login is not a text"))?;
        self.session.lock().await.token = Some(token.clone());
        Ok(Some(token))
    }

    /// Returns the addresses of all members for messages.
    pub(super) fn addresses(&self) -> String {
        let addresses: Vec<&str> = self.members.iter().map(|(address, _)| &**address).collect();
        addresses.join(", ")
    }
}

impl CallError {
    /// Returns the error for callers of the directory.
    pub(super) fn into_error(self, calls: &Calls) -> Error {
        match self {
            Self::Away(problem) => Error::Unreachable {
                problem: format!("etcd cannot be reached ({problem}); start it, or mend `ps.etcd`"),
            },
            Self::Changed(problem) => Error::Unreachable {
                problem: format!("the registration in etcd is repeated: {problem}; wait"),
            },
            Self::Refused(code, problem) => start_error(format!(
                "etcd at {} has refused a call: {problem} ({code:?}); look at `ps.etcd_user_file` \
                 and at the rights of the user",
                calls.addresses()
            )),
        }
    }
}

/// Adds the token of the login to a request.
fn with_token<T>(mut request: Request<T>, token: Option<AsciiMetadataValue>) -> Request<T> {
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}

fn not_ready(error: tonic::transport::Error) -> Status {
    Status::unavailable(causes(&error))
}

fn late() -> Status {
    Status::deadline_exceeded(format!("no answer within {CALL:?}"))
}

/// Returns whether another login is needed: its token has expired, or users or roles have changed
/// since.
fn needs_login(status: &Status) -> bool {
    let is_old = status.message().contains("revision of auth store is old");
    status.code() == Code::Unauthenticated || status.code() == Code::InvalidArgument && is_old
}

/// Returns whether another member or another attempt would give the same answer.
fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated
    )
}

/// Returns the problem that a status describes.
fn describe(status: &Status) -> String {
    match status.source() {
        Some(source) => format!("{}: {}", status.message(), causes(source)),
        None => status.message().to_owned(),
    }
}

/// Returns the text of an error and of the errors that have caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        cause = error.source();
    }
    texts.join(": ")
}
