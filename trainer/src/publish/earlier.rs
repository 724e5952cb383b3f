//! The versions that a run has published behind the state from which it repeats its log.
//!
//! A run that was killed or rewound publishes its states a second time. It finds the version of
//! each state here, so that none is published twice and no pointer is led through old states. There
//! may be any number of them: a checkpoint can be late, and a rewind of the gate goes back for
//! minutes.
//!
//! # Invariants
//! A run publishes the states of its log in the order of the log, and version numbers grow. So the
//! versions of a repetition are found in ascending order, and those before the last one that was
//! found are not looked at again. Between them may be versions of other runs, and those of states
//! that a rewind has left out. In memory are two numbers of each version.

use std::collections::VecDeque;
use std::sync::Arc;

use zillion_registry::{Model, Quarantine, VersionId, VersionManifest};

use super::RunId;
use super::recent::{LOOKED_AT, Seen, read};
use crate::error::Result;

/// The number of versions that are listed at once.
const PAGE: usize = 1000;

/// The place in the versions of a model behind which the versions of a repetition are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// The versions behind this one are searched.
    Behind(VersionId),
    /// The newest versions are searched, because the run has published at most one.
    Newest,
}

/// The versions of a run that a repetition of its log has not reached yet.
#[derive(Debug)]
pub(super) struct Earlier {
    run: RunId,
    /// The versions of any run whose manifests were not read yet, in ascending order.
    unread: VecDeque<VersionId>,
    /// The versions of the run before those, with their steps, in ascending order.
    read: VecDeque<(VersionId, u64)>,
    /// A version of the run that is not in quarantine, and its step.
    usable: Option<(VersionId, u64)>,
}

impl Earlier {
    /// Lists the versions of a model from a place on.
    pub(super) fn list(model: &Model, run: &RunId, begin: Begin) -> Result<Self> {
        let (mut unread, mut end) = (VecDeque::new(), None);
        let (limit, behind) = match begin {
            Begin::Behind(version) => (PAGE, version),
            Begin::Newest => (LOOKED_AT, VersionId(0)),
        };
        loop {
            let page = model.page(end, limit)?;
            end = page.last().copied();
            let is_last = begin == Begin::Newest || end.is_none_or(|oldest| oldest <= behind);
            for version in page.into_iter().filter(|version| *version > behind) {
                unread.push_front(version);
            }
            if is_last {
                return Ok(Self { run: run.clone(), unread, read: VecDeque::new(), usable: None });
            }
        }
    }

    /// Finds the next version of a step that is wanted, and leaves those before it behind. Returns
    /// `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if a manifest cannot be read, or the error of `is_wanted`. The search can
    /// then be repeated.
    pub(super) fn find(
        &mut self,
        model: &Model,
        step: u64,
        mut is_wanted: impl FnMut(&VersionManifest) -> Result<bool>,
    ) -> Result<Option<Arc<VersionManifest>>> {
        for at in 0..self.read.len() {
            let (version, of) = self.read[at];
            if of == step
                && let Seen::Own(manifest) = read(model, &self.run, version)?
                && is_wanted(&manifest)?
            {
                self.read.drain(..=at);
                return Ok(Some(manifest));
            }
        }
        while let Some(&version) = self.unread.front() {
            let seen = read(model, &self.run, version)?;
            if let Seen::Own(manifest) = seen
                && manifest.compacts().is_none()
            {
                let of = manifest.origin.step;
                if of == step && is_wanted(&manifest)? {
                    self.read.clear();
                    self.unread.pop_front();
                    return Ok(Some(manifest));
                }
                self.read.push_back((version, of));
            }
            self.unread.pop_front();
        }
        Ok(None)
    }

    /// Returns whether the run has published a state behind a step for which the last search has
    /// found no version. Versions in quarantine do not count: a rewind has left their states out.
    ///
    /// # Errors
    /// Returns an error if the versions in quarantine or their ancestors cannot be read.
    pub(super) fn has_later(&mut self, model: &Model, step: u64) -> Result<bool> {
        let is_left = |version: VersionId| self.read.front().is_some_and(|next| version >= next.0);
        if self.usable.is_some_and(|(version, of)| of > step && is_left(version)) {
            return Ok(true);
        }
        let mut quarantine: Option<Quarantine> = None;
        for &(version, of) in self.read.iter().rev().filter(|(_, of)| *of > step) {
            let quarantine = match &mut quarantine {
                Some(known) => known,
                unknown => unknown.insert(model.quarantined()?),
            };
            if quarantine.find(model, version)?.is_none() {
                self.usable = Some((version, of));
                return Ok(true);
            }
        }
        Ok(false)
    }
}
