//! The publications of a run that repeats its log. They find the versions of the first time.

use std::sync::Arc;

use zillion_nn::Params;
use zillion_ps::Publishing;
use zillion_registry::{Link, VersionId, VersionManifest};

use super::super::RunId;
use super::super::branch::Branch;
use super::super::dense::Trained;
use super::super::earlier::{Begin, Earlier};
use super::super::owner::check_owner;
use super::super::recent::{Seen, read};
use super::{Published, Publisher, STABLE, Wish};
use crate::error::Result;

/// The version of a state that a run reaches again.
#[derive(Debug)]
pub(crate) enum Repeated {
    /// The registry has the version.
    There(Arc<VersionManifest>),
    /// The registry has no version of the state, but later ones of the run, which are not in
    /// quarantine. It was removed, or it could not be published.
    Passed,
    /// The registry has no version of the state and no later one.
    Missing,
}

impl Publisher {
    /// Finds the version of the present state of a run that repeats its log. The states must come
    /// in the order of the log.
    ///
    /// # Errors
    /// Returns an error if the registry does not answer. The search can be repeated.
    pub(crate) fn find_repeated(
        &mut self,
        step: u64,
        rows: &mut dyn Publishing,
        params: &Params,
    ) -> Result<Repeated> {
        let trained = Trained::of(params, self.onnx.as_deref())?;
        let mut earlier = match self.earlier.take() {
            Some(earlier) => earlier,
            None => Earlier::list(&self.model, &self.run, self.find_begin()?)?,
        };
        let model = self.model.clone();
        // The next publication looks for the files of the whole chain. A look at each repetition
        // would cost a request for each of its files.
        let found = earlier.find(&model, step, |version| {
            let files = version.files().into_iter();
            let files: Vec<_> =
                files.map(|(name, file)| (version.version, name, file.bytes)).collect();
            Ok(self.is_of_state(version, rows, &trained, Wish::default())?
                && model.check_some_files(version.version, &files).is_ok())
        });
        let repeated = match found {
            Ok(Some(version)) => Ok(Repeated::There(version)),
            Ok(None) => earlier.has_later(&model, step).map(|has_later| match has_later {
                true => Repeated::Passed,
                false => Repeated::Missing,
            }),
            Err(error) => Err(error),
        };
        self.earlier = Some(earlier);
        repeated
    }

    /// Takes the version of the present state as published. If the run was killed before it moved
    /// the pointer, moves the pointer.
    ///
    /// # Errors
    /// Returns an error if the pointer cannot be read, or must be moved and cannot.
    pub(crate) fn take_repeated(
        &mut self,
        version: Arc<VersionManifest>,
        rows: &mut dyn Publishing,
    ) -> Result<Published> {
        // The rows are those of the version, so the next delta has the changes since now.
        self.know(version.version, rows.end_dirty_epoch()?);
        let moved = self.point_to_existing(&version)?;
        self.note_published(&version);
        Ok(self.describe(version, moved, true, None))
    }

    /// Returns the version that the run has published or found last.
    pub(crate) fn newest(&self) -> Option<&Link> {
        self.newest.as_ref()
    }

    /// Returns the place behind which the versions of a repetition are.
    fn find_begin(&self) -> Result<Begin> {
        if let Some(link) = &self.newest
            && let Seen::Own(found) = read(&self.model, &self.run, link.version)?
            && found.link() == *link
        {
            return Ok(Begin::Behind(link.version));
        }
        // The version was removed, or the job names another registry since. Without a checkpoint,
        // the run repeats all its versions.
        let first = self.places.first(&self.config.registry, self.model.name());
        Ok(first.map_or(Begin::Newest, |first| Begin::Behind(VersionId(first.0.saturating_sub(1)))))
    }

    /// Takes note of a version of a run over streams, which the pointer stands on or has passed.
    pub(super) fn note_published(&mut self, version: &VersionManifest) {
        self.newest = Some(version.link());
        let place = (&*self.config.registry, self.model.name());
        if let Err(error) = self.places.note(place, version.version, self.config.pointer()) {
            tracing::warn!("the next publication will write this down again: {error}");
        }
    }

    /// Checks that a run over streams may move the pointer, given its versions.
    pub(super) fn check_owner_of(&self, branch: &mut Branch) -> Result<()> {
        let pointer = self.config.pointer().unwrap_or(STABLE);
        let has_moved = self.places.has_moved(&self.config.registry, self.model.name(), pointer);
        check_owner(branch, (&self.model, &self.run), &self.config, has_moved)
    }

    /// Checks that a run over streams may move the pointer.
    pub(crate) fn check_pointer(&self) -> Result<()> {
        let pointer = self.config.pointer().unwrap_or(STABLE);
        let run: &RunId = &self.run;
        let mut branch = Branch::open(None, &self.model, run, pointer)?;
        self.check_owner_of(&mut branch)
    }
}
