//! Pointers: names of versions that operators can move. Each pointer has a log of its moves.
//!
//! Each move is a small object with the next number, written by create-if-absent. If two operators
//! move a pointer at the same time, one of them gets an error that names the other. The last move
//! gives the present version. All moves together are the audit trail.

use serde::{Deserialize, Serialize};
use zillion_store::Store;

use crate::error::{Error, Result};
use crate::numbered::Numbered;
use crate::version::{Link, VersionId};

/// The reason why a pointer was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveKind {
    /// The publisher of a version moved the pointer to it.
    Publish,
    /// An operator moved the pointer to a chosen version.
    Promote,
    /// An operator moved the pointer back.
    Rollback,
}

/// One entry in the log of a pointer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PointerMove {
    /// The number of the move. The first move has the number 1.
    pub number: u64,
    /// The version to which the pointer was moved.
    pub to: Link,
    /// The version to which the pointer pointed before, or `None` for the first move.
    pub from: Option<VersionId>,
    /// The reason for the move.
    pub kind: MoveKind,
    /// The time of the move, in milliseconds since 1970.
    pub at_ms: u64,
    /// The name of the operator or the run that moved the pointer.
    pub by: String,
    /// The note that the operator wrote about the move, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The log of one pointer.
#[derive(Clone, Debug)]
pub(crate) struct PointerLog {
    name: String,
    moves: Numbered,
}

impl PointerLog {
    pub(crate) fn new(store: Store, model: &str, name: &str) -> Self {
        let moves = Numbered::new(store, format!("{model}/pointers/{name}"));
        Self { name: name.to_owned(), moves }
    }

    /// Returns the last move, or `None` if the pointer was never set.
    pub(crate) fn last(&self) -> Result<Option<PointerMove>> {
        match self.moves.last()? {
            Some(number) => self.get(number).map(Some),
            None => Ok(None),
        }
    }

    /// Returns up to `limit` moves with numbers below `end`, the newest first.
    pub(crate) fn page(&self, end: u64, limit: usize) -> Result<Vec<PointerMove>> {
        self.moves.page(end, limit)?.into_iter().map(|number| self.get(number)).collect()
    }

    /// Writes the next move, which follows `last`.
    pub(crate) fn append(
        &self,
        last: Option<&PointerMove>,
        next: PointerMove,
    ) -> Result<PointerMove> {
        let number = last.map_or(1, |last| last.number + 1);
        let next = PointerMove { number, from: last.map(|last| last.to.version), ..next };
        let bytes = serde_json::to_vec_pretty(&next)
            .expect("a move is plain data with text keys, which JSON can always hold");
        if self.moves.create(number, bytes)? {
            return Ok(next);
        }
        let other = self.get(number)?;
        Err(Error::PointerMoved { pointer: self.name.clone(), to: other.to.version, by: other.by })
    }

    fn get(&self, number: u64) -> Result<PointerMove> {
        let path = self.moves.name(number);
        let refuse = |reason: String| Error::Manifest { path: path.clone(), reason };
        let bytes = self.moves.get(number)?;
        let bytes =
            bytes.ok_or_else(|| refuse("the pointer's log has a gap at this entry".into()))?;
        let entry: PointerMove = serde_json::from_slice(&bytes)
            .map_err(|e| refuse(format!("the entry of the pointer's log cannot be parsed: {e}")))?;
        if entry.number != number {
            return Err(refuse(format!(
                "the entry of the pointer's log contains number {} instead of its own",
                entry.number
            )));
        }
        Ok(entry)
    }
}
