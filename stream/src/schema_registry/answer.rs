//! The answers of a registry of schemas (REST interface of Confluent, version 1).

use serde::Deserialize;

/// A schema of the registry. Other keys of the answer are not needed.
#[derive(Debug, Deserialize)]
pub(super) struct SchemaAnswer {
    pub(super) schema: String,
    /// The language; absent for Avro.
    #[serde(rename = "schemaType")]
    pub(super) language: Option<String>,
    #[serde(default)]
    pub(super) references: Vec<ReferenceAnswer>,
}

/// A reference of a schema to another one.
#[derive(Debug, Deserialize)]
pub(super) struct ReferenceAnswer {
    pub(super) name: String,
    pub(super) subject: String,
    pub(super) version: u32,
}

/// An error of the registry.
#[derive(Debug, Deserialize)]
pub(super) struct ErrorAnswer {
    pub(super) error_code: u32,
    #[serde(default)]
    pub(super) message: String,
}

/// The code of the error for an id that the registry does not know.
pub(super) const UNKNOWN_SCHEMA: u32 = 40403;
