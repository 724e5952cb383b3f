//! The OpenAPI document of a server: its paths, the models that it serves now, and their inputs.
//!
//! The document is made when it is requested. The part that does not depend on a model is in
//! `components.json`. The paths that score are listed for each model, because the inputs of the
//! model define the body.
//!
//! A schema cannot require that several lists have the same length. Where a protocol needs that,
//! the document has the forms for one, two and three rows, and its texts state that any number of
//! rows is accepted.

mod requests;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use zillion_registry::VersionId;
use zillion_scorer::Servable;

use self::requests::{Form, Inputs};
use crate::domain::Domain;
use crate::host::{Host, OpenVersions};

const ABOUT: &str = "Scores of published versions over the Open Inference Protocol v2 with Triton's \
extensions, TF-Serving's REST API, and ranking of candidates. A body may be compressed with gzip or deflate \
(`Content-Encoding`), and its media type does not matter. A path answers 405 to other methods than its own, \
and GET paths answer HEAD too. Unknown paths are answered with 404.";

const BINARY: &str = "Binary tensors (Triton's extension): an input may have \
`parameters: {\"binary_data_size\": n}` instead of `data`. Its n bytes then follow the JSON, in the order of \
the inputs, and the header `Inference-Header-Content-Length` is the number of bytes of the JSON. Elements \
are little-endian, and a text is its length in four bytes followed by its UTF-8. An output is binary if its \
parameter `binary_data`, or the parameter `binary_data_output` of the request, is true. \
The parameter `timeout` is the number of microseconds for which the request may wait. `priority` other \
than 0, sequences, shared memory and `classification` are refused by name, and other parameters are \
ignored. `model_name` and `model_version` may repeat the path. A feature with lists takes its values flat \
and the number of values of each row in `<feature>__lengths`, or rows of equal width by its shape. \
Any number of rows up to the limit is accepted, and inputs may come in any order. The integer types INT8 \
to UINT64, FP64 beside FP32, and, as binary data, FP16 and BF16 are accepted wherever the values fit.";

const ROWS: &str = "An input is one value, or a list of values if the feature has lists. `null` and the \
empty text are missing values. A text may be given as `{\"b64\": …}`, the base64 of its UTF-8.";

/// The calls that score: the verb behind the model's name, the kind of the body, the group, a
/// summary, the name of the answer's schema, and a description.
const SCORING_CALLS: [(&str, Form, &str, &str, &str, &str); 5] = [
    ("/infer", Form::Infer, "v2", "Scores of rows given as tensors", "InferResponse", BINARY),
    (":predict", Form::Predict, "v1", "Scores of rows, or of columns", "PredictResponse", ROWS),
    (
        ":classify",
        Form::Examples,
        "v1",
        "The classes of the first label for examples",
        "ClassifyResponse",
        ROWS,
    ),
    (
        ":regress",
        Form::Examples,
        "v1",
        "The probability of the first label for examples",
        "RegressResponse",
        ROWS,
    ),
    (":rank", Form::Rank, "rank", "Scores of candidates in one context", "RankResponse", ROWS),
];

/// Returns the OpenAPI document.
pub(super) fn document(domain: &Domain) -> Value {
    let hosts = domain.hosts();
    let models: Vec<(&Arc<Host>, Arc<OpenVersions>)> =
        hosts.iter().map(|host| (host, host.open())).collect();
    let mut document = Document::new(&models);
    document.server();
    document.models();
    document.repository(domain.has_model_control());
    for (host, open) in &models {
        document.scoring(host.name(), open);
    }
    document.finish()
}

struct Document {
    paths: Map<String, Value>,
    components: Value,
    model: Value,
    version: Value,
    label: Value,
}

/// A form of a path that names a version, with the parameters of the path.
struct Which {
    path: &'static str,
    suffix: &'static str,
    parameters: Vec<Value>,
}

impl Document {
    fn new(models: &[(&Arc<Host>, Arc<OpenVersions>)]) -> Self {
        let names: Vec<&str> = models.iter().map(|(host, _)| host.name()).collect();
        let versions = models.iter().flat_map(|(_, open)| open.versions.keys().copied()).collect();
        let labels = models.iter().flat_map(|(_, open)| open.labels.keys().cloned()).collect();
        Self {
            paths: Map::new(),
            // The file is part of the program, and a test reads it.
            components: serde_json::from_str(include_str!("openapi/components.json"))
                .unwrap_or_default(),
            model: parameter("model", "The name of a model.", one_of(names)),
            version: version_parameter(versions),
            label: label_parameter(labels),
        }
    }

    fn finish(self) -> Value {
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Zillion serving",
                "description": ABOUT,
                "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "tags": [
                { "name": "v2", "description": "The Open Inference Protocol." },
                { "name": "v1", "description": "TF-Serving's REST API." },
                { "name": "rank", "description": "Ranking of many candidates in one context." },
                { "name": "operations", "description": "The operation of the server." },
            ],
            "paths": self.paths,
            "components": self.components,
        })
    }

    /// Adds the paths of the server.
    fn server(&mut self) {
        let ready = |id: &str| {
            let responses =
                json!({ "200": ok("The server is ready.", "Ready"), "503": response("NotReady") });
            operation(id, "operations", "Whether every model has a version that answers", responses)
        };
        let live = |id: &str| get(id, "operations", "Whether the process runs", "Live", &[]);
        self.get(
            "/v2",
            get(
                "serverMetadata",
                "v2",
                "The server's name, version and extensions",
                "ServerMetadata",
                &[],
            ),
        );
        self.get("/v2/health/live", live("serverLive"));
        self.get("/healthz", live("healthz"));
        self.get("/v2/health/ready", ready("serverReady"));
        self.get("/readyz", ready("readyz"));
        let text = json!({
            "200": {
                "description": "Metrics in the text format of Prometheus.",
                "content": { "text/plain": { "schema": { "type": "string" } } },
            },
            "500": response("Internal"),
        });
        self.get("/metrics", operation("metrics", "operations", "The metrics of the server", text));
        self.get("/openapi.json", get("openApi", "operations", "This document", "OpenApi", &[]));
    }

    /// Adds the paths of a model that take no body.
    fn models(&mut self) {
        let errors = ["404 NotFound", "503 Unavailable"];
        let versions = |document: &Self| {
            [
                Which { path: "", suffix: "", parameters: vec![document.model.clone()] },
                Which {
                    path: "/versions/{version}",
                    suffix: "OfVersion",
                    parameters: vec![document.model.clone(), document.version.clone()],
                },
            ]
        };
        for (verb, id, summary, schema) in [
            ("", "modelMetadata", "Inputs and outputs of a model", "ModelMetadata"),
            ("/ready", "modelReady", "Whether the version answers", "Ready"),
            (
                "/config",
                "modelConfig",
                "The configuration of a model, in Triton's form",
                "ModelConfig",
            ),
            (
                "/stats",
                "modelStatistics",
                "The counters and times of requests to the loaded versions of a model",
                "Statistics",
            ),
        ] {
            for which in versions(self) {
                let mut operation =
                    get(&format!("{id}{}", which.suffix), "v2", summary, schema, &errors);
                operation["parameters"] = which.parameters.into();
                self.get(&format!("/v2/models/{{model}}{}{verb}", which.path), operation);
            }
        }
        self.get(
            "/v2/models/stats",
            get(
                "statistics",
                "v2",
                "The counters and times of requests to all models",
                "Statistics",
                &[],
            ),
        );
        let labels = Which {
            path: "/labels/{label}",
            suffix: "OfLabel",
            parameters: vec![self.model.clone(), self.label.clone()],
        };
        for which in versions(self).into_iter().chain([labels]) {
            for (verb, id, summary, schema) in [
                ("", "modelStatus", "The loaded versions of a model", "ModelStatus"),
                ("/metadata", "tfMetadata", "The model's signature", "TfMetadata"),
            ] {
                let mut operation =
                    get(&format!("{id}{}", which.suffix), "v1", summary, schema, &errors);
                operation["parameters"] = which.parameters.clone().into();
                self.get(&format!("/v1/models/{{model}}{}{verb}", which.path), operation);
            }
        }
    }

    fn repository(&mut self, has_control: bool) {
        let errors = [
            "400 Malformed",
            "408 SlowBody",
            "413 TooLarge",
            "415 Encoding",
            "500 Internal",
            "503 Unavailable",
        ];
        let body = |schema: &str| json!({ "required": false, "content": { "application/json": { "schema": reference(schema) } } });
        let mut index = get(
            "repositoryIndex",
            "v2",
            "The models of the registry and of this server",
            "Index",
            &errors,
        );
        index["requestBody"] = body("IndexRequest");
        self.post("/v2/repository/index", index);
        for (verb, summary) in
            [("load", "Load a model of the registry"), ("unload", "Unload a model")]
        {
            let more = if has_control { "404 NotFound" } else { "403 Forbidden" };
            let errors: Vec<&str> = errors.iter().copied().chain([more]).collect();
            let mut operation = get(&format!("{verb}Model"), "v2", summary, "Done", &errors);
            if !has_control {
                operation["description"] =
                    "This server refuses it, because the setting `serve.model_control` is off."
                        .into();
                // The server never answers with 200 here.
                if let Some(responses) = operation["responses"].as_object_mut() {
                    responses.remove("200");
                }
            }
            operation["requestBody"] = body("ControlRequest");
            operation["parameters"] = json!([parameter(
                "model",
                "The name of a model of the registry.",
                json!({ "type": "string", "pattern": "^[A-Za-z0-9_]{1,64}$" })
            )]);
            self.post(&format!("/v2/repository/models/{{model}}/{verb}"), operation);
        }
    }

    /// Adds the paths that score rows by a model.
    fn scoring(&mut self, model: &str, open: &OpenVersions) {
        let current = open.current.and_then(|current| open.versions.get(&current));
        let inputs = current.map(|servable| Inputs::of(servable.encoder()));
        // A version with other inputs takes other bodies than this document describes.
        let is_alike = |servable: &&Arc<Servable>| {
            let own = Inputs::of(servable.encoder());
            inputs.as_ref().is_some_and(|inputs| *inputs == own)
        };
        let versions: Vec<VersionId> =
            open.versions.values().filter(is_alike).map(|servable| servable.version()).collect();
        let labels: Vec<String> = open
            .labels
            .iter()
            .filter(|(_, version)| versions.contains(version))
            .map(|(label, _)| label.clone())
            .collect();
        let whiches = || {
            [
                Which { path: "", suffix: "", parameters: Vec::new() },
                Which {
                    path: "/versions/{version}",
                    suffix: "OfVersion",
                    parameters: vec![version_parameter(versions.clone())],
                },
                Which {
                    path: "/labels/{label}",
                    suffix: "OfLabel",
                    parameters: vec![label_parameter(labels.clone())],
                },
            ]
        };
        let has_classes = current.is_none_or(|servable| servable.has_probabilities());
        let request = |form: Form| match (&inputs, current) {
            (Some(inputs), Some(servable)) => inputs.request(form, servable),
            // The inputs of a model that is not loaded are unknown.
            _ => json!({ "type": "object" }),
        };
        for (verb, form, tag, summary, answer, about) in SCORING_CALLS {
            if verb == ":classify" && !has_classes {
                continue;
            }
            let schema = format!("{model}.{}", form.name());
            self.components["schemas"][&schema] = request(form);
            for which in whiches() {
                if form == Form::Infer && which.suffix == "OfLabel" {
                    continue;
                }
                let id = format!("{}_{model}{}", verb.trim_start_matches([':', '/']), which.suffix);
                let mut operation = get(&id, tag, summary, answer, &SCORING);
                operation["description"] = about.into();
                operation["parameters"] = which.parameters.into();
                operation["requestBody"] = json!({
                    "required": true,
                    "content": { "application/json": { "schema": reference(&schema) } },
                });
                if form == Form::Infer {
                    let answer = &mut operation["responses"]["200"];
                    answer["content"]["application/octet-stream"] = json!({});
                    answer["headers"] = json!({ "Inference-Header-Content-Length": {
                        "description": "The number of bytes of the JSON, if binary tensors follow it.",
                        "schema": { "type": "integer", "minimum": 0 },
                    } });
                }
                let version = if tag == "v2" { "v2" } else { "v1" };
                self.post(&format!("/{version}/models/{model}{}{verb}", which.path), operation);
            }
        }
    }

    fn get(&mut self, path: &str, operation: Value) {
        self.paths.insert(path.to_owned(), json!({ "get": operation }));
    }

    fn post(&mut self, path: &str, operation: Value) {
        self.paths.insert(path.to_owned(), json!({ "post": operation }));
    }
}

/// The errors of a request for scores.
const SCORING: [&str; 9] = [
    "400 Malformed",
    "404 NotFound",
    "408 SlowBody",
    "413 TooLarge",
    "415 Encoding",
    "429 Overloaded",
    "500 Internal",
    "503 Unavailable",
    "504 Deadline",
];

/// Describes an operation that answers with JSON, or with one of `errors`, each a status and the
/// name of the response.
fn get(id: &str, tag: &str, summary: &str, schema: &str, errors: &[&str]) -> Value {
    let mut responses = json!({ "200": ok("Done.", schema) });
    for error in errors {
        let (status, name) = error.split_once(' ').unwrap_or((error, "Internal"));
        responses[status] = response(name);
    }
    operation(id, tag, summary, responses)
}

fn operation(id: &str, tag: &str, summary: &str, mut responses: Value) -> Value {
    responses["405"] = response("WrongMethod");
    json!({ "operationId": id, "summary": summary, "tags": [tag], "responses": responses })
}

fn ok(description: &str, schema: &str) -> Value {
    json!({
        "description": description,
        "content": { "application/json": { "schema": reference(schema) } },
    })
}

fn response(name: &str) -> Value {
    json!({ "$ref": format!("#/components/responses/{name}") })
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn parameter(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
}

fn version_parameter(versions: Vec<VersionId>) -> Value {
    let mut numbers: Vec<u64> = versions.into_iter().map(|version| version.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let schema = match numbers.is_empty() {
        true => json!({ "type": "integer", "minimum": 0 }),
        false => json!({ "type": "integer", "enum": numbers }),
    };
    parameter("version", "The number of a loaded version.", schema)
}

fn label_parameter(mut labels: Vec<String>) -> Value {
    labels.sort_unstable();
    labels.dedup();
    parameter("label", "The name of a pointer, such as `stable` or `canary`.", one_of(labels))
}

fn one_of<T: Into<Value>>(names: Vec<T>) -> Value {
    match names.is_empty() {
        true => json!({ "type": "string", "minLength": 1 }),
        false => {
            json!({ "type": "string", "enum": names.into_iter().map(Into::into).collect::<Vec<Value>>() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_of_the_document_exists() {
        let mut document = Document::new(&[]);
        document.server();
        document.models();
        document.repository(false);
        document.scoring("m", &OpenVersions::default());
        let document = document.finish();
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(references.len() > 100, "{references:?}");
        for reference in references {
            let pointer = reference.trim_start_matches('#');
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    fn collect(value: &Value, references: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    match value.as_str() {
                        Some(text) if key == "$ref" => references.push(text.to_owned()),
                        _ => collect(value, references),
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|value| collect(value, references)),
            _ => {}
        }
    }
}
