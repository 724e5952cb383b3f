//! The unary calls whose message and answer stay bytes: the work of the request reads the message
//! and writes the answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::BoxFuture;
use tonic::server::UnaryService;
use tonic::{Code, Status};
use tracing::Instrument as _;
use zillion_access::{Principal, Role};

use super::counted::CountedBody;
use super::framed::PREFIX;
use super::status::{http_status, status};
use super::unary::{self, Received};
use super::{Scores, limit_time, status_code};
use crate::access::{check_model, find_holder};
use crate::admission::{Caller, Head};
use crate::budget::HeldBytes;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::Host;
use crate::metrics::Stage;
use crate::network::{Peer, read_lag};
use crate::request_log::Sample;
use crate::scored::Scored;
use crate::trace::request_span;

/// Answers a call in a span of its own.
pub(super) async fn answer(
    domain: &Arc<Domain>,
    what: impl Scores,
    request: Request,
    limit: Option<Duration>,
) -> Response {
    let span = request_span(format_args!("{}", what.protocol()), request.headers());
    let response = answer_call(domain, what, request, limit).instrument(span.clone()).await;
    span.record("status", http_status(status_code(&response)));
    response
}

async fn answer_call(
    domain: &Arc<Domain>,
    what: impl Scores,
    request: Request,
    limit: Option<Duration>,
) -> Response {
    let began = Instant::now();
    let facts = Arc::new(CallFacts::default());
    let limits = domain.limits();
    let entered = domain.check_crowded().and_then(|()| {
        let unguarded = || ServeError::Internal("a call passed no guard".to_owned());
        domain.enter(request.extensions().get::<Arc<Principal>>().ok_or_else(unguarded)?)
    });
    let caller = match entered {
        Ok(caller) => caller,
        Err(error) => {
            let code = error.kind().http_status();
            domain.metrics().record_request("unknown", what.protocol(), code, began.elapsed());
            return status(&error).into_http::<Body>();
        }
    };
    let most = caller.body_bytes().unwrap_or(usize::MAX).min(limits.body_bytes);
    let call = Call { domain: domain.clone(), what, began, limit, caller, facts: facts.clone() };
    let refused = Arc::new(AtomicBool::new(false));
    let held = match find_holder(request.extensions(), None) {
        Ok(holder) => domain.hold_bytes(holder),
        Err(error) => return status(&error).into_http::<Body>(),
    };
    let request = request.map(|body| {
        Body::new(CountedBody::new(body, held, limits.bytes_in_flight, refused.clone()))
    });
    let answering = async move {
        let (parts, body) = request.into_parts();
        let body = match unary::receive(&parts.headers, body, most).await {
            Received::Message(message) => {
                let Parts { headers, extensions, .. } = parts;
                return match call.answer(headers, extensions, message).await {
                    Ok(framed) => unary::respond(framed),
                    Err(status) => status.into_http::<Body>(),
                };
            }
            Received::Other(body) => body,
        };
        let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(most);
        grpc.unary(call, Request::from_parts(parts, body)).await.map(Body::new)
    };
    let mut response = limit_time(limit, answering, most).await;
    if refused.load(Ordering::Relaxed) {
        let error = ServeError::Overloaded { waiting: 0, backlog: Duration::ZERO };
        let _ = facts.failed.set(error.kind().http_status());
        response = status(&error).into_http::<Body>();
    }
    if most < limits.body_bytes
        && facts.failed.get().is_none()
        && status_code(&response) == Code::ResourceExhausted
    {
        let what = "the size of the message in bytes";
        let remedy = "send fewer rows at a time, or raise `quota.body_bytes` of the caller";
        response = status(&ServeError::TooLarge { what, limit: most, remedy }).into_http();
    }
    if let Some(held) = facts.held.get() {
        // The bytes of the answer are in flight until the client has taken them.
        response.extensions_mut().insert(held.clone());
    }
    if let Some((name, id)) = facts.logged.get() {
        response.headers_mut().insert(name.clone(), id.clone());
    }
    // An unknown model is no label, because a client could invent any number of them.
    let model = facts.host.get().map_or("unknown", |host| host.name());
    let outcome = match status_code(&response) {
        // A limit of the server or of the client came first, whatever the result of the work is.
        late @ Code::DeadlineExceeded => http_status(late),
        code => facts.failed.get().copied().unwrap_or_else(|| http_status(code)),
    };
    domain.metrics().record_request(model, what.protocol(), outcome, began.elapsed());
    response
}

/// The facts about a call that its metrics need.
#[derive(Debug, Default)]
struct CallFacts {
    host: OnceLock<Arc<Host>>,
    /// The HTTP status of the failure, if the call has failed.
    failed: OnceLock<u16>,
    /// The bytes of the answer.
    held: OnceLock<Arc<HeldBytes>>,
    /// The header with the id of the request in the request log.
    logged: OnceLock<(HeaderName, HeaderValue)>,
}

/// The handler of one call, after its message has arrived.
#[derive(Clone)]
struct Call<S> {
    domain: Arc<Domain>,
    what: S,
    began: Instant,
    /// The time that the client gives the call.
    limit: Option<Duration>,
    caller: Arc<Caller>,
    facts: Arc<CallFacts>,
}

impl<S: Scores> Call<S> {
    /// Answers the call with a message and its prefix.
    async fn answer(
        self,
        headers: HeaderMap,
        extensions: Extensions,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        self.domain.metrics().record_stage(Stage::Receive, self.began.elapsed());
        self.score(&headers, &extensions, message).await.map_err(|error| {
            // A call fails at most once, so that this is set at most once.
            let _ = self.facts.failed.set(error.kind().http_status());
            status(&error)
        })
    }

    async fn score(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        message: Bytes,
    ) -> Result<Bytes> {
        let Self { domain, what, caller, facts, .. } = self;
        let left = self.limit.map(|limit| limit.saturating_sub(self.began.elapsed()));
        let target = what.target(&message)?;
        check_model(domain, extensions, Role::Score, &target.model)?;
        let unguarded = || ServeError::Internal("a call passed no guard".to_owned());
        let peer = extensions.get::<Arc<Peer>>().ok_or_else(unguarded)?;
        let lag = read_lag(extensions);
        let host = domain.host(&target.model)?;
        let host = facts.host.get_or_init(|| host);
        let chosen = domain.resolve(host, &target.selector, headers)?;
        let bytes = message.len();
        let time = [left, target.time].into_iter().flatten().min();
        let (holder, wire) = (peer.holder(caller.principal()), what.wire());
        let gathering = Some(&peer.gathering);
        let head = Head { host, caller, wire, bytes, holder, booked: bytes, time, lag, gathering };
        let admitted = domain.admit(&head)?;
        let what = *what;
        let work = move |scored: &Scored| what.score(scored, message.clone());
        let (answer, sample) = domain.request(chosen, &admitted, (bytes, false), work).await?;
        let limit = domain.limits().answer_bytes;
        if answer.len() > limit {
            let what = "the size of the answer in bytes";
            let remedy = "send fewer rows at a time, or raise the setting `serve.max_answer_bytes`";
            return Err(ServeError::TooLarge { what, limit, remedy });
        }
        let mut held = admitted.held.another();
        held.set(answer.len());
        let _ = facts.held.set(Arc::new(held));
        if let Some(logged) = sample.and_then(Sample::hand_over) {
            let _ = facts.logged.set(logged);
        }
        Ok(answer.finish())
    }
}

impl<S: Scores> UnaryService<Bytes> for Call<S> {
    type Response = Bytes;
    type Future = BoxFuture<tonic::Response<Bytes>, Status>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (metadata, extensions, message) = request.into_parts();
        let answer = self.clone().answer(metadata.into_headers(), extensions, message);
        Box::pin(async move { answer.await.map(tonic::Response::new) })
    }
}

/// A codec that passes messages through as bytes. Those of answers have their prefix, which the
/// generic writer writes again.
#[derive(Clone, Copy, Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item.slice(PREFIX..));
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        // This takes the buffer over and copies nothing.
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
