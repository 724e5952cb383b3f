//! Pointers: names of versions that operators move, each with the log of its moves.
//!
//! A move is a small object of its own, the next number, written with create-if-absent: two operators at
//! once cannot both make the next move, and the one who loses is told what the other did. The last
//! move is where the pointer stands; all of them are the audit trail.

use serde::{Deserialize, Serialize};
use zillion_store::Store;

use crate::error::{Error, Result};
use crate::numbered::Numbered;
use crate::version::{Link, VersionId};

/// Why a pointer was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveKind {
    /// By whoever published the version.
    Publish,
    /// By an operator, to a version of his choice.
    Promote,
    /// By an operator, back.
    Rollback,
}

/// One entry of a pointer's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PointerMove {
    /// Its number, from 1.
    pub number: u64,
    /// Where the pointer stands from now on.
    pub to: Link,
    /// Where it stood.
    pub from: Option<VersionId>,
    /// Why.
    pub kind: MoveKind,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Who, as the machine knows him.
    pub by: String,
    /// What he said to it.
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

    /// The last move; `None` of a pointer that was never set.
    pub(crate) fn last(&self) -> Result<Option<PointerMove>> {
        match self.moves.last()? {
            Some(number) => self.get(number).map(Some),
            None => Ok(None),
        }
    }

    /// Up to `limit` moves before number `end`, the newest first.
    pub(crate) fn page(&self, end: u64, limit: usize) -> Result<Vec<PointerMove>> {
        self.moves.page(end, limit)?.into_iter().map(|number| self.get(number)).collect()
    }

    /// Makes the next move after `last`.
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
        let bytes = bytes.ok_or_else(|| refuse("the pointer's log has a gap here".into()))?;
        let entry: PointerMove = serde_json::from_slice(&bytes)
            .map_err(|e| refuse(format!("the pointer's log does not parse: {e}")))?;
        if entry.number != number {
            return Err(refuse(format!("the entry says that it is number {}", entry.number)));
        }
        Ok(entry)
    }
}
