//! Going back: the move of a pointer to the version that it pointed to before.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::pointer::{MoveKind, PointerMove};
use crate::quarantine::Quarantine;
use crate::reference::VersionId;

impl Model {
    /// Moves a pointer back to `to`, or to the version before the present one.
    ///
    /// # Errors
    /// Returns the errors of [`Model::promote`], or an error if the pointer has no earlier version.
    pub fn rollback(
        &self,
        pointer: &str,
        to: Option<VersionId>,
        by: &str,
        note: Option<String>,
    ) -> Result<PointerMove> {
        // A move whose validity has ended is still the one to go back from.
        let now = self.last_move(pointer)?;
        let to = match to {
            Some(to) => to,
            None => self.previous_version(pointer, &now)?,
        };
        if to == now.to.version {
            return Err(Error::Refused(format!(
                "pointer `{pointer}` of model `{}` already points to version {to}; name an earlier version",
                self.name
            )));
        }
        self.promote(pointer, to, MoveKind::Rollback, by, note)
    }

    /// Finds the version to which the pointer pointed before it was moved to the present version.
    /// Moves by rollbacks and quarantines do not count, so rolling back twice goes back two
    /// versions. Renewed moves do not count either, and versions in quarantine are passed over. If
    /// there are trusted keys, they must have signed all moves that are looked at.
    fn previous_version(&self, pointer: &str, now: &PointerMove) -> Result<VersionId> {
        const PAGE: usize = 64;
        let mut end = None;
        let mut quarantine = Quarantine::of(now.quarantined.iter().copied());
        let mut present = now.to.version;
        loop {
            let page = self.moves(pointer, end, PAGE)?;
            for entry in &page {
                self.trust.check_move(&self.name, pointer, entry)?;
                let is_renewal = entry.from == Some(entry.to.version);
                let is_back = matches!(entry.kind, MoveKind::Rollback | MoveKind::Quarantine);
                if entry.to.version == present && !is_back && !is_renewal {
                    let Some(before) = entry.from else {
                        return Err(self.no_previous_version(pointer, now.to.version));
                    };
                    if quarantine.find(self, before)?.is_none() {
                        return Ok(before);
                    }
                    // A version in quarantine is passed over.
                    present = before;
                }
            }
            match page.last() {
                Some(oldest) if oldest.number > 1 => end = Some(oldest.number),
                // The pointer was moved to the present version by rollbacks only. Then the parent
                // is the version before.
                _ => {
                    let parent = self.version(now.to.version)?.parent;
                    let before = parent.map(|parent| parent.version);
                    return before.ok_or_else(|| self.no_previous_version(pointer, now.to.version));
                }
            }
        }
    }

    fn no_previous_version(&self, pointer: &str, version: VersionId) -> Error {
        Error::Refused(format!(
            "pointer `{pointer}` of model `{}` pointed to no version before version {version}; name the \
             version to go back to",
            self.name
        ))
    }
}
