//! The entry of a table in the manifest of a checkpoint that holds only changes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ListedParts, PartInfo, TableParts};
use crate::error::{Error, Result};
use crate::shape::RowShape;

/// The details of a table's entry whose parts hold only the rows that changed since the checkpoint
/// below.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedParts {
    /// The number of rows in the parts.
    pub rows: u64,
    /// The files of the keys that were evicted since the checkpoint below. Absent if the table
    /// never evicts rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<ListedParts>,
    /// The files that hold the unchanged rows. The files of the whole checkpoint come first. The
    /// manifest does not store this list. The code that opens a chain of checkpoints fills it in
    /// (see [`TableParts::stand_on`]).
    #[serde(skip)]
    pub below: Vec<PartsBelow>,
}

/// The files of one table in a checkpoint that another checkpoint needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartsBelow {
    /// The folder of the checkpoint.
    pub folder: PathBuf,
    /// The number of rows in the parts.
    pub rows: u64,
    /// The parts of the table.
    pub parts: Vec<PartInfo>,
    /// The files of the evicted keys; absent in a whole checkpoint, and in a table that never
    /// evicts rows.
    pub gone: Option<ListedParts>,
}

impl TableParts {
    /// Records the files that hold the unchanged rows: the files of the checkpoint in `folder`, and
    /// those of the checkpoints below it. `parent` is the entry for this table in that checkpoint.
    /// Does nothing if the parts hold all rows.
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

    /// Yields every file of this table in the folder of this checkpoint.
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

/// Returns the entry of each table in a checkpoint, in the order of `shapes`.
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
