//! The choice of a new version's parent.

use zillion_registry::VersionId;
use zillion_registry::{Chain, Error as RegistryError, Model, MoveKind, PointerMove};
use zillion_rows::TableSpec;

use super::RunId;
use super::recent::Recent;
use crate::error::Result;

/// Reads the chain of the version that a new version of the run continues: the version that the run
/// published last, or the version to which the pointer was rolled back since. `last_move` returns
/// the last move of the pointer. Returns `None` if there is no such version.
pub(super) fn read_chain_to_continue(
    model: &Model,
    run: &RunId,
    recent: &mut Recent,
    last_move: impl FnOnce() -> Result<Option<PointerMove>>,
) -> Result<Option<Chain>> {
    let Some(last) = recent.last_of_run(model)? else { return Ok(None) };
    let mut parent = last.version;
    if let Some(version) = rolled_back_to(last_move()?.as_ref(), last.published_ms) {
        let target = model.version(version)?;
        if target.origin.run != run.0 || !model.is_own(&target) {
            return Ok(None);
        }
        parent = version;
    }
    // A publisher without a pointer does not see that its last version was rolled back.
    if model.quarantined()?.find(model, parent)?.is_some() {
        return Ok(None);
    }
    // A version whose files were collected or lost cannot be a parent.
    match model.check_files(parent) {
        Err(RegistryError::File { .. } | RegistryError::Chain { .. }) => return Ok(None),
        checked => checked?,
    }
    match Chain::read(model, parent) {
        Ok(chain) => Ok(Some(chain)),
        // A chain that is broken or too long needs a new base.
        Err(RegistryError::Chain { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the rows of a chain's newest version have the number types of `tables`.
pub(super) fn has_row_types(chain: &Chain, tables: &[TableSpec]) -> bool {
    let Some(newest) = chain.newest() else { return false };
    let types = |tables: &[TableSpec]| tables.iter().map(|t| t.published).collect::<Vec<_>>();
    types(&newest.frame.tables) == types(tables)
}

/// Reads the last move of the pointer. Returns `None` if the pointer was never set.
pub(super) fn read_last_move(model: &Model, pointer: &str) -> Result<Option<PointerMove>> {
    match model.pointer(pointer) {
        Ok(last) => Ok(Some(last)),
        Err(RegistryError::NoPointer { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the version to which the last move of the pointer has rolled it back after `since_ms`,
/// by hand or by a quarantine. Returns `None` if the move is earlier or of another kind.
pub(super) fn rolled_back_to(last: Option<&PointerMove>, since_ms: u64) -> Option<VersionId> {
    let is_back = |last: &&PointerMove| {
        // A change of the quarantine may stand above a rollback, and says as well where to go on.
        let kinds = [MoveKind::Rollback, MoveKind::Quarantine, MoveKind::Lift];
        kinds.contains(&last.kind) && last.at_ms >= since_ms
    };
    last.filter(is_back).map(|last| last.to.version)
}
