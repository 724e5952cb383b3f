//! The entry of a table in the manifest of a checkpoint that holds only changes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ListedParts, PartInfo, TableParts};
use crate::error::{Error, Result};
use crate::shape::RowShape;

/// The part of a table's entry that says which rows its files hold: only those that changed since
/// the checkpoint below this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedParts {
    /// The number of rows in the parts.
    pub rows: u64,
    /// The keys that were evicted since the checkpoint below, with the same slots as the parts;
    /// absent if rows are never evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<ListedParts>,
    /// The files with the unchanged rows, the whole checkpoint first. The manifest does not store
    /// them: the code that opens a chain of checkpoints fills them in (see
    /// [`TableParts::stand_on`]).
    #[serde(skip)]
    pub below: Vec<PartsBelow>,
}

/// The files of one table in a checkpoint on which another checkpoint depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartsBelow {
    /// The folder of the checkpoint.
    pub folder: PathBuf,
    /// The number of rows in the parts.
    pub rows: u64,
    /// The parts of the table.
    pub parts: Vec<PartInfo>,
    /// The evicted keys; absent in a whole checkpoint, and if rows are never evicted.
    pub gone: Option<ListedParts>,
}

impl TableParts {
    /// Records the files with the unchanged rows: those of the checkpoint in `folder`, whose entry
    /// for this table is `parent`, and those of the checkpoints below it. Does nothing if the parts
    /// hold all rows.
    pub fn stand_on(&mut self, folder: &Path, parent: &Self) {
        let Some(changes) = &mut self.changes else { return };
        let (own, gone) = match &parent.changes {
            Some(changed) => (changed.rows, changed.gone.clone()),
            None => (parent.rows, None),
        };
        changes.below = parent.changes.iter().flat_map(|c| c.below.iter().cloned()).collect();
        let (folder, parts) = (folder.to_owned(), parent.parts.clone());
        changes.below.push(PartsBelow { folder, rows: own, parts, gone });
    }

    /// Yields every file of this table in the checkpoint's own folder.
    pub fn files(&self) -> impl Iterator<Item = &PartInfo> {
        let gone = self.changes.iter().filter_map(|changes| changes.gone.as_ref());
        let others = gone.chain(&self.narrow).chain(&self.candidates).chain(&self.filter);
        self.parts.iter().chain(others.flat_map(|listed| &listed.parts))
    }

    /// Yields every file of this table in the checkpoints below this one.
    pub fn files_below(&self) -> impl Iterator<Item = &PartInfo> {
        let below = self.changes.iter().flat_map(|changes| &changes.below);
        below.flat_map(|b| b.parts.iter().chain(b.gone.iter().flat_map(|gone| &gone.parts)))
    }
}

/// Returns the checkpoint's entry for each table, in the order of the tables.
///
/// # Errors
/// Returns [`Error::Mismatch`] if the checkpoint and the job have different tables, or if the
/// checkpoint lists a table twice.
pub fn listed_parts<'a>(
    shapes: &[&RowShape],
    parts: &'a [TableParts],
) -> Result<Vec<&'a TableParts>> {
    if let Some(extra) = parts.iter().find(|p| shapes.iter().all(|s| s.name() != p.table)) {
        let reason = "the checkpoint has this table and the job does not; use the job that wrote the checkpoint";
        return Err(Error::mismatch(&extra.table, reason));
    }
    let listed = |shape: &&RowShape| {
        let mut found = parts.iter().filter(|p| p.table == shape.name());
        match (found.next(), found.next()) {
            (Some(table), None) => Ok(table),
            (None, _) => {
                let reason = "the job has this table and the checkpoint does not; use the job that wrote the checkpoint";
                Err(Error::mismatch(shape.name(), reason))
            }
            _ => Err(Error::mismatch(
                shape.name(),
                "the checkpoint lists this table twice; use another checkpoint",
            )),
        }
    };
    shapes.iter().map(listed).collect()
}
