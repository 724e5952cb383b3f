//! What a server says of itself and of its models.

use serde::Serialize;
use serde_json::{Value, json};
use zillion_feature::{InputKind, RawType};
use zillion_registry::Servable;

use crate::describe::{self, Described, unique_inputs};
use crate::error::Result;
use crate::host::{Host, Selector};
use crate::score::{Output, output_names};

/// The answer to a question of health.
#[derive(Debug, Serialize)]
pub(super) struct Flag {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) live: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ready: Option<bool>,
}

/// `GET /v2`.
pub(super) fn server() -> Value {
    json!({ "name": "zillion", "version": env!("CARGO_PKG_VERSION"), "extensions": [] })
}

/// `GET /v2/models/{m}`.
pub(super) fn v2_model(host: &Host, servable: &Servable) -> Value {
    let versions: Vec<String> = host.open().versions.keys().map(ToString::to_string).collect();
    let tensor = |described: &Described| json!({ "name": described.name, "datatype": described.datatype.name(), "shape": [-1] });
    let tensors = |all: &[Described]| all.iter().map(tensor).collect::<Vec<_>>();
    json!({
        "name": host.name(),
        "versions": versions,
        "platform": "zillion",
        "inputs": tensors(&describe::inputs(servable)),
        "outputs": tensors(&describe::outputs(servable)),
    })
}

/// `GET /v1/models/{m}`: the versions that are open.
pub(super) fn tf_status(host: &Host, selector: &Selector) -> Result<Value> {
    let status = |version: &zillion_registry::VersionId| {
        json!({
            "version": version.to_string(),
            "state": "AVAILABLE",
            "status": { "error_code": "OK", "error_message": "" },
        })
    };
    let versions: Vec<Value> = match selector {
        Selector::Default => host.open().versions.keys().rev().map(status).collect(),
        one => vec![status(&host.resolve(one)?.version())],
    };
    Ok(json!({ "model_version_status": versions }))
}

/// `GET /v1/models/{m}/metadata`.
pub(super) fn tf_metadata(host: &Host, servable: &Servable) -> Value {
    let any_size = json!({ "dim": [{ "size": "-1", "name": "" }], "unknown_rank": false });
    let mut inputs = serde_json::Map::new();
    for input in unique_inputs(servable) {
        let dtype = match input.kind {
            InputKind::Id(RawType::I64) => "DT_INT64",
            InputKind::Id(RawType::U64) => "DT_UINT64",
            InputKind::Id(RawType::String) => "DT_STRING",
            InputKind::Number => "DT_FLOAT",
        };
        let described = json!({ "dtype": dtype, "tensor_shape": any_size, "name": input.name });
        inputs.insert(input.name.clone(), described);
    }
    let mut outputs = serde_json::Map::new();
    for Output { name, .. } in output_names(servable).into_iter().filter(|o| o.by_default) {
        let described = json!({ "dtype": "DT_FLOAT", "tensor_shape": any_size, "name": name });
        outputs.insert(name, described);
    }
    json!({
        "model_spec": {
            "name": host.name(),
            "signature_name": "",
            "version": servable.version().to_string(),
        },
        "metadata": { "signature_def": { "signature_def": { "serving_default": {
            "inputs": inputs,
            "outputs": outputs,
            "method_name": "tensorflow/serving/predict",
        } } } },
    })
}

/// `GET /openapi.json`: every path of this server.
pub(super) fn openapi() -> Value {
    let text = include_str!("openapi.json");
    // The file is part of the program, and a test reads it.
    serde_json::from_str(text).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_openapi_document_is_json() {
        assert_eq!(openapi()["openapi"], "3.1.0");
    }
}
