//! Triton's model repository over HTTP: the models of the registry, and the models that are served.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use zillion_access::Principal;

use super::parameters::Parameters;
use super::route::Target;
use super::{body, meta, ok};
use crate::access::{Actor, find_holder};
use crate::domain::Domain;
use crate::error::{Result, ServeError};

/// The largest size in bytes of the body of a request. The network's thread reads these bodies.
const BODY_BYTES: usize = 64 << 10;

/// The body of an index request, which may be empty.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexRequest {
    /// Whether the index has only models that can answer.
    #[serde(default)]
    ready: bool,
}

/// The body of a load or unload request, which may be empty.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlRequest {
    #[serde(default)]
    parameters: Parameters,
}

/// Answers `POST /v2/repository/index` with the models.
pub(super) async fn index(
    State(domain): State<Arc<Domain>>,
    Extension(caller): Extension<Arc<Principal>>,
    request: Request,
) -> Result<Response> {
    let request: IndexRequest = read(&domain, request, "an index request").await?;
    let mut indexed = domain.index_for_client().await?;
    indexed.retain(|model| caller.models.contains(&model.name));
    Ok(ok(&meta::index(&indexed, request.ready)))
}

/// Answers `POST /v2/repository/models/{m}/load` after the load.
pub(super) async fn load(
    State(domain): State<Arc<Domain>>,
    target: Target,
    request: Request,
) -> Result<Response> {
    let actor = Actor::read(request.extensions())?;
    let request: ControlRequest = read(&domain, request, "a load request").await?;
    // A client that may not load models gets that error first.
    if domain.has_model_control() {
        request.parameters.check_load()?;
    }
    domain.load_for_client(&actor, &target.model).await?;
    Ok(ok(&json!({})))
}

/// Answers `POST /v2/repository/models/{m}/unload` after the unload.
pub(super) async fn unload(
    State(domain): State<Arc<Domain>>,
    target: Target,
    request: Request,
) -> Result<Response> {
    let actor = Actor::read(request.extensions())?;
    let request: ControlRequest = read(&domain, request, "an unload request").await?;
    request.parameters.flag("unload_dependents")?;
    domain.unload_for_client(&actor, &target.model).await?;
    Ok(ok(&json!({})))
}

/// Receives and reads the body of a request.
async fn read<T: Default + DeserializeOwned>(
    domain: &Domain,
    request: Request,
    what: &str,
) -> Result<T> {
    let mut limits = domain.limits();
    limits.body_bytes = limits.body_bytes.min(BODY_BYTES);
    let mut held = domain.hold_bytes(find_holder(request.extensions(), None)?);
    let body = body::receive(&limits, &mut held, request).await?.decode(&limits)?;
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(&body).map_err(|e| {
        ServeError::Malformed(format!(
            "the body is not {what} ({e}); send the form of `/openapi.json`"
        ))
    })
}
