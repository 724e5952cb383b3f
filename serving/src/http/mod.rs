//! HTTP: paths to the domain, and what comes back.
//!
//! An adapter and nothing else: it finds the model and the version in the path, hands the body to a task
//! of the pool, and puts the task's bytes into an answer. The network's thread parses no JSON.

mod infer;
mod meta;
mod rows;
mod values;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use tracing::Instrument as _;

use crate::domain::{Domain, RowsRequest, Scored};
use crate::error::{Kind, Result, ServeError};
use crate::host::Selector;
use crate::metrics::Stage;
use crate::trace::{request_span, span};

/// Reads a body as each protocol would, and says which took it: what fuzzers feed.
pub fn read_body(body: &[u8]) -> [bool; 3] {
    [infer::parse(body).is_ok(), rows::parse_predict(body).is_ok(), rows::parse_rank(body).is_ok()]
}

/// The server's paths.
pub(crate) fn router(domain: Arc<Domain>) -> Router {
    Router::new().route("/", any(answer)).route("/{*path}", any(answer)).with_state(domain)
}

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Live,
    Ready,
    Metrics,
    OpenApi,
    ServerMetadata,
    Metadata { model: String, selector: Selector },
    ModelReady { model: String, selector: Selector },
    Infer { model: String, selector: Selector },
    Status { model: String, selector: Selector },
    TfMetadata { model: String, selector: Selector },
    Predict { model: String, selector: Selector },
    Rank { model: String, selector: Selector },
}

impl Route {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let version = |text: &str| text.parse().ok().map(Selector::Version);
        Some(match parts[..] {
            ["v2"] | ["v2", ""] => Self::ServerMetadata,
            ["v2", "health", "live"] | ["healthz"] => Self::Live,
            ["v2", "health", "ready"] | ["readyz"] => Self::Ready,
            ["metrics"] => Self::Metrics,
            ["openapi.json"] => Self::OpenApi,
            ["v2", "models", model] => {
                Self::Metadata { model: model.to_owned(), selector: Selector::Default }
            }
            ["v2", "models", model, "versions", v] => {
                Self::Metadata { model: model.to_owned(), selector: version(v)? }
            }
            ["v2", "models", model, verb] => Self::v2(model, Selector::Default, verb)?,
            ["v2", "models", model, "versions", v, verb] => Self::v2(model, version(v)?, verb)?,
            ["v1", "models", last] => {
                let (model, verb) = split_verb(last);
                Self::v1(model, Selector::Default, verb)?
            }
            ["v1", "models", model, "metadata"] => {
                Self::TfMetadata { model: model.to_owned(), selector: Selector::Default }
            }
            ["v1", "models", model, "versions", last] => {
                let (v, verb) = split_verb(last);
                Self::v1(model, version(v)?, verb)?
            }
            ["v1", "models", model, "labels", last] => {
                let (label, verb) = split_verb(last);
                Self::v1(model, Selector::Label(label.to_owned()), verb)?
            }
            ["v1", "models", model, "versions", v, "metadata"] => {
                Self::TfMetadata { model: model.to_owned(), selector: version(v)? }
            }
            ["v1", "models", model, "labels", label, "metadata"] => Self::TfMetadata {
                model: model.to_owned(),
                selector: Selector::Label(label.to_owned()),
            },
            _ => return None,
        })
    }

    fn v2(model: &str, selector: Selector, verb: &str) -> Option<Self> {
        let model = model.to_owned();
        match verb {
            "infer" => Some(Self::Infer { model, selector }),
            "ready" => Some(Self::ModelReady { model, selector }),
            _ => None,
        }
    }

    fn v1(model: &str, selector: Selector, verb: Option<&str>) -> Option<Self> {
        let model = model.to_owned();
        match verb {
            None => Some(Self::Status { model, selector }),
            Some("predict") => Some(Self::Predict { model, selector }),
            Some("rank") => Some(Self::Rank { model, selector }),
            Some(_) => None,
        }
    }

    fn allowed(&self) -> Method {
        match self {
            Self::Infer { .. } | Self::Predict { .. } | Self::Rank { .. } => Method::POST,
            _ => Method::GET,
        }
    }

    /// Model and protocol, for the metrics of those that score.
    fn labels(&self) -> Option<(&str, &'static str)> {
        match self {
            Self::Infer { model, .. } => Some((model, "v2")),
            Self::Predict { model, .. } => Some((model, "tf")),
            Self::Rank { model, .. } => Some((model, "rank")),
            _ => None,
        }
    }
}

/// `name:verb` into both.
fn split_verb(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((name, verb)) => (name, Some(verb)),
        None => (text, None),
    }
}

async fn answer(State(domain): State<Arc<Domain>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let route = Route::parse(&path);
    let span = match route.as_ref().and_then(Route::labels) {
        Some((model, protocol)) => {
            let model = known(&domain, model);
            request_span(format_args!("{protocol} {model}"), request.headers())
        }
        // A path could be anything.
        None => request_span(format_args!("{}", request.method()), request.headers()),
    };
    let response = answered(domain, path, route, request).instrument(span.clone()).await;
    span.record("status", response.status().as_u16());
    response
}

async fn answered(
    domain: Arc<Domain>,
    path: String,
    route: Option<Route>,
    request: Request,
) -> Response {
    let began = Instant::now();
    let Some(route) = route else {
        return failure(&ServeError::UnknownPath(path.chars().take(200).collect()));
    };
    let allowed = route.allowed();
    let is_head = request.method() == Method::HEAD && allowed == Method::GET;
    if request.method() != allowed && !is_head {
        let allowed = if allowed == Method::POST { "POST" } else { "GET" };
        return failure(&ServeError::WrongMethod { path, allowed });
    }
    domain.metrics().open_requests.inc();
    let outcome = dispatch(&domain, &route, request).await;
    domain.metrics().open_requests.dec();
    let response = outcome.unwrap_or_else(|error| failure(&error));
    if let Some((model, protocol)) = route.labels() {
        let model = known(&domain, model);
        let status = response.status().as_u16();
        domain.metrics().request(model, protocol, status, began.elapsed());
    }
    response
}

/// A name that is not served is no label: anybody could invent any number of them.
fn known<'a>(domain: &'a Domain, model: &str) -> &'a str {
    domain.host(model).map_or("unknown", |host| host.name())
}

async fn dispatch(domain: &Arc<Domain>, route: &Route, request: Request) -> Result<Response> {
    match route {
        Route::Live => Ok(json(&meta::Flag { live: Some(true), ready: None })),
        Route::Ready => {
            let ready = domain.is_ready();
            let body = json(&meta::Flag { live: None, ready: Some(ready) });
            Ok(if ready { body } else { (StatusCode::SERVICE_UNAVAILABLE, body).into_response() })
        }
        Route::Metrics => {
            let text = domain.metrics_text()?;
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
        }
        Route::OpenApi => Ok(json(&meta::openapi())),
        Route::ServerMetadata => Ok(json(&meta::server())),
        Route::Metadata { model, selector } => {
            let host = domain.host(model)?;
            Ok(json(&meta::v2_model(host, &*host.resolve(selector)?)))
        }
        Route::ModelReady { model, selector } => {
            domain.host(model)?.resolve(selector)?;
            Ok(json(&meta::Flag { live: None, ready: Some(true) }))
        }
        Route::Status { model, selector } => {
            let host = domain.host(model)?;
            Ok(json(&meta::tf_status(host, selector)?))
        }
        Route::TfMetadata { model, selector } => {
            let host = domain.host(model)?;
            Ok(json(&meta::tf_metadata(host, &*host.resolve(selector)?)))
        }
        Route::Infer { model, selector } => {
            scored(domain, model, selector, request, |scored, body| {
                let parsed = scored.timed(Stage::Parse, || infer::parse(body))?;
                let id = parsed.id.clone();
                let (rows, columns, outputs) = (parsed.rows, parsed.columns, parsed.outputs);
                let answer = scored.score(&RowsRequest { rows, columns, outputs })?;
                let body = infer::InferAnswer::new(scored.model(), id.as_deref(), &answer);
                scored.timed(Stage::Write, || to_bytes(&body))
            })
            .await
        }
        Route::Predict { model, selector } => {
            scored(domain, model, selector, request, |scored, body| {
                let parsed = scored.timed(Stage::Parse, || rows::parse_predict(body))?;
                let (rows, columns) = (parsed.rows, parsed.columns);
                let answer = scored.score(&RowsRequest { rows, columns, outputs: Vec::new() })?;
                let body = rows::PredictAnswer::new(&answer, parsed.is_columnar);
                scored.timed(Stage::Write, || to_bytes(&body))
            })
            .await
        }
        Route::Rank { model, selector } => {
            scored(domain, model, selector, request, |scored, body| {
                let parsed = scored.timed(Stage::Parse, || rows::parse_rank(body))?;
                let (rows, columns) = (parsed.rows, parsed.columns);
                let answer = scored.score(&RowsRequest { rows, columns, outputs: Vec::new() })?;
                let body = rows::RankAnswer::new(&answer, parsed.top_k);
                scored.timed(Stage::Write, || to_bytes(&body))
            })
            .await
        }
    }
}

/// Receives a body and does the work of a request with it.
async fn scored(
    domain: &Arc<Domain>,
    model: &str,
    selector: &Selector,
    request: Request,
    work: impl FnOnce(&Scored, &[u8]) -> Result<Vec<u8>> + Send + 'static,
) -> Result<Response> {
    // Before the body: who asks for what is not here need not send it.
    domain.host(model)?.resolve(selector)?;
    let began = Instant::now();
    let body = receive(domain, request).instrument(span!("receive")).await?;
    domain.metrics().stage(Stage::Receive, began.elapsed());
    let bytes = domain.request(model, selector, move |scored| work(scored, &body)).await?;
    Ok(json_bytes(StatusCode::OK, bytes))
}

async fn receive(domain: &Domain, request: Request) -> Result<Bytes> {
    let limits = domain.limits();
    let too_large = || ServeError::TooLarge {
        what: "the body",
        limit: limits.body_bytes,
        setting: "--max-body-bytes",
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|l| l.to_str().ok()).and_then(|l| l.parse::<u64>().ok());
    if length.is_some_and(|length| length > limits.body_bytes as u64) {
        return Err(too_large());
    }
    let body = Limited::new(request.into_body(), limits.body_bytes);
    match tokio::time::timeout(limits.body_time, body.collect()).await {
        Err(_) => Err(ServeError::SlowBody { limit: limits.body_time }),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => {
            Err(ServeError::Malformed(format!("the body ended before its length: {error}")))
        }
    }
}

/// An error as every protocol over HTTP says it.
fn failure(error: &ServeError) -> Response {
    #[derive(Serialize)]
    struct Failure {
        error: String,
    }
    let kind = error.kind();
    let status =
        StatusCode::from_u16(kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    match kind {
        Kind::Internal => tracing::error!("{error}"),
        // The client has been told; who looks for the reason of many of them turns this on.
        _ => tracing::debug!(status = status.as_u16(), "refused: {error}"),
    }
    let body = to_bytes(&Failure { error: error.to_string() }).unwrap_or_default();
    let mut response = json_bytes(status, body);
    match error {
        ServeError::Overloaded { .. } => {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        ServeError::WrongMethod { allowed, .. } => {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        // The rest of such a body is not read.
        ServeError::TooLarge { .. } | ServeError::SlowBody { .. } => {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

fn json(body: &impl Serialize) -> Response {
    match to_bytes(body) {
        Ok(bytes) => json_bytes(StatusCode::OK, bytes),
        Err(error) => failure(&error),
    }
}

fn json_bytes(status: StatusCode, bytes: Vec<u8>) -> Response {
    let kind = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, kind)], Body::from(bytes)).into_response()
}

fn to_bytes(body: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(body).map_err(|e| ServeError::Internal(e.to_string()))
}

#[cfg(test)]
mod tests {
    use zillion_registry::VersionId;

    use super::*;

    #[test]
    fn paths_are_those_of_the_protocols() {
        let model = || "m".to_owned();
        let version = || Selector::Version(VersionId(3));
        let label = || Selector::Label("canary".to_owned());
        let default = || Selector::Default;
        for (path, route) in [
            ("/v2", Route::ServerMetadata),
            ("/v2/health/live", Route::Live),
            ("/v2/models/m", Route::Metadata { model: model(), selector: default() }),
            ("/v2/models/m/infer", Route::Infer { model: model(), selector: default() }),
            ("/v2/models/m/versions/3/infer", Route::Infer { model: model(), selector: version() }),
            ("/v2/models/m/versions/3", Route::Metadata { model: model(), selector: version() }),
            ("/v2/models/m/ready", Route::ModelReady { model: model(), selector: default() }),
            ("/v1/models/m", Route::Status { model: model(), selector: default() }),
            ("/v1/models/m:predict", Route::Predict { model: model(), selector: default() }),
            (
                "/v1/models/m/versions/3:predict",
                Route::Predict { model: model(), selector: version() },
            ),
            (
                "/v1/models/m/labels/canary:predict",
                Route::Predict { model: model(), selector: label() },
            ),
            ("/v1/models/m:rank", Route::Rank { model: model(), selector: default() }),
            ("/v1/models/m/metadata", Route::TfMetadata { model: model(), selector: default() }),
        ] {
            assert_eq!(Route::parse(path), Some(route), "{path}");
        }
        for path in
            ["/", "/v3", "/v2/models/m/x", "/v2/models/m/versions/x/infer", "/v1/models/m:x"]
        {
            assert_eq!(Route::parse(path), None, "{path}");
        }
    }
}
