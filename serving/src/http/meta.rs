//! The descriptions of the server and of its models: metadata, configuration, statistics and
//! status.

use std::sync::Arc;

use serde_json::{Value, json};
use zillion_registry::VersionId;

use super::rows::SIGNATURE;
use crate::describe::{self, Described, EXTENSIONS, unique_inputs};
use crate::domain::Domain;
use crate::error::Result;
use crate::host::{Host, Resolved, Selector};
use crate::repository::Indexed;
use crate::score::{Output, output_names};
use crate::statistics::{Total, Totals};
use crate::tensor::Datatype;

/// Answers `GET /v2` with the server's metadata.
pub(super) fn server() -> Value {
    json!({ "name": "zillion", "version": env!("CARGO_PKG_VERSION"), "extensions": EXTENSIONS })
}

/// Answers `GET /v2/health/ready`. Returns whether the server is ready, and a body with the models
/// that are not, each with a code.
pub(super) fn ready(domain: &Domain) -> (bool, Value) {
    if domain.is_ready() {
        let hosts = domain.hosts();
        let stale: Vec<&str> =
            hosts.iter().filter(|host| host.is_stale()).map(|host| host.name()).collect();
        let mut body = json!({ "ready": true });
        if !stale.is_empty() {
            body["stale"] = stale.into();
        }
        return (true, body);
    }
    let missing = |host: &Arc<Host>| {
        let open = host.open();
        let is_missing = host.is_required() && !host.is_ready();
        let is_stale = open.current.is_some() && host.is_stale();
        // The detail may name folders and buckets. The repository index has it, for operators.
        let reason = || if is_stale { "stale" } else { open.unready_code() };
        is_missing.then(|| json!({ "name": host.name(), "reason": reason() }))
    };
    let models: Vec<Value> = domain.hosts().iter().filter_map(missing).collect();
    let error = match (domain.is_draining(), domain.has_failed_device()) {
        (true, _) => "the server is stopping".to_owned(),
        (false, true) => "the GPU has failed; start the server again".to_owned(),
        (false, false) => format!("{} models have no version that may answer", models.len()),
    };
    (false, json!({ "ready": false, "error": error, "models": models }))
}

/// Answers `GET /v2/models/{m}` with the inputs and outputs.
pub(super) fn v2_model(Resolved { host, servable, .. }: &Resolved) -> Value {
    let tensor = |described: &Described| json!({ "name": described.name, "datatype": described.datatype.name(), "shape": described.shape() });
    let tensors = |all: &[Described]| all.iter().map(tensor).collect::<Vec<_>>();
    json!({
        "name": host.name(),
        "versions": host.open().versions.keys().map(ToString::to_string).collect::<Vec<_>>(),
        "platform": "zillion",
        "inputs": tensors(&describe::inputs(servable)),
        "outputs": tensors(&describe::outputs(servable)),
    })
}

/// Answers `GET /v2/models/{m}/config` with the part of Triton's model configuration that has a
/// meaning here. The first dimension of a tensor is its rows, so that there is no batch dimension.
pub(super) fn config(Resolved { host, servable, .. }: &Resolved) -> Value {
    let tensor = |described: &Described| {
        let name = match described.datatype {
            Datatype::Bytes => "STRING",
            other => other.name(),
        };
        let mut tensor = json!({ "name": described.name, "data_type": format!("TYPE_{name}"), "dims": described.shape() });
        if described.is_optional {
            tensor["optional"] = true.into();
        }
        tensor
    };
    let tensors = |all: &[Described]| all.iter().map(tensor).collect::<Vec<_>>();
    json!({
        "name": host.name(),
        "platform": "zillion",
        "backend": "zillion",
        "version_policy": { "specific": { "versions": [servable.version().0] } },
        "max_batch_size": 0,
        "input": tensors(&describe::inputs(servable)),
        "output": tensors(&describe::outputs(servable)),
    })
}

/// Answers `GET /v2/models/{m}/stats` for one version, or for all loaded versions.
pub(super) fn statistics(host: &Arc<Host>, selector: &Selector) -> Result<Vec<Value>> {
    let open = host.open();
    let only = match selector {
        Selector::Default => None,
        one => Some(host.resolve(one)?.servable.version()),
    };
    let wanted = |version: &VersionId| only.is_none_or(|only| only == *version);
    let of = open.statistics.iter().filter(|(version, _)| wanted(version));
    Ok(of.map(|(version, s)| model_statistics(host.name(), *version, &s.totals())).collect())
}

fn model_statistics(model: &str, version: VersionId, totals: &Totals) -> Value {
    let total = |total: Total| json!({ "count": total.count, "ns": total.nanos });
    json!({
        "name": model,
        "version": version.to_string(),
        "last_inference": totals.last_inference_ms,
        "inference_count": totals.inference_count,
        "execution_count": totals.execution_count,
        "inference_stats": {
            "success": total(totals.success),
            "fail": total(totals.fail),
            "queue": total(totals.queue),
            "compute_input": total(totals.compute_input),
            "compute_infer": total(totals.compute_infer),
            "compute_output": total(totals.compute_output),
            "cache_hit": total(Total::default()),
            "cache_miss": total(Total::default()),
        },
        // A request is a batch of its own, of any size. Counting by size would make a series
        // without end.
        "batch_stats": [],
    })
}

/// Answers `POST /v2/repository/index` with the models.
pub(super) fn index(indexed: &[Indexed], only_ready: bool) -> Value {
    let is_wanted = |one: &&Indexed| !only_ready || one.state == crate::ModelState::Ready;
    let entry = |one: &Indexed| {
        let mut entry =
            json!({ "name": one.name, "state": one.state.name(), "reason": one.reason });
        if let Some(version) = one.version {
            entry["version"] = version.to_string().into();
        }
        entry
    };
    indexed.iter().filter(is_wanted).map(entry).collect()
}

/// Answers `GET /v1/models/{m}` with the loaded versions, the newest first.
pub(super) fn tf_status(host: &Arc<Host>, selector: &Selector) -> Result<Value> {
    let status = |version: &VersionId| {
        json!({
            "version": version.to_string(),
            "state": "AVAILABLE",
            "status": { "error_code": "OK", "error_message": "" },
        })
    };
    let versions: Vec<Value> = match selector {
        Selector::Default => {
            // If no version is loaded, the answer is the reason.
            host.resolve(selector)?;
            host.open().versions.keys().rev().map(status).collect()
        }
        one => vec![status(&host.resolve(one)?.servable.version())],
    };
    Ok(json!({ "model_version_status": versions }))
}

/// Answers `GET /v1/models/{m}/metadata` with the signature.
pub(super) fn tf_metadata(Resolved { host, servable, .. }: &Resolved) -> Value {
    let shape = |rank: usize| {
        let dims = vec![json!({ "size": "-1", "name": "" }); rank];
        json!({ "dim": dims, "unknown_rank": false })
    };
    let mut inputs = serde_json::Map::new();
    for input in unique_inputs(servable.encoder()) {
        let dtype = match describe::datatype(input) {
            Datatype::Int64 => "DT_INT64",
            Datatype::Uint64 => "DT_UINT64",
            Datatype::Bytes => "DT_STRING",
            _ => "DT_FLOAT",
        };
        let shape = shape(if input.is_list { 2 } else { 1 });
        let described = json!({ "dtype": dtype, "tensor_shape": shape, "name": input.name });
        inputs.insert(input.name.clone(), described);
    }
    let mut outputs = serde_json::Map::new();
    for output in output_names(servable).into_iter().filter(|output| output.by_default) {
        let Output { name, classes, .. } = output;
        let mut shape = shape(1);
        if !classes.is_empty() {
            let size = json!({ "size": classes.len().to_string(), "name": "" });
            shape["dim"].as_array_mut().into_iter().for_each(|dims| dims.push(size.clone()));
        }
        let described = json!({ "dtype": "DT_FLOAT", "tensor_shape": shape, "name": name });
        outputs.insert(name, described);
    }
    json!({
        "model_spec": {
            "name": host.name(),
            "signature_name": "",
            "version": servable.version().to_string(),
        },
        "metadata": { "signature_def": { "signature_def": { SIGNATURE: {
            "inputs": inputs,
            "outputs": outputs,
            "method_name": "tensorflow/serving/predict",
        } } } },
    })
}
