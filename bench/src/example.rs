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

/// Publishes a model whose table has `rows` rows to a registry in `folder`, and returns the
/// registry.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub fn publish(folder: &Path, rows: u64) -> Result<Registry> {
    let registry = folder.join("registry");
    let model = open_model(&registry)?;
    criteo::publish(&model, rows, folder, &compute_pool(None)?)?;
    create_registry(&registry.display().to_string())
}

/// Returns `count` different requests of one row of a table with `rows` rows: the columns of each,
/// and the message of gRPC with its prefix.
///
/// # Errors
/// Returns an error if a request cannot be written, which is a bug.
pub fn requests(rows: u64, count: usize) -> Result<Vec<(RawColumns<'static>, Bytes)>> {
    let recipe = Recipe { protocol: Protocol::Grpc, ..Recipe::v2(1) };
    let bodies = Requests::new(rows, 1, count).bodies(&recipe)?.into_iter();
    let message = |body: crate::load::bodies::Body| {
        let message = body.message(Protocol::Grpc, MODEL, None)?;
        Ok((body.columns, message))
    };
    bodies.map(message).collect()
}
