//! What a checkpoint's manifest says of one table's files, where they hold changes alone.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ListedParts, PartInfo, TableParts};
use crate::error::{Error, Result};
use crate::shape::RowShape;

/// Says that a table's parts hold only the rows that changed since another checkpoint, the one that this one
/// stands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangedParts {
    /// Rows in the parts.
    pub rows: u64,
    /// Keys whose rows went meanwhile, over the same slots as the parts; absent where rows never go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<ListedParts>,
    /// Where the other rows are, the whole one first. No part of the file: who opens the chain of checkpoints
    /// says it (see [`TableParts::stand_on`]).
    #[serde(skip)]
    pub below: Vec<PartsBelow>,
}

/// One table's files in a checkpoint that another one stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartsBelow {
    /// The checkpoint's folder.
    pub folder: PathBuf,
    /// Rows in the parts.
    pub rows: u64,
    /// Its parts.
    pub parts: Vec<PartInfo>,
    /// Keys whose rows had gone; absent in a whole checkpoint, and where rows never go.
    pub gone: Option<ListedParts>,
}

impl TableParts {
    /// Says where the rows are that did not change: in the checkpoint in `folder`, whose entry for this table is
    /// `parent`, and below it. Does nothing where the parts are whole.
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

    /// Every file of this table in the checkpoint's own folder.
    pub fn files(&self) -> impl Iterator<Item = &PartInfo> {
        let gone = self.changes.iter().filter_map(|changes| changes.gone.as_ref());
        let others = gone.chain(&self.narrow).chain(&self.candidates).chain(&self.filter);
        self.parts.iter().chain(others.flat_map(|listed| &listed.parts))
    }

    /// The same in the folders of the checkpoints below it.
    pub fn files_below(&self) -> impl Iterator<Item = &PartInfo> {
        let below = self.changes.iter().flat_map(|changes| &changes.below);
        below.flat_map(|b| b.parts.iter().chain(b.gone.iter().flat_map(|gone| &gone.parts)))
    }
}

/// A checkpoint's entry for each table, in the order of the tables.
pub fn listed_parts<'a>(
    shapes: &[&RowShape],
    parts: &'a [TableParts],
) -> Result<Vec<&'a TableParts>> {
    if let Some(extra) = parts.iter().find(|p| shapes.iter().all(|s| s.name() != p.table)) {
        let reason =
            "the checkpoint has a table that the job does not; use the job that it was written by";
        return Err(Error::mismatch(&extra.table, reason));
    }
    let listed = |shape: &&RowShape| {
        let mut found = parts.iter().filter(|p| p.table == shape.name());
        match (found.next(), found.next()) {
            (Some(table), None) => Ok(table),
            (None, _) => {
                let reason =
                    "the checkpoint does not have this table; use the job that it was written by";
                Err(Error::mismatch(shape.name(), reason))
            }
            _ => Err(Error::mismatch(shape.name(), "the checkpoint lists this table twice")),
        }
    };
    shapes.iter().map(listed).collect()
}
