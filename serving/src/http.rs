//! The HTTP protocols: the router from paths to the domain, and the responses.
//!
//! This module is a thin adapter over the domain: it finds the model and the version in the path,
//! passes the body to the work of the request, and puts the bytes of the answer into a response.
//! The network's thread parses no JSON except small bodies.
//!
//! axum's router chooses a handler by path and method. It matches whole segments, so that
//! [`answer_tf`] itself reads the verb at the end of the last segment of TF-Serving's paths, as in
//! `/v1/models/m:predict`.

mod answers;
mod body;
mod infer;
mod meta;
mod openapi;
mod parameters;
mod repository;
mod respond;
mod retrieve;
mod route;
mod rows;
mod scoring;
mod table;
mod values;

use std::sync::Arc;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request, State};
use axum::handler::Handler;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};
use axum::{Extension, Router};
use serde_json::{Value, json};
use tracing::{Instrument as _, Span};
use zillion_access::Principal;

use self::openapi::Documents;
use self::route::{Target, TfTarget};
use self::rows::Form;
use crate::config::Limits;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::{Resolved, Selector};
use crate::network::Api;
use crate::trace::request_span;

/// Reads a body with the reader of each protocol, and returns which readers accept it. Fuzzers call
/// this function. The first two bytes are the length of the JSON of a body with binary tensors.
pub fn read_body(body: &[u8]) -> [bool; 6] {
    let limits = Limits::default();
    let with_binary = body.split_at_checked(2).is_some_and(|(length, body)| {
        let length = usize::from(length[0]) | usize::from(length[1]) << 8;
        infer::parse(body, Some(&length.to_string()), &limits).is_ok()
    });
    let rows = |form| rows::parse(form, body, &limits).is_ok();
    [
        infer::parse(body, None, &limits).is_ok(),
        with_binary,
        rows(Form::Predict),
        rows(Form::Examples),
        rows(Form::Rank),
        retrieve::parse(body, &limits).is_ok(),
    ]
}

/// Returns the router of all paths.
pub(crate) fn router(domain: Arc<Domain>) -> Router {
    let guard = |api: Api, routes: Router<Arc<Domain>>| {
        routes.route_layer(from_fn_with_state((domain.clone(), api), guard))
    };
    let mut health = Router::new()
        .route("/healthz", get_only(get_live))
        .route("/readyz", get_only(get_ready))
        .route("/v2/health/live", get_only(get_live))
        .route("/v2/health/ready", get_only(get_ready));
    let metrics = Router::new().route("/metrics", get_only(get_metrics));
    let control = Router::new()
        .route("/v2/repository/index", post_only(repository::index))
        .route("/v2/repository/models/{model}/load", post_only(repository::load))
        .route("/v2/repository/models/{model}/unload", post_only(repository::unload));
    let mut meta = Router::new()
        .route("/openapi.json", get_only(get_openapi).layer(Extension(Arc::new(Documents::new()))))
        .route("/v2", get_only(get_server_metadata))
        .route("/v2/", get_only(get_server_metadata))
        // A model of this name has its metadata at the paths of its versions only, as in Triton.
        .route("/v2/models/stats", get_only(get_all_statistics));
    let mut scoring = Router::new();
    for base in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        let ready = describe(|_| json!({ "ready": true }));
        health = health.route(&format!("{base}/ready"), ready);
        meta = meta
            .route(base, describe(meta::v2_model))
            .route(&format!("{base}/config"), describe(meta::config))
            .route(&format!("{base}/stats"), get_only(get_statistics));
        scoring = scoring.route(&format!("{base}/infer"), post_only(scoring::post_infer));
    }
    for base in [
        "/v1/models/{model}",
        "/v1/models/{model}/versions/{version}",
        "/v1/models/{model}/labels/{label}",
    ] {
        meta = meta.route(&format!("{base}/metadata"), describe(meta::tf_metadata));
        scoring = scoring.route(base, any(answer_tf));
    }
    // Paths that score rows check the caller themselves, because the verb is a part of the last
    // segment.
    guard(Api::Health, health)
        .merge(guard(Api::Metrics, metrics))
        .merge(guard(Api::Control, control))
        .merge(guard(Api::Meta, meta))
        .fallback(refuse_path)
        .layer(from_fn_with_state(domain.clone(), observe_plain))
        .merge(scoring)
        .with_state(domain)
}

/// Lets a request through to its handler if its listener answers calls of this group and its caller
/// may make them. The handler finds the principal in the extensions.
async fn guard(
    State((domain, api)): State<(Arc<Domain>, Api)>,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    let parameters = parameters.map_err(|_| ServeError::unknown_path(request.uri().path()))?;
    let model = parameters.iter().find(|(name, _)| *name == "model").map(|(_, model)| model);
    let (extensions, headers) = (request.extensions(), request.headers());
    let caller = domain.authorize(extensions, headers, api, request.uri().path(), model)?;
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

/// Returns the route of a path that answers GET and HEAD.
fn get_only<H: Handler<T, Arc<Domain>>, T: 'static>(handler: H) -> MethodRouter<Arc<Domain>> {
    get(handler).fallback(|uri: Uri| async move { wrong_method(&uri, "GET") })
}

/// Returns the route of a path that answers GET and HEAD with a description of a version.
fn describe(document: fn(&Resolved) -> Value) -> MethodRouter<Arc<Domain>> {
    get_only(move |State(domain): State<Arc<Domain>>, target: Target| async move {
        let version = domain.host(&target.model)?.resolve(&target.selector)?;
        Ok::<_, ServeError>(ok(&document(&version)))
    })
}

/// Returns the route of a path that answers POST.
fn post_only<H: Handler<T, Arc<Domain>>, T: 'static>(handler: H) -> MethodRouter<Arc<Domain>> {
    post(handler).fallback(|uri: Uri| async move { wrong_method(&uri, "POST") })
}

fn wrong_method(uri: &Uri, allowed: &'static str) -> ServeError {
    ServeError::WrongMethod { path: uri.path().to_owned(), allowed }
}

async fn refuse_path(uri: Uri) -> ServeError {
    ServeError::unknown_path(uri.path())
}

/// Runs a handler in its span, and counts its request as open until it ends or the client leaves.
async fn observe(domain: &Domain, span: Span, answer: impl Future<Output = Response>) -> Response {
    let _open = domain.metrics().enter_request();
    let response = answer.instrument(span.clone()).await;
    span.record("status", response.status().as_u16());
    response
}

/// Runs a request that does not ask for scores through [`observe`]. The span has the name of the
/// method, because a client could invent any number of paths.
async fn observe_plain(
    State(domain): State<Arc<Domain>>,
    request: Request,
    next: Next,
) -> Response {
    let span = request_span(format_args!("{}", request.method()), request.headers());
    observe(&domain, span, next.run(request)).await
}

async fn get_live() -> Response {
    ok(&json!({ "live": true }))
}

async fn get_ready(State(domain): State<Arc<Domain>>) -> Response {
    let (is_ready, body) = meta::ready(&domain);
    let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    respond::json(status, &body)
}

async fn get_metrics(State(domain): State<Arc<Domain>>) -> Result<Response> {
    let text = domain.metrics_text()?;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

async fn get_openapi(
    State(domain): State<Arc<Domain>>,
    Extension(documents): Extension<Arc<Documents>>,
    Extension(caller): Extension<Arc<Principal>>,
) -> Result<Response> {
    let document = documents.document(&domain, &caller.models).await?;
    Ok(respond::json_bytes(StatusCode::OK, document))
}

async fn get_server_metadata() -> Response {
    ok(&meta::server())
}

async fn get_all_statistics(
    State(domain): State<Arc<Domain>>,
    Extension(caller): Extension<Arc<Principal>>,
) -> Result<Response> {
    let mut all = Vec::new();
    for host in domain.hosts().iter().filter(|host| caller.models.contains(host.name())) {
        all.extend(meta::statistics(host, &Selector::Default)?);
    }
    Ok(ok(&json!({ "model_stats": all })))
}

async fn get_statistics(State(domain): State<Arc<Domain>>, target: Target) -> Result<Response> {
    let statistics = meta::statistics(&domain.host(&target.model)?, &target.selector)?;
    Ok(ok(&json!({ "model_stats": statistics })))
}

/// Answers the paths of TF-Serving: POST to a path that ends with a verb, and GET to a path without
/// a verb.
async fn answer_tf(
    State(domain): State<Arc<Domain>>,
    TfTarget { target, verb }: TfTarget,
    request: Request,
) -> Response {
    match (verb, request.method()) {
        (Some(verb), &Method::POST) => scoring::answer(&domain, target, verb, request).await,
        (None, &Method::GET | &Method::HEAD) => {
            let span = request_span(format_args!("{}", request.method()), request.headers());
            let (extensions, headers) = (request.extensions(), request.headers());
            let path = request.uri().path();
            let model = Some(target.model.as_str());
            let caller = domain.authorize(extensions, headers, Api::Meta, path, model);
            let answer = async { caller.and_then(|_| tf_status(&domain, &target)).into_response() };
            observe(&domain, span, answer).await
        }
        (Some(_), _) => wrong_method(request.uri(), "POST").into_response(),
        (None, _) => wrong_method(request.uri(), "GET").into_response(),
    }
}

fn tf_status(domain: &Domain, target: &Target) -> Result<Response> {
    Ok(ok(&meta::tf_status(&domain.host(&target.model)?, &target.selector)?))
}

fn ok(body: &Value) -> Response {
    respond::json(StatusCode::OK, body)
}

#[cfg(test)]
mod tests;
