//! The unary calls whose message and answer stay bytes: a task of the pool reads the message and
//! writes the answer.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::BoxFuture;
use tonic::server::UnaryService;
use tonic::{Code, Status};
use tracing::Instrument as _;

use super::status::{http_status, status};
use super::{Scores, limit_time, status_code};
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::Host;
use crate::metrics::Stage;
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
    let call = Call { domain: domain.clone(), what, began, facts: facts.clone() };
    let most = domain.limits().body_bytes;
    let unary = async move {
        let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(most);
        grpc.unary(call, request).await.map(Body::new)
    };
    let response = limit_time(limit, unary, domain).await;
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
}

/// The handler of one call, which tonic calls when the message has arrived.
struct Call<S> {
    domain: Arc<Domain>,
    what: S,
    began: Instant,
    facts: Arc<CallFacts>,
}

impl<S: Scores> UnaryService<Bytes> for Call<S> {
    type Response = Bytes;
    type Future = BoxFuture<tonic::Response<Bytes>, Status>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (domain, what, facts) = (self.domain.clone(), self.what, self.facts.clone());
        domain.metrics().record_stage(Stage::Receive, self.began.elapsed());
        Box::pin(async move {
            let scored = score(&domain, what, request.into_inner(), &facts).await;
            scored.map(tonic::Response::new).map_err(|error| {
                // A call fails at most once, so that this is set at most once.
                let _ = facts.failed.set(error.kind().http_status());
                status(&error)
            })
        })
    }
}

async fn score(
    domain: &Domain,
    what: impl Scores,
    message: Bytes,
    facts: &CallFacts,
) -> Result<Bytes> {
    let target = what.target(&message)?;
    let host = domain.host(&target.model)?;
    let _ = facts.host.set(host.clone());
    let version = host.resolve(&target.selector)?;
    let work = move |scored: &crate::domain::Scored| what.score(scored, message);
    let scored = domain.request(version, work);
    let bytes = match target.time {
        None => scored.await?,
        Some(limit) => match tokio::time::timeout(limit, scored).await {
            Ok(scored) => scored?,
            Err(_) => return Err(ServeError::Deadline { limit }),
        },
    };
    Ok(bytes.into())
}

/// A codec that passes messages through as bytes.
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
        to.put(item);
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
