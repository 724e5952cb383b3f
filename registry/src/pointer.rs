//! Pointers: names of versions that operators can move. Each pointer has a log of its moves.
//!
//! Each move is a small object with the next number, written with create-if-absent. If two
//! operators move a pointer at the same time, one of them gets an error that names the other. The
//! last move gives the present version, and all moves together are the audit trail. A move can be
//! signed, so that readers with trusted keys take no move of another writer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use zillion_access::{Signature, pointer_statement};
use zillion_store::Store;

use crate::error::{Error, Result};
use crate::numbered::Numbered;
use crate::reference::{Link, VersionId};

/// The largest number of bytes of a move: a note of many pages.
const MAX_BYTES: u64 = 64 << 10;

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
    /// A version was put into quarantine. The pointer was moved back if it stood on that version.
    Quarantine,
    /// The quarantine of a version was lifted. The pointer was not moved.
    Lift,
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
    /// The version that the entry puts into quarantine, or whose quarantine it lifts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<VersionId>,
    /// The versions that are in quarantine after this entry, in ascending order. All versions that
    /// build on them are in quarantine too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<VersionId>,
    /// The end of the move's validity, in milliseconds since 1970; absent: the move is valid for
    /// ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// The signatures of all other fields, of the model and of the pointer. An unsigned move has
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<Signature>,
}

impl PointerMove {
    /// Returns the bytes that a signature of the move covers.
    pub(crate) fn statement(&self, model: &str, pointer: &str) -> Vec<u8> {
        let unsigned = Self { signatures: Vec::new(), ..self.clone() };
        let body = serde_json::to_vec(&unsigned)
            .expect("a move is plain data with text keys, which JSON can always hold");
        pointer_statement(model, pointer, &body)
    }

    /// Returns the move as the bytes of its object.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self)
            .expect("a move is plain data with text keys, which JSON can always hold")
    }
}

/// The log of one pointer.
#[derive(Clone, Debug)]
pub(crate) struct PointerLog {
    name: String,
    moves: Numbered,
}

impl PointerLog {
    pub(crate) fn new(store: Store, model: &str, name: &str) -> Self {
        let moves = Numbered::new(store, format!("{model}/pointers/{name}"), MAX_BYTES);
        Self { name: name.to_owned(), moves }
    }

    /// Returns the last move, or `None` if the pointer was never set.
    pub(crate) fn last(&self) -> Result<Option<PointerMove>> {
        match self.moves.last()? {
            Some(number) => self.get(number).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the last move, given that `known` was the last move earlier.
    pub(crate) fn last_since(&self, known: &PointerMove) -> Result<Option<PointerMove>> {
        match self.moves.last_since(known.number)? {
            Some(number) if number == known.number => Ok(Some(known.clone())),
            Some(number) => self.get(number).map(Some),
            None => Ok(None),
        }
    }

    /// Returns up to `limit` moves before number `end`, the newest first.
    pub(crate) fn page(&self, end: u64, limit: usize) -> Result<Vec<PointerMove>> {
        self.moves.page(end, limit)?.into_iter().map(|number| self.get(number)).collect()
    }

    /// Returns the number of the last move, or `None` if the pointer was never set.
    pub(crate) fn last_number(&self) -> Result<Option<u64>> {
        self.moves.last()
    }

    /// Returns the number of the last move, given that `known` was the last move earlier.
    pub(crate) fn last_number_since(&self, known: &PointerMove) -> Result<Option<u64>> {
        self.moves.last_since(known.number)
    }

    /// Removes the moves that are neither among the newest `keep`, nor younger than `age` at `now`.
    /// If `dry_run` is true, only counts them. The last move always stays.
    pub(crate) fn remove_old(
        &self,
        keep: usize,
        age: Duration,
        now: SystemTime,
        dry_run: bool,
    ) -> Result<u64> {
        let all = self.moves.all()?;
        let old = &all[..all.len().saturating_sub(keep.max(1))];
        let is_old = |at: SystemTime| now.duration_since(at).unwrap_or_default() >= age;
        let old: Vec<u64> =
            old.iter().filter(|(_, at)| is_old(*at)).map(|(number, _)| *number).collect();
        if !dry_run {
            self.moves.remove(&old)?;
        }
        Ok(old.len() as u64)
    }

    /// Removes moves like [`PointerLog::remove_old`], given that `first` was the first move that an
    /// earlier removal has left. Reads only the moves that it removes, and one more. Returns the
    /// number of removed moves, and the first move that is left.
    pub(crate) fn remove_old_since(
        &self,
        first: Option<u64>,
        keep: usize,
        age: Duration,
        now: SystemTime,
    ) -> Result<(u64, Option<u64>)> {
        let Some(first) = first else {
            let removed = self.remove_old(keep, age, now, false)?;
            return Ok((removed, self.moves.all()?.first().map(|(number, _)| *number)));
        };
        let Some(last) = self.moves.last_since(first)? else { return Ok((0, None)) };
        let kept = u64::try_from(keep.max(1)).unwrap_or(u64::MAX);
        let is_old = |entry: &PointerMove| {
            let at = UNIX_EPOCH + Duration::from_millis(entry.at_ms);
            now.duration_since(at).unwrap_or_default() >= age
        };
        let mut end = first;
        while end <= last.saturating_sub(kept) && is_old(&self.get(end)?) {
            end += 1;
        }
        let old: Vec<u64> = (first..end).collect();
        self.moves.remove(&old)?;
        Ok((old.len() as u64, Some(end)))
    }

    /// Returns the number of the move after `last`.
    pub(crate) fn next_number(&self, last: Option<u64>) -> Result<u64> {
        self.moves.next(last)
    }

    /// Returns up to `limit` numbers of moves before number `end`, the newest first.
    pub(crate) fn numbers(&self, end: u64, limit: usize) -> Result<Vec<u64>> {
        self.moves.page(end, limit)
    }

    /// Writes the move `next`. Calls `sign` first, which sets the last fields of the move.
    pub(crate) fn append(
        &self,
        mut next: PointerMove,
        sign: impl FnOnce(&mut PointerMove) -> Result<()>,
    ) -> Result<PointerMove> {
        sign(&mut next)?;
        let number = next.number;
        if self.moves.create(number, next.to_bytes())? {
            return Ok(next);
        }
        let other = self.get(number)?;
        Err(Error::PointerMoved { pointer: self.name.clone(), to: other.to.version, by: other.by })
    }

    pub(crate) fn get(&self, number: u64) -> Result<PointerMove> {
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
