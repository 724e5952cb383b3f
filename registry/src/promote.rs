//! The moves of pointers by publishers and operators.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::pointer::{MoveKind, PointerLog, PointerMove};
use crate::quarantine::Quarantine;
use crate::reference::VersionId;

/// The largest number of moves of a pointer among which a signer looks for its own.
const LOOKED_AT: usize = 256;

impl Model {
    /// Moves a pointer to a version. Returns the move, or the earlier move if the pointer already
    /// points to the version. A signer signs a new move then, if the earlier one is not signed with
    /// its key, or if its moves have an end of their validity.
    ///
    /// # Errors
    /// Returns an error if the version does not exist, [`Error::Quarantined`] if it is in
    /// quarantine, [`Error::PointerMoved`] if another operator moved the pointer at the same time,
    /// or [`Error::Access`] if there are trusted keys and none of them signed the version or signs
    /// the move.
    pub fn promote(
        &self,
        pointer: &str,
        version: VersionId,
        kind: MoveKind,
        by: &str,
        note: Option<String>,
    ) -> Result<PointerMove> {
        self.promote_after(None, pointer, version, kind, by, note)
    }

    /// Moves a pointer like [`Model::promote`], given that `known` was a move of it. If the pointer
    /// was not moved since, the number of the new move is found with one request.
    ///
    /// # Errors
    /// Returns the errors of [`Model::promote`].
    pub fn promote_after(
        &self,
        known: Option<&PointerMove>,
        pointer: &str,
        version: VersionId,
        kind: MoveKind,
        by: &str,
        note: Option<String>,
    ) -> Result<PointerMove> {
        let log = self.pointer_log(pointer)?;
        let number = match known {
            Some(known) => log.last_number_since(known)?,
            None => log.last_number()?,
        };
        let last = self.last_own_move(&log, pointer, number)?;
        let to = self.version(version)?.link();
        // A pointer that already points there does not move, so that its log stays a history that a
        // rollback can follow.
        let same = last.as_ref().filter(|last| last.to == to);
        let is_last = |last: &&PointerMove| Some(last.number) == number;
        let stays = |last: &&PointerMove| !self.trust.renews(&self.name, pointer, last);
        if let Some(last) = same.filter(is_last).filter(stays) {
            self.trust.check_move(&self.name, pointer, last)?;
            return Ok(last.clone());
        }
        let mut quarantine = match &last {
            Some(last) => Quarantine::of(last.quarantined.iter().copied()),
            None => self.quarantined()?,
        };
        // A pointer never stands on a version in quarantine.
        last.iter().for_each(|last| quarantine.trust(last.to.version));
        self.check_quarantine(&mut quarantine, version)?;
        // A renewed move keeps its kind, by which publishers know that a version was rolled back.
        let kind = match same.map(|last| last.kind) {
            Some(MoveKind::Quarantine | MoveKind::Lift) => MoveKind::Rollback,
            last => last.unwrap_or(kind),
        };
        let entry = PointerMove {
            number: log.next_number(number)?,
            to,
            from: last.map(|last| last.to.version),
            kind,
            at_ms: self.now_ms(),
            by: by.to_owned(),
            note,
            about: None,
            quarantined: quarantine.versions().iter().copied().collect(),
            expires_ms: None,
            signatures: Vec::new(),
        };
        self.append_move(&log, pointer, entry)
    }

    /// Signs a move and writes it to the log of its pointer.
    pub(crate) fn append_move(
        &self,
        log: &PointerLog,
        pointer: &str,
        entry: PointerMove,
    ) -> Result<PointerMove> {
        log.append(entry, |entry| {
            self.trust.sign_move(&self.name, pointer, entry);
            // A move that readers with the same keys would refuse is not written.
            self.trust.check_move(&self.name, pointer, entry)
        })
    }

    /// Returns the move that a new move continues: the last one, or, for a signer, the last one
    /// that it stands by. A signature must not cover what another writer put into the log.
    pub(crate) fn last_own_move(
        &self,
        log: &PointerLog,
        pointer: &str,
        last: Option<u64>,
    ) -> Result<Option<PointerMove>> {
        let Some(last) = last else { return Ok(None) };
        if !self.trust.has_signer() {
            return log.get(last).map(Some);
        }
        // The last move is usually the signer's own, so that the log is not listed.
        if let Ok(entry) = log.get(last)
            && self.trust.stands_by(&self.name, pointer, &entry)
        {
            return Ok(Some(entry));
        }
        for number in log.numbers(last.saturating_add(1), LOOKED_AT)? {
            // Another writer can put any bytes into the log.
            match log.get(number) {
                Ok(entry) if self.trust.stands_by(&self.name, pointer, &entry) => {
                    return Ok(Some(entry));
                }
                Ok(_) | Err(Error::Manifest { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
