//! The gRPC protocol: Triton's and TensorFlow Serving's services, retrieval, health and
//! reflection.
//!
//! This module is a thin adapter over the domain. A message that holds rows stays bytes until its
//! work begins, on the pool if it is not small; before that, the network's thread reads only the
//! name of the model. All other messages are small, and generated servers answer them.

mod answers;
mod counted;
mod deadline;
mod framed;
mod health;
mod infer;
mod lists;
mod permission;
mod predict;
mod raw;
mod retrieve;
mod scan;
mod server;
mod status;
mod tf;
mod timed;
mod unary;
mod v2;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::sync::watch;
use tonic::codegen::Service;
use tonic::service::Routes;
use tonic::{Code, Status};

use self::framed::Framed;
use self::health::HealthOf;
pub(crate) use self::health::Readiness;
use self::infer::Infer;
use self::predict::Predict;
use self::retrieve::Retrieve;
use self::server::inference::grpc_inference_service_server::GrpcInferenceServiceServer;
use self::server::tensorflow::serving::model_service_server::ModelServiceServer;
use self::server::tensorflow::serving::prediction_service_server::PredictionServiceServer;
pub use self::status::http_status;
use self::status::status;
use self::tf::Tf;
use self::timed::TimedBody;
use self::v2::V2;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::Selector;
use crate::proto;
use crate::queue::Wire;
use crate::scored::{Scored, Step};

/// The services that score, by their full names.
const SERVICES: [&str; 4] = [
    "inference.GRPCInferenceService",
    "tensorflow.serving.PredictionService",
    "tensorflow.serving.ModelService",
    "zillion.v1.RetrievalService",
];

/// The largest number of bytes of a message that holds no rows. Generated servers decode such
/// messages on the network's thread.
const SMALL_MESSAGE: usize = 64 << 10;

/// A call whose message holds rows.
trait Scores: Copy + Send + Sync + 'static {
    /// Returns the name of the protocol in metrics.
    fn protocol(self) -> &'static str;

    /// Returns the protocol by which the rows come.
    fn wire(self) -> Wire;

    /// Reads the model and the time limit of a message.
    fn target(self, message: &Bytes) -> Result<Target>;

    /// Reads the message, scores its rows, and writes the answer, or leaves the last two to a later
    /// turn. The message is small, or this function runs on the pool.
    fn score(self, scored: &Scored, message: Bytes) -> Result<Step<Framed>>;
}

/// The model and the version that a request asks for, and the time limit of the request if it has
/// one.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    model: String,
    selector: Selector,
    time: Option<Duration>,
}

/// The gRPC services of a domain.
#[derive(Clone, Debug)]
pub(crate) struct Grpc {
    domain: Arc<Domain>,
    routes: axum::Router,
}

/// Reads a message as the calls `ModelInfer`, `Predict` and `Retrieve` do, and returns which of
/// them accept it. Fuzzers call this function.
pub fn read_message(message: &[u8]) -> [bool; 3] {
    let message = Bytes::copy_from_slice(message);
    [infer::accepts(&message), predict::accepts(&message), retrieve::accepts(&message)]
}

/// Returns whether a request belongs to gRPC, by its content type.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

impl Grpc {
    /// Creates the services.
    ///
    /// # Errors
    /// Returns an error if the built-in descriptors cannot be read, which is a bug.
    pub(crate) fn new(domain: Arc<Domain>, readiness: &watch::Receiver<Readiness>) -> Result<Self> {
        let health = HealthOf { domain: domain.clone(), readiness: readiness.clone() };
        let limit = SMALL_MESSAGE;
        let v2 = GrpcInferenceServiceServer::new(V2(domain.clone()));
        let tf = Tf(domain.clone());
        let routes = Routes::new(v2.max_decoding_message_size(limit))
            .add_service(PredictionServiceServer::new(tf.clone()).max_decoding_message_size(limit))
            .add_service(ModelServiceServer::new(tf).max_decoding_message_size(limit))
            .add_service(proto::health::health_server::HealthServer::new(health));
        let internal = |e: tonic_reflection::server::Error| ServeError::Internal(e.to_string());
        let described = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(proto::health::FILE_DESCRIPTOR_SET)
        };
        let routes = routes
            .add_service(described().build_v1().map_err(internal)?)
            .add_service(described().build_v1alpha().map_err(internal)?);
        Ok(Self { domain, routes: routes.prepare().into_axum_router() })
    }

    /// Answers a call to any service.
    pub(crate) async fn answer(self, mut request: Request) -> Response {
        if request.version() != Version::HTTP_2 {
            let text = "{\"error\":\"gRPC does not work over HTTP/1; connect over HTTP/2\"}";
            let kind = [(header::CONTENT_TYPE, "application/json")];
            return (StatusCode::HTTP_VERSION_NOT_SUPPORTED, kind, text).into_response();
        }
        let path = request.uri().path().to_owned();
        let _open = self.domain.metrics().enter_request();
        if let Some(api) = permission::api(&path) {
            let (extensions, headers) = (request.extensions(), request.headers());
            match self.domain.authorize(extensions, headers, api, &path, None) {
                Ok(caller) => request.extensions_mut().insert(caller),
                Err(ServeError::UnknownPath(_)) => {
                    return Status::unimplemented(
                        "this listener does not answer this call; use the listener whose \
                         `serve.listener` entry lists its API",
                    )
                    .into_http();
                }
                Err(error) => return status(&error).into_http(),
            };
        }
        let limits = self.domain.limits();
        let most = limits.body_time + limits.request_time;
        let asked = deadline::read(request.headers());
        let limit = if is_slow(&path) { asked } else { Some(asked.unwrap_or(most).min(most)) };
        if is_slow(&path) {
            // The work may be slow, and the message may not.
            request = request.map(|body| Body::new(TimedBody::new(body, limits.body_time)));
        }
        match path.as_str() {
            "/inference.GRPCInferenceService/ModelInfer" => {
                raw::answer(&self.domain, Infer, request, limit).await
            }
            "/tensorflow.serving.PredictionService/Predict" => {
                raw::answer(&self.domain, Predict, request, limit).await
            }
            "/zillion.v1.RetrievalService/Retrieve" => {
                raw::answer(&self.domain, Retrieve, request, limit).await
            }
            _ => {
                let mut routes = self.routes.clone();
                let answer =
                    async move { routes.call(request).await.unwrap_or_else(|e| match e {}) };
                limit_time(limit, answer, SMALL_MESSAGE).await
            }
        }
    }
}

/// Returns whether the server sets no time limit for a call: for work on the registry.
fn is_slow(path: &str) -> bool {
    path.starts_with("/inference.GRPCInferenceService/Repository")
}

/// Returns whether the answer to a call is a stream that ends when its client wants.
pub(crate) fn is_stream(path: &str) -> bool {
    path == "/grpc.health.v1.Health/Watch" || path.starts_with("/grpc.reflection.")
}

/// Returns the answer of a call, or an error if the answer is late.
async fn limit_time(
    limit: Option<Duration>,
    answer: impl Future<Output = Response>,
    most_bytes: usize,
) -> Response {
    let response = match limit {
        None => answer.await,
        Some(limit) => {
            let began = Instant::now();
            match tokio::time::timeout(limit, answer).await {
                // Timers are no finer than a millisecond, so that the limit is checked again.
                Ok(response) if began.elapsed() <= limit => response,
                _ => status(&ServeError::Deadline { limit }).into_http::<Body>(),
            }
        }
    };
    // Generated servers answer "out of range" to a message that is too large, and "internal" to one
    // that cannot be read.
    match status_code(&response) {
        Code::OutOfRange => status(&too_large(most_bytes)).into_http::<Body>(),
        Code::Internal if is_no_message(&response) => {
            let reason =
                "the message does not have the type that this call expects; send the type of the \
                 service definition"
                    .to_owned();
            status(&ServeError::Malformed(reason)).into_http::<Body>()
        }
        _ => response,
    }
}

/// Returns whether a generated server failed to decode its message. The server reports that with
/// one of two texts, percent-encoded.
fn is_no_message(response: &Response) -> bool {
    let text = response.headers().get("grpc-message").map_or(&b""[..], |text| text.as_bytes());
    text.starts_with(b"failed%20to%20decode%20Protobuf")
        || text.starts_with(b"Missing%20request%20message")
}

fn too_large(limit: usize) -> ServeError {
    let what = "the size of the message in bytes";
    let remedy = "send fewer rows at a time, or raise the setting `serve.max_body_bytes`";
    ServeError::TooLarge { what, limit, remedy }
}

/// Returns the gRPC code of a response. Only a failure has its code in the headers; the code of any
/// other response is `OK`.
fn status_code(response: &Response) -> Code {
    let code = response.headers().get("grpc-status");
    code.map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_slow_calls_are_told_by_their_path() {
        assert!(is_stream("/grpc.health.v1.Health/Watch"));
        assert!(is_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"));
        assert!(!is_stream("/grpc.health.v1.Health/Check") && !is_stream("/x/Watch"));
        assert!(is_slow("/inference.GRPCInferenceService/RepositoryModelLoad"));
        assert!(!is_slow("/grpc.health.v1.Health/Watch"));
    }

    #[test]
    fn grpc_calls_are_recognised_by_their_type() {
        let of = |kind: &'static str| {
            is_grpc(&HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().unwrap())]))
        };
        assert!(of("application/grpc") && of("application/grpc+proto"));
        assert!(of("application/grpc; charset=utf-8"));
        assert!(!of("application/grpc-web") && !of("application/json") && !of(""));
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
