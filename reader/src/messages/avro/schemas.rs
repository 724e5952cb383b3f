//! The schemas of Avro messages, and the keys by which messages name them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm};
use serde_json::Value;

use crate::error::{ReaderError, Result};

/// The bytes before the key of a schema in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AvroFraming {
    /// A zero byte and the id of the schema in a registry, 4 bytes in big-endian order.
    Confluent,
    /// The bytes C3 01 and the fingerprint of the schema (CRC-64-AVRO), 8 bytes in little-endian
    /// order.
    SingleObject,
}

/// The schemas with which messages may have been written. Copies share their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvroSchemas {
    framing: AvroFraming,
    texts: Arc<BTreeMap<u64, String>>,
}

impl AvroFraming {
    /// Returns a key as people know it.
    pub(super) fn show(self, key: u64) -> String {
        match self {
            Self::Confluent => format!("with id {key}"),
            Self::SingleObject => format!("with fingerprint {key:016x}"),
        }
    }
}

impl AvroSchemas {
    /// Returns the schemas with their ids, for messages with ids.
    ///
    /// # Errors
    /// Returns an error if a schema is not supported.
    pub fn confluent(schemas: impl IntoIterator<Item = (u32, String)>) -> Result<Self> {
        let mut texts = BTreeMap::new();
        for (id, text) in schemas {
            check(&text).map_err(|problem| refuse(AvroFraming::Confluent, id.into(), problem))?;
            texts.insert(u64::from(id), text);
        }
        Ok(Self { framing: AvroFraming::Confluent, texts: Arc::new(texts) })
    }

    /// Returns the schemas for messages with fingerprints.
    ///
    /// # Errors
    /// Returns an error if a schema is not supported.
    pub fn single_object(schemas: impl IntoIterator<Item = String>) -> Result<Self> {
        let framing = AvroFraming::SingleObject;
        let mut texts = BTreeMap::new();
        for (number, text) in schemas.into_iter().enumerate() {
            let refuse = |problem| {
                ReaderError::setting(format!("schema number {} of Avro", number + 1), problem)
            };
            check(&text).map_err(refuse)?;
            let schema = AvroSchema::new(text.clone());
            match schema.fingerprint(FingerprintAlgorithm::Rabin) {
                Ok(Fingerprint::Rabin(key)) => texts.insert(key, text),
                Ok(other) => return Err(refuse(format!("{other:?} is no fingerprint of Avro"))),
                Err(e) => return Err(refuse(e.to_string())),
            };
        }
        Ok(Self { framing, texts: Arc::new(texts) })
    }

    /// Reads the schemas with their ids from files, for messages with ids.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if a schema is not supported.
    pub fn load_confluent<P: AsRef<Path>>(
        files: impl IntoIterator<Item = (u32, P)>,
    ) -> Result<Self> {
        let texts = files.into_iter().map(|(id, path)| Ok((id, read(path.as_ref())?)));
        Self::confluent(texts.collect::<Result<Vec<_>>>()?)
    }

    /// Reads the schemas from files, for messages with fingerprints.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if a schema is not supported.
    pub fn load_single_object<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Result<Self> {
        let texts = files.into_iter().map(|path| read(path.as_ref()));
        Self::single_object(texts.collect::<Result<Vec<_>>>()?)
    }

    /// Returns no schemas, for messages with ids whose schemas are added when they are seen
    /// ([`MessageDecoder::add_schema`](crate::MessageDecoder::add_schema)).
    pub fn registered() -> Self {
        Self { framing: AvroFraming::Confluent, texts: Arc::default() }
    }

    /// Returns the bytes before the keys of schemas.
    pub fn framing(&self) -> AvroFraming {
        self.framing
    }

    /// Returns the schemas as JSON with their keys: ids or fingerprints.
    pub fn texts(&self) -> impl Iterator<Item = (u64, &str)> {
        self.texts.iter().map(|(key, text)| (*key, text.as_str()))
    }

    /// Returns the error for a schema that is not supported.
    pub(super) fn refuse(&self, key: u64, problem: String) -> ReaderError {
        refuse(self.framing, key, problem)
    }
}

fn refuse(framing: AvroFraming, key: u64, problem: String) -> ReaderError {
    ReaderError::setting(format!("the schema of Avro {}", framing.show(key)), problem)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(ReaderError::io("read the schema", path))
}

/// Divides a message into the key of its schema and its record.
///
/// # Errors
/// Returns the problem if the message begins otherwise.
pub(super) fn parse_frame(
    framing: AvroFraming,
    message: &[u8],
) -> std::result::Result<(u64, &[u8]), String> {
    let key = match framing {
        AvroFraming::Confluent => message
            .strip_prefix(&[0])
            .and_then(|rest| rest.split_first_chunk::<4>())
            .map(|(id, body)| (u64::from(u32::from_be_bytes(*id)), body)),
        AvroFraming::SingleObject => message
            .strip_prefix(&[0xc3, 0x01])
            .and_then(|rest| rest.split_first_chunk::<8>())
            .map(|(key, body)| (u64::from_le_bytes(*key), body)),
    };
    key.ok_or_else(|| match framing {
        AvroFraming::Confluent => "it does not begin with 00 and an id of 4 bytes".to_owned(),
        AvroFraming::SingleObject => {
            "it does not begin with C3 01 and a fingerprint of 8 bytes".to_owned()
        }
    })
}

/// Checks that a schema is a record, and that items of its arrays take bytes.
///
/// # Errors
/// Returns the problem and the remedy.
pub(super) fn check(text: &str) -> std::result::Result<(), String> {
    let schema: Value = serde_json::from_str(text).map_err(|e| format!("it is no JSON ({e})"))?;
    if schema.get("type").and_then(Value::as_str) != Some("record") {
        return Err("it is no record; put the columns into a record".to_owned());
    }
    let mut empty = BTreeSet::new();
    visit(&schema, "", &mut empty)
}

/// Checks a type and all types in it. The names of types that take no bytes are added to `empty`.
fn visit(
    schema: &Value,
    namespace: &str,
    empty: &mut BTreeSet<String>,
) -> std::result::Result<(), String> {
    if let Value::Array(variants) = schema {
        return variants.iter().try_for_each(|variant| visit(variant, namespace, empty));
    }
    let inner = schema.get("namespace").and_then(Value::as_str).unwrap_or(namespace);
    let fields = schema.get("fields").and_then(Value::as_array);
    for field in fields.into_iter().flatten() {
        visit(field.get("type").unwrap_or(&Value::Null), inner, empty)?;
    }
    for key in ["items", "values", "type"] {
        if let Some(part @ (Value::Object(_) | Value::Array(_))) = schema.get(key) {
            visit(part, inner, empty)?;
        }
    }
    if let Some(items) = schema.get("items")
        && is_empty(items, inner, empty)
    {
        let problem = "it has an array whose items take no bytes, so that a short message could \
                       have billions of them; give the items a value";
        return Err(problem.to_owned());
    }
    if let Some(name) = schema.get("name").and_then(Value::as_str)
        && is_empty(schema, namespace, empty)
    {
        empty.insert(full_name(name, inner));
    }
    Ok(())
}

/// Returns whether the values of a type take no bytes.
fn is_empty(schema: &Value, namespace: &str, empty: &BTreeSet<String>) -> bool {
    match schema {
        Value::String(name) if name == "null" => true,
        Value::String(name) => empty.contains(name) || empty.contains(&full_name(name, namespace)),
        Value::Object(object) => {
            let namespace = object.get("namespace").and_then(Value::as_str).unwrap_or(namespace);
            match object.get("type").and_then(Value::as_str) {
                Some("record" | "error") => {
                    let fields = object.get("fields").and_then(Value::as_array);
                    fields.into_iter().flatten().all(|field| {
                        is_empty(field.get("type").unwrap_or(&Value::Null), namespace, empty)
                    })
                }
                Some("fixed") => object.get("size").and_then(Value::as_u64) == Some(0),
                Some("null") => true,
                _ => object
                    .get("type")
                    .is_some_and(|inner| inner.is_object() && is_empty(inner, namespace, empty)),
            }
        }
        // A union has the number of its variant, and an array its number of items.
        _ => false,
    }
}

pub(super) fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}.{name}")
    }
}
