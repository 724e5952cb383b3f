//! The output of a run: its folder, its checkpoints and its versions.

use super::publish::PublishState;
use super::saving::Saving;
use crate::checkpoint::{Link, RunDir};
use crate::publish::RunId;

/// The state of a run's output.
pub(super) struct Output {
    pub(super) dir: RunDir,
    /// The id of the run, which its versions name as their origin.
    pub(super) id: RunId,
    /// The step of the newest checkpoint, so that no checkpoint is written twice.
    pub(super) checkpointed: Option<u64>,
    /// The checkpoint that can be the parent of the next one.
    pub(super) link: Option<Link>,
    /// The checkpoint that is being written.
    pub(super) saving: Option<Saving>,
    /// The state of publishing versions.
    pub(super) publishing: PublishState,
}
