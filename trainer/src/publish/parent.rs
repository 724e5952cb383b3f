//! The choice of a new version's parent.

use std::sync::Arc;

use zillion_registry::{Error as RegistryError, Model, MoveKind, VersionId, VersionManifest};

use super::RunId;
use crate::error::Result;

/// The number of newest versions that are searched for versions of a run.
const LOOKED_AT: usize = 64;

/// Finds the version that a run published last, among the newest versions. Returns `None` if the
/// run published none of the newest versions.
fn last_of_run(model: &Model, run: &RunId) -> Result<Option<VersionManifest>> {
    find(model, |version| version.origin.run == run.0)
}

/// Finds the version of a run's step that `is_it` accepts, among the newest versions. Returns
/// `None` if no version is accepted.
pub(super) fn find_step(
    model: &Model,
    run: &RunId,
    step: u64,
    is_it: impl Fn(&VersionManifest) -> bool,
) -> Result<Option<VersionManifest>> {
    find(model, |version| {
        version.origin.run == run.0 && version.origin.step == step && is_it(version)
    })
}

/// Finds a wanted version among the newest versions. A publisher that signs finds only the versions
/// that it signed itself. So its signature never covers the rows of another writer.
fn find(
    model: &Model,
    is_wanted: impl Fn(&VersionManifest) -> bool,
) -> Result<Option<VersionManifest>> {
    for version in model.page(None, LOOKED_AT)? {
        match model.version(version) {
            Ok(manifest) if is_wanted(&manifest) && model.is_own(&manifest) => {
                return Ok(Some(manifest));
            }
            Ok(_) => {}
            // Another writer's damaged or unsigned manifest must not keep a run from publishing.
            Err(error @ (RegistryError::Manifest { .. } | RegistryError::Access(_))) => {
                tracing::warn!("version {version} is not a possible parent: {error}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Returns the chain that a new version of the run continues, or `None` if the new version must be
/// a base.
pub(super) fn chain_to_continue(
    model: &Model,
    run: &RunId,
    pointer: &str,
    max_deltas: u64,
) -> Result<Option<Vec<Arc<VersionManifest>>>> {
    let Some(last) = last_of_run(model, run)? else { return Ok(None) };
    let mut parent = last.version;
    if let Some(version) = rolled_back_to(model, pointer, last.published_ms)? {
        let target = model.version(version)?;
        if target.origin.run != run.0 || !model.is_own(&target) {
            return Ok(None);
        }
        parent = version;
    }
    // A version whose files were collected or lost cannot be a parent.
    match model.check_files(parent) {
        Err(RegistryError::File { .. } | RegistryError::Chain { .. }) => return Ok(None),
        checked => checked?,
    }
    let chain = match model.chain(parent) {
        Ok(chain) => chain,
        // A chain that is broken or too long needs a new base.
        Err(RegistryError::Chain { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let is_long = chain.len() as u64 > max_deltas || rows_outgrow_base(&chain);
    Ok((!is_long).then_some(chain))
}

/// Returns the version to which the pointer was rolled back after `since_ms`. Returns `None` if the
/// last move of the pointer is earlier or is not a rollback.
fn rolled_back_to(model: &Model, pointer: &str, since_ms: u64) -> Result<Option<VersionId>> {
    match model.pointer(pointer) {
        Ok(last) if last.kind == MoveKind::Rollback && last.at_ms >= since_ms => {
            Ok(Some(last.to.version))
        }
        Ok(_) | Err(RegistryError::NoPointer { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the deltas of a chain have so many rows that a new base is better for readers.
fn rows_outgrow_base(chain: &[Arc<VersionManifest>]) -> bool {
    const FACTOR: u64 = 4;
    const FLOOR: u64 = 1 << 20;
    let deltas: u64 = chain.iter().skip(1).map(|version| version.layer.rows()).sum();
    let base = chain.first().map_or(0, |base| base.layer.rows());
    deltas > base.saturating_mul(FACTOR).saturating_add(FLOOR)
}
