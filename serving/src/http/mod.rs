//! HTTP: paths to the domain, and what comes back.
//!
//! An adapter and nothing else: it finds the model and the version in the path, hands the body to a task
//! of the pool, and puts the task's bytes into an answer. The network's thread parses no JSON but the few
//! bytes of the repository's requests.

mod answers;
mod body;
mod infer;
mod meta;
mod openapi;
mod parameters;
mod repository;
mod respond;
mod route;
mod rows;
mod table;
mod values;

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tracing::Instrument as _;

use self::answers::{ClassifyAnswer, PredictAnswer, RankAnswer, RegressAnswer};
use self::body::Encoding;
use self::infer::{HEADER_LENGTH, Reply};
use self::route::{Route, Target, Verb};
use self::rows::Form;
use crate::domain::{Domain, RowsRequest, Scored};
use crate::error::{Result, ServeError};
use crate::metrics::Stage;
use crate::score::Answer;
use crate::trace::{request_span, span};

/// Reads a body as each protocol would, and says which took it: what fuzzers feed. The first two bytes say
/// how long the JSON of a body with binary tensors is.
pub fn read_body(body: &[u8]) -> [bool; 5] {
    let with_binary = body.split_at_checked(2).is_some_and(|(length, body)| {
        let length = usize::from(length[0]) | usize::from(length[1]) << 8;
        infer::parse(body, Some(&length.to_string())).is_ok()
    });
    let rows = |form| rows::parse(form, body).is_ok();
    [
        infer::parse(body, None).is_ok(),
        with_binary,
        rows(Form::Predict),
        rows(Form::Examples),
        rows(Form::Rank),
    ]
}

/// The server's paths.
pub(crate) fn router(domain: Arc<Domain>) -> Router {
    Router::new().route("/", any(answer)).route("/{*path}", any(answer)).with_state(domain)
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
        return respond::failure(&ServeError::UnknownPath(path.chars().take(200).collect()));
    };
    let allowed = route.allowed();
    let is_head = request.method() == Method::HEAD && allowed == Method::GET;
    if request.method() != allowed && !is_head {
        let allowed = if allowed == Method::POST { "POST" } else { "GET" };
        return respond::failure(&ServeError::WrongMethod { path, allowed });
    }
    // Until this is dropped, by a client that leaves too.
    let _open = domain.metrics().entered();
    let outcome = dispatch(&domain, &route, request).await;
    let response = outcome.unwrap_or_else(|error| respond::failure(&error));
    if let Some((model, protocol)) = route.labels() {
        let model = known(&domain, model);
        let status = response.status().as_u16();
        domain.metrics().request(model, protocol, status, began.elapsed());
    }
    response
}

/// A name that is not served is no label: anybody could invent any number of them.
fn known<'a>(domain: &Domain, model: &'a str) -> &'a str {
    if domain.host(model).is_ok() { model } else { "unknown" }
}

async fn dispatch(domain: &Arc<Domain>, route: &Route, request: Request) -> Result<Response> {
    let ok = |body| Ok(respond::json(StatusCode::OK, &body));
    match route {
        Route::Live => ok(serde_json::json!({ "live": true })),
        Route::Ready => {
            let (is_ready, body) = meta::ready(domain);
            let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            Ok(respond::json(status, &body))
        }
        Route::Metrics => {
            let text = domain.metrics_text()?;
            let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
            Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
        }
        Route::OpenApi => ok(openapi::document(domain)),
        Route::ServerMetadata => ok(meta::server()),
        Route::AllStatistics => {
            let mut all = Vec::new();
            for host in domain.hosts() {
                all.extend(meta::statistics(&host, &crate::Selector::Default)?);
            }
            ok(serde_json::json!({ "model_stats": all }))
        }
        Route::Index => {
            let body = small_body(domain, request).await?;
            ok(repository::index(domain, &body).await?)
        }
        Route::Load { model } => {
            let body = small_body(domain, request).await?;
            ok(repository::load(domain, model, &body).await?)
        }
        Route::Unload { model } => {
            let body = small_body(domain, request).await?;
            ok(repository::unload(domain, model, &body).await?)
        }
        Route::Model(target, verb) if verb.is_scoring() => {
            scored(domain, target, *verb, request).await
        }
        Route::Model(Target { model, selector }, verb) => {
            let host = domain.host(model)?;
            ok(match verb {
                Verb::Status => meta::tf_status(&host, selector)?,
                Verb::Statistics => {
                    let statistics = meta::statistics(&host, selector)?;
                    serde_json::json!({ "model_stats": statistics })
                }
                verb => {
                    let servable = host.resolve(selector)?;
                    match verb {
                        Verb::Ready => serde_json::json!({ "ready": true }),
                        Verb::Config => meta::config(&host, &servable),
                        Verb::TfMetadata => meta::tf_metadata(&host, &servable),
                        _ => meta::v2_model(&host, &servable),
                    }
                }
            })
        }
    }
}

/// Bytes that the body of a request to the repository may have: it is read on the network's thread.
const SMALL: usize = 64 << 10;

async fn small_body(domain: &Domain, request: Request) -> Result<bytes::Bytes> {
    let mut limits = domain.limits();
    limits.body_bytes = limits.body_bytes.min(SMALL);
    body::receive(&limits, request).await?.decode(&limits)
}

/// Receives a body and does the work of a request with it.
async fn scored(
    domain: &Arc<Domain>,
    target: &Target,
    verb: Verb,
    request: Request,
) -> Result<Response> {
    let Target { model, selector } = target;
    // Before the body: who asks for what is not here need not send it.
    domain.host(model)?.resolve(selector)?;
    let header_length = match request.headers().get(HEADER_LENGTH) {
        None => None,
        Some(_) if verb != Verb::Infer => {
            let reason = "binary tensors are for `infer`: header `Inference-Header-Content-Length`";
            return Err(ServeError::Malformed(reason.to_owned()));
        }
        // What is no text is no number either.
        Some(value) => Some(value.to_str().unwrap_or("?").to_owned()),
    };
    let began = Instant::now();
    let limits = domain.limits();
    let received = body::receive(&limits, request).instrument(span!("receive")).await?;
    domain.metrics().stage(Stage::Receive, began.elapsed());
    let arrived = Instant::now();
    let work = move |scored: &Scored| {
        let body = match received.encoding {
            Encoding::Plain => received.bytes,
            _ => scored.timed(Stage::Decompress, || received.decode(&limits))?,
        };
        match verb {
            Verb::Infer => inferred(scored, &body, header_length.as_deref(), arrived),
            _ => in_rows(scored, verb, &body),
        }
    };
    let reply = domain.request(model, selector, work).await?;
    Ok(respond::reply(reply))
}

/// The answer to a v2 request.
fn inferred(
    scored: &Scored,
    body: &[u8],
    header_length: Option<&str>,
    arrived: Instant,
) -> Result<Reply> {
    let parsed = scored.timed(Stage::Parse, || infer::parse(body, header_length))?;
    let (model, version) = &parsed.named;
    let answers = [scored.model().to_owned(), scored.servable().version().to_string()];
    for (what, said, answers) in [("model", model, &answers[0]), ("version", version, &answers[1])]
    {
        // Some clients send an empty version for the default one.
        if let Some(said) = said.as_ref().filter(|said| *said != answers && !said.is_empty()) {
            let said: String = said.chars().take(100).collect();
            return Err(ServeError::Malformed(format!(
                "the path asks {what} `{answers}` and the body {what} `{said}`"
            )));
        }
    }
    if let Some(limit) = parsed.timeout.filter(|&limit| arrived.elapsed() > limit) {
        return Err(ServeError::Deadline { limit });
    }
    let (rows, columns, outputs) = (parsed.rows, parsed.columns, parsed.outputs);
    let answer = scored.score(&RowsRequest { rows, columns, outputs })?;
    scored.timed(Stage::Write, || {
        infer::reply(scored.model(), parsed.id.as_deref(), &answer, &parsed.binary)
    })
}

/// The answer to a request in rows.
fn in_rows(scored: &Scored, verb: Verb, body: &[u8]) -> Result<Reply> {
    let form = match verb {
        Verb::Predict => Form::Predict,
        Verb::Rank => Form::Rank,
        _ => Form::Examples,
    };
    if verb == Verb::Classify && !scored.servable().has_probabilities() {
        return Err(ServeError::Malformed(
            "the model has no labels, so its scores are no probabilities of classes; ask `:regress` or `:predict`".to_owned(),
        ));
    }
    let parsed = scored.timed(Stage::Parse, || {
        let mut parsed = rows::parse(form, body)?;
        parsed.fit(scored.servable().encoder())?;
        Ok::<_, ServeError>(parsed)
    })?;
    let (is_columnar, top_k) = (parsed.is_columnar, parsed.top_k);
    let (rows, columns) = (parsed.rows, parsed.columns);
    let answer = scored.score(&RowsRequest { rows, columns, outputs: Vec::new() })?;
    let bytes = scored.timed(Stage::Write, || written(verb, &answer, is_columnar, top_k))?;
    Ok(Reply { bytes, header_length: None })
}

fn written(
    verb: Verb,
    answer: &Answer,
    is_columnar: bool,
    top_k: Option<usize>,
) -> Result<Vec<u8>> {
    match verb {
        Verb::Rank => respond::to_bytes(&RankAnswer::new(answer, top_k)),
        Verb::Classify => respond::to_bytes(&ClassifyAnswer::new(answer)),
        Verb::Regress => respond::to_bytes(&RegressAnswer::new(answer)),
        _ => respond::to_bytes(&PredictAnswer::new(answer, is_columnar)),
    }
}

#[cfg(test)]
mod tests {
    use super::read_body;

    #[test]
    fn what_fuzzing_begins_with_is_read_each_by_its_own_reader() {
        let seeds: [(&[u8], usize); 3] = [
            (include_bytes!("../../../fuzz/seeds/request_bodies/infer.json"), 0),
            (include_bytes!("../../../fuzz/seeds/request_bodies/binary.bin"), 1),
            (include_bytes!("../../../fuzz/seeds/request_bodies/examples.json"), 3),
        ];
        for (seed, reader) in seeds {
            assert!(read_body(seed)[reader], "{}", String::from_utf8_lossy(seed));
        }
    }
}
