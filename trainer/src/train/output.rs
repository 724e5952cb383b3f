//! The output of a run: its folder, its checkpoints and its versions.

use super::publish::PublishState;
use super::saving::Saving;
use crate::checkpoint::{Link, RunDir};
use crate::publish::RunId;

/// The output of a run.
pub(super) struct Output {
    pub(super) dir: RunDir,
    /// The name of this training in the versions that come from it.
    pub(super) id: RunId,
    /// The step of the newest checkpoint, so that none is written twice.
    pub(super) checkpointed: Option<u64>,
    /// The checkpoint that the next one can stand on.
    pub(super) link: Option<Link>,
    /// The checkpoint that is being written.
    pub(super) saving: Option<Saving>,
    /// The versions of the model, where the job asks for them.
    pub(super) publishing: PublishState,
}

impl Output {
    /// Returns the output of a run that has written nothing yet.
    pub(super) fn new(dir: RunDir, id: RunId) -> Self {
        let publishing = PublishState::default();
        Self { dir, id, checkpointed: None, link: None, saving: None, publishing }
    }
}
