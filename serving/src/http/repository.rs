//! Triton's model repository over HTTP: the models of the registry, and the models that are served.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::meta;
use super::parameters::Parameters;
use crate::access::Actor;
use crate::domain::Domain;
use crate::error::{Result, ServeError};

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
pub(super) async fn index(domain: &Arc<Domain>, body: &[u8]) -> Result<Value> {
    let request: IndexRequest = read(body, "an index request")?;
    let indexed = domain.index_for_client().await?;
    Ok(meta::index(&indexed, request.ready))
}

/// Answers `POST /v2/repository/models/{m}/load` after the load.
pub(super) async fn load(
    domain: &Arc<Domain>,
    actor: &Actor,
    model: &str,
    body: &[u8],
) -> Result<Value> {
    let request: ControlRequest = read(body, "a load request")?;
    // A client that may not load models is told that first.
    if domain.has_model_control() {
        request.parameters.check_load()?;
    }
    domain.load_for_client(actor, model).await?;
    Ok(json!({}))
}

/// Answers `POST /v2/repository/models/{m}/unload` after the unload.
pub(super) async fn unload(
    domain: &Arc<Domain>,
    actor: &Actor,
    model: &str,
    body: &[u8],
) -> Result<Value> {
    let request: ControlRequest = read(body, "an unload request")?;
    request.parameters.flag("unload_dependents")?;
    domain.unload_for_client(actor, model).await?;
    Ok(json!({}))
}

fn read<T: Default + for<'de> Deserialize<'de>>(body: &[u8], what: &str) -> Result<T> {
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body)
        .map_err(|e| ServeError::Malformed(format!("the body is not {what}: {e}")))
}
