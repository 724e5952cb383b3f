//! The versions of a run, as its publisher remembers them from one publication to the next.
//!
//! The publisher of a run is usually the only writer of the model. Then each new version continues
//! the version before, and nothing that was read or written earlier has changed. So the publisher
//! keeps the newest versions and the chain of the last one, and checks them before each publication
//! with requests whose number does not depend on the length of the chain:
//!
//! * no version of any run was published after the last one;
//! * the pointer has not moved since, and was not rolled back;
//! * the manifest of the last version is the same, and all files of that version exist with their
//!   sizes;
//! * some files of the ancestors exist with their sizes. The ancestors take turns, the base first,
//!   so that a lost file of any of them is found after a few publications.
//!
//! If one of these is not so, or if the registry does not answer, the memory is given up and
//! everything is read from the registry. The same happens after a publication that has failed.
//!
//! In memory are the manifests of at most 64 versions and of one chain, whose bytes the registry
//! bounds.

use std::sync::Arc;

use zillion_registry::{Chain, Model, PointerMove, VersionId, VersionManifest};

use super::RunId;
use super::parent::{read_chain_to_continue, read_last_move, rolled_back_to};
use super::recent::Recent;
use crate::error::Result;

/// The number of files of ancestors that are looked for before a publication.
const CHECKED_FILES: usize = 32;

/// The versions of a run that its publisher knows.
#[derive(Debug)]
pub(super) struct Branch {
    recent: Recent,
    /// The last move of the pointer, or `Some(None)` if it was never set. `None` if it was not read
    /// yet.
    last_move: Option<Option<PointerMove>>,
    /// The chain of the version that was published last, with the turn of its ancestors. `None` if
    /// no version was published since the branch was read.
    tail: Option<(Chain, Turn)>,
}

/// The place of the ancestor's file that is looked for next: the index of a version in the chain,
/// and the index of a file of that version.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    version: usize,
    file: usize,
}

impl Branch {
    /// Returns the branch that was kept since the last publication, if it is still what the
    /// registry has. Otherwise reads the branch anew.
    pub(super) fn open(
        kept: Option<Self>,
        model: &Model,
        run: &RunId,
        pointer: &str,
    ) -> Result<Self> {
        if let Some(mut kept) = kept {
            match kept.is_current(model, pointer) {
                Ok(true) => return Ok(kept),
                Ok(false) => {}
                // If the problem lasts, reading the branch finds it again.
                Err(error) => tracing::debug!("the versions of the run are read again: {error}"),
            }
        }
        Ok(Self { recent: Recent::list(model, run)?, last_move: None, tail: None })
    }

    /// Returns whether the registry still has the kept versions, and nothing newer.
    fn is_current(&mut self, model: &Model, pointer: &str) -> Result<bool> {
        let (Some((chain, turn)), Some(last_move)) = (&mut self.tail, &self.last_move) else {
            return Ok(false);
        };
        let Some(last) = chain.newest() else { return Ok(false) };
        if model.latest_since(last.version)? != Some(last.version) {
            return Ok(false);
        }
        let is_unmoved = match last_move {
            Some(known) => model.pointer_since(pointer, known)? == *known,
            None => read_last_move(model, pointer)?.is_none(),
        };
        let is_rolled_back = rolled_back_to(last_move.as_ref(), last.published_ms).is_some();
        if !is_unmoved || is_rolled_back || model.version(last.version)?.chain != last.chain {
            return Ok(false);
        }
        let files = last.files().into_iter();
        let mut files: Vec<_> =
            files.map(|(name, file)| (last.version, name, file.bytes)).collect();
        files.extend(turn.take_files(chain.versions()));
        model.check_some_files(last.version, &files)?;
        Ok(true)
    }

    /// Returns the versions of a step of the run, the newest first.
    pub(super) fn of_step(
        &mut self,
        model: &Model,
        step: u64,
    ) -> Result<Vec<Arc<VersionManifest>>> {
        self.recent.of_step(model, step)
    }

    /// Returns the chain that a new version of the run continues, or `None` if the new version must
    /// be a base.
    pub(super) fn chain_to_continue(
        &mut self,
        model: &Model,
        run: &RunId,
        pointer: &str,
    ) -> Result<Option<Chain>> {
        match &self.tail {
            Some((chain, _)) => Ok(Some(chain.clone())),
            None => read_chain_to_continue(model, run, &mut self.recent, || {
                let last = read_last_move(model, pointer)?;
                self.last_move = Some(last.clone());
                Ok(last)
            }),
        }
    }

    /// Finds the base that repeats a version. Returns `None` if the run has published no such base
    /// among the newest versions.
    pub(super) fn find_repeat(
        &mut self,
        model: &Model,
        repeated: &VersionManifest,
    ) -> Result<Option<Arc<VersionManifest>>> {
        self.recent.repeat_of(model, repeated)
    }

    /// Returns the number of deltas of the version that was published last, if its chain is known.
    pub(super) fn count_deltas(&self) -> Option<u64> {
        self.tail.as_ref().map(|(chain, _)| (chain.versions().len() as u64).saturating_sub(1))
    }

    /// Records a version that was published on `parent`. If another writer has published a version
    /// since the branch was opened, the branch will be read again.
    pub(super) fn push(&mut self, parent: Option<Chain>, version: Arc<VersionManifest>) {
        if !self.recent.push(version.clone()) {
            self.tail = None;
            return;
        }
        let turn = match (&parent, &self.tail) {
            (Some(_), Some((_, turn))) => *turn,
            _ => Turn::default(),
        };
        self.tail = Some((parent.unwrap_or_default().followed_by(version), turn));
    }

    /// Returns the newest version of any run when the branch was opened, or the version that this
    /// publisher has published since.
    pub(super) fn newest(&self) -> Option<VersionId> {
        self.recent.newest()
    }

    /// Returns the last move of the pointer, which is read if it is not known.
    pub(super) fn find_last_move(
        &mut self,
        model: &Model,
        pointer: &str,
    ) -> Result<Option<&PointerMove>> {
        if self.last_move.is_none() {
            self.last_move = Some(read_last_move(model, pointer)?);
        }
        Ok(self.last_move())
    }

    /// Returns whether the run has published one of the newest versions.
    pub(super) fn has_own_version(&mut self, model: &Model) -> Result<bool> {
        Ok(self.recent.last_of_run(model)?.is_some())
    }

    /// Returns the last move of the pointer that is known.
    pub(super) fn last_move(&self) -> Option<&PointerMove> {
        self.last_move.as_ref()?.as_ref()
    }

    /// Records a move of the pointer by the publisher.
    pub(super) fn record_move(&mut self, moved: &PointerMove) {
        self.last_move = Some(Some(moved.clone()));
    }
}

impl Turn {
    /// Returns the next files of the ancestors of the newest version of `chain`, each with its
    /// version and its number of bytes. After the last file, the turn begins anew.
    fn take_files(&mut self, chain: &[Arc<VersionManifest>]) -> Vec<(VersionId, String, u64)> {
        let ancestors = chain.split_last().map_or(&[][..], |(_, ancestors)| ancestors);
        let mut taken = Vec::new();
        while let Some(version) = ancestors.get(self.version) {
            let files = version.files().into_iter().skip(self.file);
            let before = taken.len();
            let files = files.take(CHECKED_FILES - before);
            taken.extend(files.map(|(name, file)| (version.version, name, file.bytes)));
            self.file += taken.len() - before;
            if taken.len() == CHECKED_FILES {
                return taken;
            }
            *self = Self { version: self.version + 1, file: 0 };
        }
        *self = Self::default();
        taken
    }
}
