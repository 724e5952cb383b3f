//! The newest versions of a model, among which a publisher searches for versions of its run.

use std::collections::VecDeque;
use std::sync::Arc;

use zillion_registry::{Error as RegistryError, Model, VersionId, VersionManifest};

use super::RunId;
use crate::error::Result;

/// The number of newest versions that are searched for versions of a run.
pub(super) const LOOKED_AT: usize = 64;

/// The newest versions of a model. Each manifest is read when a search first needs it.
#[derive(Debug)]
pub(super) struct Recent {
    run: RunId,
    /// The versions, the newest first.
    versions: VecDeque<(VersionId, Seen)>,
}

/// The result of reading the manifest of a version.
#[derive(Debug)]
pub(super) enum Seen {
    /// The manifest was not read yet.
    Unread,
    /// The version cannot be used: another run or another signer published it, it is damaged, or it
    /// was removed.
    Foreign,
    /// The version belongs to the run.
    Own(Arc<VersionManifest>),
}

impl Recent {
    /// Lists the newest versions of a model, for a publisher of `run`.
    pub(super) fn list(model: &Model, run: &RunId) -> Result<Self> {
        let versions = model.page(None, LOOKED_AT)?.into_iter();
        Ok(Self { run: run.clone(), versions: versions.map(|id| (id, Seen::Unread)).collect() })
    }

    /// Adds a version that the run has published after all the others. Returns whether no other
    /// version was published between the newest known one and this one.
    pub(super) fn push(&mut self, version: Arc<VersionManifest>) -> bool {
        let newest = self.versions.front().map_or(0, |(newest, _)| newest.0);
        let is_next = newest.checked_add(1) == Some(version.version.0);
        self.versions.push_front((version.version, Seen::Own(version)));
        self.versions.truncate(LOOKED_AT);
        is_next
    }

    /// Returns the newest version of any run, or `None` if there is no version.
    pub(super) fn newest(&self) -> Option<VersionId> {
        self.versions.front().map(|(newest, _)| *newest)
    }

    /// Finds the version that the run published last. Returns `None` if the run published none of
    /// the newest versions. A base that repeats an earlier version is passed over: if no version
    /// stands on it, the run was killed between the two.
    pub(super) fn last_of_run(&mut self, model: &Model) -> Result<Option<Arc<VersionManifest>>> {
        self.find(model, |version| version.compacts().is_none())
    }

    /// Finds the base that repeats a version. Returns `None` if there is none among the newest
    /// versions.
    pub(super) fn repeat_of(
        &mut self,
        model: &Model,
        repeated: &VersionManifest,
    ) -> Result<Option<Arc<VersionManifest>>> {
        self.find(model, |version| {
            version.compacts() == Some(repeated.version) && version.parity == repeated.parity
        })
    }

    /// Returns the versions of a step of the run, the newest first.
    pub(super) fn of_step(
        &mut self,
        model: &Model,
        step: u64,
    ) -> Result<Vec<Arc<VersionManifest>>> {
        let mut found = Vec::new();
        self.find(model, |version| {
            if version.origin.step == step && version.compacts().is_none() {
                found.push(version.clone());
            }
            false
        })?;
        Ok(found)
    }

    /// Finds a wanted version of the run.
    fn find(
        &mut self,
        model: &Model,
        mut is_wanted: impl FnMut(&Arc<VersionManifest>) -> bool,
    ) -> Result<Option<Arc<VersionManifest>>> {
        for (version, seen) in &mut self.versions {
            if matches!(seen, Seen::Unread) {
                *seen = read(model, &self.run, *version)?;
            }
            if let Seen::Own(manifest) = seen
                && is_wanted(manifest)
            {
                return Ok(Some(manifest.clone()));
            }
        }
        Ok(None)
    }
}

/// Reads the manifest of a version. A publisher that signs uses only the versions that it signed
/// itself. So its signature never covers the rows of another writer.
pub(super) fn read(model: &Model, run: &RunId, version: VersionId) -> Result<Seen> {
    match model.version(version) {
        Ok(manifest) if manifest.origin.run == run.0 && model.is_own(&manifest) => {
            Ok(Seen::Own(Arc::new(manifest)))
        }
        // A collection may have removed an old version since the listing.
        Ok(_) | Err(RegistryError::NoVersion { .. }) => Ok(Seen::Foreign),
        // Another writer's damaged or unsigned manifest must not keep a run from publishing, nor a
        // lost frame.
        Err(
            error @ (RegistryError::Manifest { .. }
            | RegistryError::File { .. }
            | RegistryError::Access(_)),
        ) => {
            tracing::warn!("version {version} is not a possible parent: {error}");
            Ok(Seen::Foreign)
        }
        Err(error) => Err(error.into()),
    }
}
