//! Quarantine: versions that must not be used any more, and all versions that build on them.
//!
//! A quarantine is an entry in the log of each pointer of the model. Each entry of a log repeats
//! the list of the versions in quarantine, so that the last move of a pointer says it all, under
//! the signature of the move. If the pointer stands on such a version, the same entry moves it
//! back. So a reader sees the quarantine and the move back at once, or neither.
//!
//! # Concurrency
//! A promotion reads the last move of its pointer, and takes the next number. A quarantine takes a
//! number of each log too. So of a promotion and a quarantine at the same time, one is refused: a
//! refused promotion is an error, and a refused quarantine looks again.
//!
//! # Crash consistency
//! A quarantine that is killed has done some of the pointers. Repeated, it does the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Result};
use crate::model::{MAX_CHAIN, Model};
use crate::pointer::{MoveKind, PointerMove};
use crate::reference::{Link, VersionId};

/// The largest number of versions in quarantine.
const MAX_QUARANTINED: usize = 1000;
/// The number of times that a quarantine looks again after another move of the same pointer.
const MAX_ATTEMPTS: usize = 64;
/// The number of moves that are read at once.
const PAGE: usize = 64;

/// The versions of a model that are in quarantine. It remembers what it has found out about the
/// ancestors of versions.
#[derive(Clone, Debug, Default)]
pub struct Quarantine {
    versions: BTreeSet<VersionId>,
    /// The versions whose ancestors are known.
    known: BTreeMap<VersionId, Option<VersionId>>,
    /// The newest version for which it is known whether it repeats another version.
    newest: Option<(VersionId, bool)>,
}

impl Quarantine {
    /// The largest number of versions that are remembered.
    const MAX_KNOWN: usize = 100_000;

    /// Creates the quarantine of these versions.
    pub fn of(versions: impl IntoIterator<Item = VersionId>) -> Self {
        Self { versions: versions.into_iter().collect(), ..Self::default() }
    }

    /// Returns the versions that were put into quarantine, without those that build on them.
    pub fn versions(&self) -> &BTreeSet<VersionId> {
        &self.versions
    }

    /// Takes note that neither a version nor its ancestors are in quarantine.
    pub(crate) fn trust(&mut self, version: VersionId) {
        self.known.insert(version, None);
    }

    /// Returns the version in quarantine that `version` is or builds on, or `None` if there is
    /// none.
    ///
    /// # Errors
    /// Returns an error if the manifest of an ancestor cannot be read.
    pub fn find(&mut self, model: &Model, version: VersionId) -> Result<Option<VersionId>> {
        let Some(&oldest) = self.versions.first() else { return Ok(None) };
        let mut walked = Vec::new();
        let mut next = Some(version);
        let mut found = None;
        // A base that repeats a version builds on that version.
        let mut repeated = None;
        // A parent has a smaller number than its child.
        while let Some(at) = next.filter(|at| *at >= oldest) {
            if self.versions.contains(&at) {
                found = Some(at);
                break;
            }
            if let Some(known) = self.known.get(&at) {
                found = *known;
                break;
            }
            let manifest = match model.version(at) {
                // The version that a base repeats may have been removed since.
                Err(Error::NoVersion { .. }) if Some(at) == repeated => break,
                manifest => manifest?,
            };
            walked.push(at);
            repeated = manifest.compacts();
            let parent = manifest.parent.as_ref().map(|parent| parent.version).or(repeated);
            if parent.is_some_and(|parent| parent >= at) || walked.len() > MAX_CHAIN {
                return Err(Error::Chain {
                    model: model.name.clone(),
                    version: at,
                    reason: "its ancestors have no end; publish a new base".to_owned(),
                });
            }
            next = parent;
        }
        if self.known.len() > Self::MAX_KNOWN {
            self.known.clear();
        }
        self.known.extend(walked.into_iter().map(|version| (version, found)));
        Ok(found)
    }

    /// Returns the newest version of the model that is not in quarantine and has a state of its
    /// own, looking from `newest` downwards. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if versions cannot be listed or read.
    pub fn newest_usable(&mut self, model: &Model, newest: VersionId) -> Result<Option<VersionId>> {
        let mut page = vec![newest];
        while let Some(&last) = page.last() {
            for version in page {
                if self.find(model, version)?.is_none() && !self.is_repeat(model, version) {
                    return Ok(Some(version));
                }
            }
            page = model.page(Some(last), PAGE)?;
        }
        Ok(None)
    }

    /// Returns whether a version repeats an earlier one. A manifest that cannot be read is reported
    /// when the version is loaded.
    fn is_repeat(&mut self, model: &Model, version: VersionId) -> bool {
        if let Some((known, is_repeat)) = self.newest
            && known == version
        {
            return is_repeat;
        }
        let is_repeat = model.version(version).is_ok_and(|manifest| manifest.compacts().is_some());
        if self.newest.is_none_or(|(known, _)| known < version) {
            self.newest = Some((version, is_repeat));
        }
        is_repeat
    }
}

impl Model {
    /// Puts a version and all versions that build on it into quarantine: they are not promoted, are
    /// no parents of new versions, and are not loaded by servers that follow the newest version. A
    /// pointer that stands on such a version is moved back in the same entry: to the version that
    /// it pointed to last and that is not in quarantine, or else to the nearest such ancestor.
    /// Returns the last move of each pointer. A repeated call changes nothing.
    ///
    /// # Errors
    /// Returns [`Error::NoVersion`] if the version does not exist, [`Error::NoPointer`] if the
    /// model has no pointer, an error if a pointer has no version to go back to, or the errors of
    /// [`Model::promote`].
    pub fn quarantine(
        &self,
        version: VersionId,
        by: &str,
        reason: &str,
    ) -> Result<BTreeMap<String, PointerMove>> {
        self.version(version)?;
        let change = Change { kind: MoveKind::Quarantine, version, by, reason };
        self.change_all(|pointer| self.change_pointer(pointer, &change))
    }

    /// Ends the quarantine of a version. Pointers do not move. Versions that were put into
    /// quarantine by themselves stay there.
    ///
    /// # Errors
    /// Returns an error if the version is not in quarantine, or the errors of
    /// [`Model::quarantine`].
    pub fn lift_quarantine(
        &self,
        version: VersionId,
        by: &str,
        reason: &str,
    ) -> Result<BTreeMap<String, PointerMove>> {
        let mut quarantine = self.quarantined()?;
        if !quarantine.versions.contains(&version) {
            let builds_on = quarantine.find(self, version)?.map_or(String::new(), |root| {
                format!("; it builds on version {root}, whose quarantine can be lifted")
            });
            return Err(Error::Refused(format!(
                "version {version} of model `{}` was not put into quarantine{builds_on}; see \
                 `zillion model log`",
                self.name
            )));
        }
        let change = Change { kind: MoveKind::Lift, version, by, reason };
        self.change_all(|pointer| self.change_pointer(pointer, &change))
    }

    /// Returns the versions in quarantine, by the last moves of all pointers. If there are trusted
    /// keys, moves that none of them signed do not count.
    ///
    /// # Errors
    /// Returns an error if a pointer cannot be read.
    pub fn quarantined(&self) -> Result<Quarantine> {
        let mut versions = BTreeSet::new();
        for pointer in self.pointers()? {
            let log = self.pointer_log(&pointer)?;
            let number = log.last_number()?;
            let last = match self.last_own_move(&log, &pointer, number) {
                // The logs of the other pointers have the same list.
                Err(Error::Manifest { .. }) => continue,
                last => last?,
            };
            if let Some(last) = last {
                let is_trusted = self.trust.check_move(&self.name, &pointer, &last).is_ok();
                versions.extend(last.quarantined.into_iter().filter(|_| is_trusted));
            }
        }
        Ok(Quarantine::of(versions))
    }

    /// Checks that a version may be the parent of a new version, or the beginning of a training.
    ///
    /// # Errors
    /// Returns [`Error::Quarantined`] if it is in quarantine, or an error if a pointer or an
    /// ancestor of the version cannot be read.
    pub fn check_usable(&self, version: VersionId) -> Result<()> {
        self.check_quarantine(&mut self.quarantined()?, version)
    }

    /// Checks that a version is not in a quarantine.
    pub(crate) fn check_quarantine(
        &self,
        quarantine: &mut Quarantine,
        version: VersionId,
    ) -> Result<()> {
        match quarantine.find(self, version)? {
            None => Ok(()),
            Some(root) => Err(Error::Quarantined { model: self.name.clone(), version, root }),
        }
    }

    /// Changes all pointers, also those that were set meanwhile. A pointer that cannot be changed
    /// does not keep the others from it.
    fn change_all(
        &self,
        change: impl Fn(&str) -> Result<Option<PointerMove>>,
    ) -> Result<BTreeMap<String, PointerMove>> {
        let mut done = BTreeMap::new();
        let mut failed = BTreeMap::new();
        loop {
            let pointers = self.pointers()?;
            let before = done.len();
            for pointer in pointers {
                if done.contains_key(&pointer) || failed.contains_key(&pointer) {
                    continue;
                }
                match change(&pointer) {
                    Ok(Some(entry)) => drop(done.insert(pointer, entry)),
                    // An empty folder is no pointer.
                    Ok(None) => {}
                    Err(error) => drop(failed.insert(pointer, error)),
                }
            }
            if done.len() == before {
                break;
            }
        }
        if let Some((_, error)) = failed.into_iter().next() {
            return Err(error);
        }
        if done.is_empty() {
            return Err(Error::NoPointer { pointer: crate::model::STABLE.to_owned() });
        }
        Ok(done)
    }

    /// Writes the entry of a change into the log of a pointer, unless the log has it. Returns the
    /// last move, or `None` if the pointer was never set.
    fn change_pointer(&self, pointer: &str, change: &Change<'_>) -> Result<Option<PointerMove>> {
        let mut attempts = 0;
        loop {
            match self.try_change(pointer, change) {
                Err(Error::PointerMoved { .. }) if attempts < MAX_ATTEMPTS => attempts += 1,
                result => return result,
            }
        }
    }

    fn try_change(&self, pointer: &str, change: &Change<'_>) -> Result<Option<PointerMove>> {
        let log = self.pointer_log(pointer)?;
        let number = log.last_number()?;
        let Some(last) = self.last_own_move(&log, pointer, number)? else { return Ok(None) };
        let mut versions: BTreeSet<VersionId> = last.quarantined.iter().copied().collect();
        let is_changed = match change.kind {
            MoveKind::Lift => versions.remove(&change.version),
            _ => versions.insert(change.version),
        };
        let mut quarantine = Quarantine::of(versions.clone());
        let to = self.find_target(pointer, &last, &mut quarantine)?;
        if !is_changed && to == last.to {
            self.trust.check_move(&self.name, pointer, &last)?;
            return Ok(Some(last));
        }
        if versions.len() > MAX_QUARANTINED {
            return Err(Error::Refused(format!(
                "model `{}` has {MAX_QUARANTINED} versions in quarantine, which is the limit; lift \
                 the quarantine of versions that are not in use",
                self.name
            )));
        }
        let entry = PointerMove {
            number: log.next_number(number)?,
            to,
            from: Some(last.to.version),
            kind: change.kind,
            at_ms: self.now_ms(),
            by: change.by.to_owned(),
            note: Some(change.reason.to_owned()),
            about: Some(change.version),
            quarantined: versions.into_iter().collect(),
            expires_ms: None,
            signatures: Vec::new(),
        };
        self.append_move(&log, pointer, entry).map(Some)
    }

    /// Returns the version to which a pointer points with a quarantine: the present one if it can
    /// stay.
    fn find_target(
        &self,
        pointer: &str,
        last: &PointerMove,
        quarantine: &mut Quarantine,
    ) -> Result<Link> {
        if quarantine.find(self, last.to.version)?.is_none() {
            return Ok(last.to.clone());
        }
        let is_usable = |quarantine: &mut Quarantine, version: VersionId| -> Result<bool> {
            match quarantine.find(self, version) {
                Ok(None) => {}
                Ok(Some(_)) | Err(Error::NoVersion { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
            match self.check_files(version) {
                Ok(()) => Ok(true),
                // The files of an old version may be collected.
                Err(Error::File { .. } | Error::Chain { .. } | Error::NoVersion { .. }) => {
                    Ok(false)
                }
                Err(error) => Err(error),
            }
        };
        let mut refused = BTreeSet::new();
        let mut end = Some(last.number.saturating_add(1));
        while let Some(before) = end {
            let page = self.moves(pointer, Some(before), PAGE)?;
            for entry in &page {
                // Another writer can put any move into the log.
                if self.trust.check_move(&self.name, pointer, entry).is_err() {
                    continue;
                }
                let version = entry.to.version;
                if refused.insert(version) && is_usable(quarantine, version)? {
                    return Ok(self.version(version)?.link());
                }
            }
            end = page.last().map(|oldest| oldest.number).filter(|number| *number > 1);
        }
        let mut next = Some(last.to.version);
        while let Some(version) = next {
            if refused.insert(version) && is_usable(quarantine, version)? {
                return Ok(self.version(version)?.link());
            }
            next = self.version(version)?.parent.map(|parent| parent.version);
        }
        Err(Error::Refused(format!(
            "pointer `{pointer}` of model `{}` has no version to go back to that is not in \
             quarantine; promote another version first",
            self.name
        )))
    }
}

/// A change of the quarantine.
struct Change<'a> {
    kind: MoveKind,
    version: VersionId,
    by: &'a str,
    reason: &'a str,
}
