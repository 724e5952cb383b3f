//! The output of a run: its folder, its checkpoints and its versions.

use zillion_device::Files;
use zillion_feature::Cursor;

use super::publish::PublishState;
use super::saving::Saving;
use crate::checkpoint::{Checkpoint, Link, RunBucket, RunDir, RunLock};
use crate::error::{Error, Result};
use crate::online::SnapshotLink;
use crate::publish::RunId;
use crate::run_record::Recorder;

/// The state of a run's output.
pub(super) struct Output {
    pub(super) dir: RunDir,
    /// The lock of the folder, which is held until the run ends. `None` if the run has servers, or
    /// if another trainer writes into the folder.
    pub(super) _lock: Option<RunLock>,
    /// The bucket of the run; `None` if its checkpoints are in folders.
    pub(super) bucket: Option<RunBucket>,
    /// The id of the run, which its versions name as their origin.
    pub(super) id: RunId,
    /// The step of the newest checkpoint and its position in the data, so that no checkpoint is
    /// written twice.
    pub(super) checkpointed: Option<(u64, Cursor)>,
    /// The checkpoint that can be the parent of the next one.
    pub(super) link: Option<Link>,
    /// The checkpoint that is being written.
    pub(super) saving: Option<Saving>,
    /// The number of checkpoints in a row that could not be written.
    pub(super) failed: u32,
    /// The state of the streams that the next checkpoint names; `None` if the run reads files.
    pub(super) stream: Option<SnapshotLink>,
    /// The record of the run; `None` if the run follows streams, or if another trainer writes it.
    pub(super) recorder: Option<Recorder>,
    /// The state of publishing versions.
    pub(super) publishing: PublishState,
}

impl Output {
    /// Brings what the bucket of the run has into the folder of the run, if there is a bucket.
    pub(super) fn refresh(&self) -> Result<()> {
        self.bucket.as_ref().map_or(Ok(()), RunBucket::fetch)
    }
}

/// Returns the steps of the checkpoints that the run keeps, in ascending order.
pub(super) fn kept_steps(dir: &RunDir, bucket: Option<&RunBucket>) -> Result<Vec<u64>> {
    bucket.map_or_else(|| dir.steps(), RunBucket::steps)
}

/// Removes the checkpoints of the steps after `step`, which must have a checkpoint.
pub(super) fn remove_after(
    step: u64,
    dir: &RunDir,
    bucket: Option<&RunBucket>,
    files: &Files,
) -> Result<()> {
    match bucket {
        Some(bucket) => bucket.remove_after(step),
        None => dir.remove_after(step, files),
    }
}

/// Checks that a checkpoint is still the newest one, now that no other process writes any.
pub(super) fn check_newest(
    dir: &RunDir,
    chosen: Option<&Checkpoint>,
    newest: Option<&Checkpoint>,
) -> Result<()> {
    let path = |checkpoint: Option<&Checkpoint>| checkpoint.map(|it| it.path().to_owned());
    if path(chosen) == path(newest) {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "another process wrote a checkpoint into {} while this one started; start it again",
        dir.path().display()
    )))
}
