//! The OpenAPI document of a server: its paths, the models that it serves now, and their inputs.
//!
//! The document is made when it is requested first, and again when the open versions have changed,
//! outside of the network's threads. The part that does not depend on a model is in
//! `template.json`, and so are the calls that score. The document lists these calls for each model,
//! because the inputs of the model define the body.
//!
//! A schema cannot require that several lists have the same length. Where a protocol needs that,
//! the document has the forms for one, two and three rows, and its texts state that any number of
//! rows is accepted.

mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use zillion_registry::VersionId;
use zillion_scorer::Servable;

use self::requests::Inputs;
use super::respond::to_bytes;
use crate::domain::Domain;
use crate::error::{Result, ServeError};
use crate::host::OpenVersions;

/// The parts of the document that do not depend on the models of the server.
#[derive(Debug, Default, Deserialize)]
struct Template {
    document: Value,
    scoring: Vec<Call>,
}

/// A call that scores rows, which the document lists for each model.
#[derive(Debug, Deserialize)]
struct Call {
    /// The path before the name of the model.
    models: String,
    /// The end of the path: the verb behind its separator.
    verb: String,
    /// The name of the schema of the body.
    body: String,
    /// The operation without its id, parameters and body.
    operation: Value,
}

/// The models of a server by name, each with its open versions.
type Models = Vec<(String, Arc<OpenVersions>)>;

/// The number of documents that are kept: one for each set of models that callers may see.
const KEPT: usize = 8;

/// The last documents, each with the open versions that it describes.
#[derive(Debug)]
pub(super) struct Documents {
    last: Mutex<VecDeque<(Vec<Described>, Bytes)>>,
    /// The semaphore that lets one request at a time make a document.
    turn: Semaphore,
}

/// The open versions of a model that a document describes.
#[derive(Debug)]
struct Described {
    model: String,
    current: Option<VersionId>,
    labels: BTreeMap<String, VersionId>,
    /// The versions, which this list does not keep open.
    versions: Vec<Weak<Servable>>,
}

impl Described {
    fn new(model: &str, open: &OpenVersions) -> Self {
        let versions = open.versions.values().map(Arc::downgrade).collect();
        let (model, labels) = (model.to_owned(), open.labels.clone());
        Self { model, current: open.current, labels, versions }
    }

    fn is_of(&self, model: &str, open: &OpenVersions) -> bool {
        let is_same = |(a, b): (&Weak<Servable>, &Arc<Servable>)| a.as_ptr() == Arc::as_ptr(b);
        self.model == model
            && self.current == open.current
            && self.labels == open.labels
            && self.versions.len() == open.versions.len()
            && self.versions.iter().zip(open.versions.values()).all(is_same)
    }
}

impl Documents {
    /// Creates the documents of a server, of which none is made yet.
    pub(super) fn new() -> Self {
        Self { last: Mutex::default(), turn: Semaphore::new(1) }
    }

    /// Returns the document of the open versions of the models that a caller may use. A document is
    /// returned again if they have not changed.
    ///
    /// # Errors
    /// Returns an error if the document cannot be made, which is a bug.
    pub(super) async fn document(
        self: &Arc<Self>,
        domain: &Domain,
        seen: &zillion_access::Models,
    ) -> Result<Bytes> {
        let has_control = domain.has_model_control();
        let hosts = domain.hosts();
        let models = hosts.iter().map(|host| (host.name().to_owned(), host.open()));
        let models: Models = models.filter(|(name, _)| seen.contains(name)).collect();
        if let Some(document) = self.find(&models) {
            return Ok(document);
        }
        let failed = |what: String| ServeError::Internal(what);
        let _turn = self.turn.acquire().await.map_err(|e| failed(e.to_string()))?;
        // Another request may have made it meanwhile.
        if let Some(document) = self.find(&models) {
            return Ok(document);
        }
        let documents = self.clone();
        let made = tokio::task::spawn_blocking(move || documents.make(&models, has_control));
        made.await.map_err(|e| failed(format!("the document cannot be made: {e}")))?
    }

    /// Returns the kept document that describes these versions.
    fn find(&self, models: &Models) -> Option<Bytes> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |(described, (model, open)): (&Described, &(String, Arc<OpenVersions>))| {
            described.is_of(model, open)
        };
        let is_all = |described: &[Described]| {
            described.len() == models.len() && described.iter().zip(models).all(is_same)
        };
        let found = last.iter().find(|(described, _)| is_all(described));
        found.map(|(_, document)| document.clone())
    }

    /// Makes the document of these versions, and keeps it.
    fn make(&self, models: &Models, has_control: bool) -> Result<Bytes> {
        let named: Vec<_> =
            models.iter().map(|(name, open)| (name.as_str(), open.clone())).collect();
        let document = Bytes::from(to_bytes(&fill_template(&named, has_control))?);
        let described = models.iter().map(|(name, open)| Described::new(name, open)).collect();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.truncate(KEPT - 1);
        last.push_front((described, document.clone()));
        Ok(document)
    }
}

/// Returns the document of a server with these models.
fn fill_template(models: &[(&str, Arc<OpenVersions>)], has_control: bool) -> Value {
    // The file is part of the program, and a test reads it.
    let template: Template =
        serde_json::from_str(include_str!("openapi/template.json")).unwrap_or_default();
    let mut document = template.document;
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let versions = models.iter().flat_map(|(_, open)| open.versions.keys().copied());
    let labels = models.iter().flat_map(|(_, open)| open.labels.keys().map(String::as_str));
    let parameters = [
        ("{model}", model_parameter(models.iter().map(|(name, _)| *name))),
        ("{version}", version_parameter(versions)),
        ("{label}", label_parameter(labels)),
    ];
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        let named: Vec<&Value> =
            parameters.iter().filter(|(name, _)| path.contains(name)).map(|(_, p)| p).collect();
        match item.get_mut("get") {
            Some(operation) if !named.is_empty() => operation["parameters"] = json!(named),
            _ => {}
        }
    }
    for path in ["/v2/repository/models/{model}/load", "/v2/repository/models/{model}/unload"] {
        let operation = &mut document["paths"][path]["post"];
        if has_control {
            remove_keys(operation, &["description"]);
            remove_keys(&mut operation["responses"], &["403"]);
        } else {
            // The server refuses every request.
            remove_keys(&mut operation["responses"], &["200", "404"]);
        }
    }
    for (model, open) in models {
        add_scoring(&mut document, &template.scoring, model, open);
    }
    document
}

/// Adds the paths that score rows by a model.
fn add_scoring(document: &mut Value, calls: &[Call], model: &str, open: &OpenVersions) {
    let current = open.current.and_then(|current| open.versions.get(&current));
    let inputs = current.map(|servable| Inputs::of(servable.encoder()));
    // A version with other inputs takes other bodies than this document describes.
    let is_alike = |servable: &&Arc<Servable>| {
        inputs.as_ref().is_some_and(|inputs| *inputs == Inputs::of(servable.encoder()))
    };
    let versions: Vec<VersionId> =
        open.versions.values().filter(is_alike).map(|servable| servable.version()).collect();
    let labels = open.labels.iter().filter(|(_, version)| versions.contains(version));
    let labels = label_parameter(labels.map(|(label, _)| label.as_str()));
    let forms = [
        ("", "", Vec::new()),
        ("/labels/{label}", "OfLabel", vec![labels]),
        ("/versions/{version}", "OfVersion", vec![version_parameter(versions.into_iter())]),
    ];
    for Call { models, verb, body, operation } in calls {
        if verb == ":classify" && current.is_some_and(|servable| !servable.has_probabilities()) {
            continue;
        }
        let has_classes = current.is_some_and(|servable| servable.classes().is_some());
        if has_classes && (verb == ":regress" || verb == ":rank") {
            continue;
        }
        if verb == ":retrieve" && current.is_some_and(|s| s.retrievable().is_none()) {
            continue;
        }
        let schema = format!("{model}.{body}");
        document["components"]["schemas"][&schema] = match (&inputs, current) {
            (Some(inputs), Some(servable)) => inputs.request(body, servable),
            // The inputs of a model that is not loaded are unknown.
            _ => json!({ "type": "object" }),
        };
        for (path, suffix, parameters) in &forms {
            // The v2 protocol has no labels.
            if verb == "/infer" && *suffix == "OfLabel" {
                continue;
            }
            let mut operation = operation.clone();
            let verb_name = verb.trim_start_matches([':', '/']);
            operation["operationId"] = format!("{verb_name}_{model}{suffix}").into();
            operation["parameters"] = json!(parameters);
            let schema = json!({ "$ref": format!("#/components/schemas/{schema}") });
            operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
            let path = format!("{models}/{model}{path}{verb}");
            document["paths"][path] = json!({ "post": operation });
        }
    }
}

fn model_parameter<'a>(names: impl Iterator<Item = &'a str>) -> Value {
    let any = json!({ "type": "string", "minLength": 1 });
    parameter("model", "The name of a model.", names, any)
}

fn version_parameter(versions: impl Iterator<Item = VersionId>) -> Value {
    let any = json!({ "type": "integer", "minimum": 0 });
    parameter("version", "The number of a loaded version.", versions.map(|id| id.0), any)
}

fn label_parameter<'a>(labels: impl Iterator<Item = &'a str>) -> Value {
    let any = json!({ "type": "string", "minLength": 1 });
    parameter("label", "The name of a pointer, such as `stable` or `canary`.", labels, any)
}

/// Describes a parameter of a path that is one of `values`. If there are no values, the parameter
/// fits the schema `any`.
fn parameter<T: Ord + Serialize>(
    name: &str,
    description: &str,
    values: impl Iterator<Item = T>,
    any: Value,
) -> Value {
    let values: BTreeSet<T> = values.collect();
    let schema =
        if values.is_empty() { any } else { json!({ "type": any["type"], "enum": values }) };
    json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
}

/// Removes keys from an object.
fn remove_keys(object: &mut Value, keys: &[&str]) {
    if let Some(object) = object.as_object_mut() {
        object.retain(|key, _| !keys.contains(&key.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_of_the_document_exists() {
        let document = fill_template(&[("m", Arc::default())], false);
        let mut references = Vec::new();
        collect(&document, &mut references);
        assert!(references.len() > 100, "{references:?}");
        for reference in references {
            let pointer = reference.trim_start_matches('#');
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    #[test]
    fn a_document_is_made_again_when_the_versions_change() {
        let documents = Documents::new();
        let of = |open: OpenVersions| vec![("m".to_owned(), Arc::new(open))];
        let labelled = |label: &str| OpenVersions {
            labels: BTreeMap::from([(label.to_owned(), VersionId(3))]),
            ..OpenVersions::default()
        };
        assert_eq!(documents.find(&of(labelled("a"))), None);
        let first = documents.make(&of(labelled("a")), false).unwrap();
        // A problem publishes the same versions in a list of their own.
        let problem = OpenVersions { problem: Some("x".to_owned()), ..labelled("a") };
        let again = documents.find(&of(problem)).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (first.as_ptr(), first.len()));
        let renamed = vec![("n".to_owned(), Arc::new(labelled("a")))];
        let newer = OpenVersions { current: Some(VersionId(4)), ..labelled("a") };
        for changed in [of(labelled("b")), of(newer), renamed, Vec::new()] {
            assert_eq!(documents.find(&changed), None, "{changed:?}");
        }
        let second = documents.make(&of(labelled("b")), false).unwrap();
        assert_ne!(first, second);
        assert_eq!(documents.find(&of(labelled("b"))), Some(second));
        // Callers that see other models do not make each other's documents again.
        assert_eq!(documents.find(&of(labelled("a"))), Some(first));
        for label in 0..KEPT {
            documents.make(&of(labelled(&label.to_string())), false).unwrap();
        }
        assert_eq!(documents.find(&of(labelled("a"))), None);
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
