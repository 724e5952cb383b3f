//! A published model in Criteo's shape and requests for it, for tests that need a whole server.

use std::path::Path;

use anyhow::Result;
use bytes::Bytes;
use zillion_console::{compute_pool, create_registry};
use zillion_feature::RawColumns;
use zillion_registry::Registry;

use crate::Protocol;
use crate::criteo::{self, Requests, open_model};
use crate::load::bodies::Recipe;

pub use crate::criteo::MODEL;

/// A request in the forms of both protocols.
#[derive(Clone, Debug)]
pub struct Example {
    /// The inputs of the rows.
    pub columns: RawColumns<'static>,
    /// The body of a v2 request in JSON.
    pub json: Bytes,
    /// The message of `ModelInfer` in gRPC, with the five bytes before it.
    pub message: Bytes,
}

/// Publishes a model whose table has `rows` rows to a registry in `folder`, and returns the
/// registry.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub fn publish(folder: &Path, rows: u64) -> Result<Registry> {
    let registry = folder.join("registry");
    criteo::publish(&open_model(&registry)?, rows, folder, &compute_pool(None)?)?;
    create_registry(&registry.display().to_string())
}

/// Returns `count` different requests of `candidates` rows, whose ids belong to a table with `rows`
/// rows.
///
/// # Errors
/// Returns an error if a request cannot be written, which is a bug.
pub fn requests(rows: u64, candidates: usize, count: usize) -> Result<Vec<Example>> {
    let bodies = Requests::new(rows, candidates, count).bodies(&Recipe::v2(candidates))?;
    let example = |body: crate::load::bodies::Body| {
        let message = body.message(Protocol::Grpc, MODEL, None)?;
        Ok(Example { columns: body.columns, json: body.json, message })
    };
    bodies.into_iter().map(example).collect()
}
