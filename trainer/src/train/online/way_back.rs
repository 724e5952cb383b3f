//! The way back of a rewind: a checkpoint before the bad batches, or the beginning of the log, and
//! the messages that are read again from there.
//!
//! A rewind looks for its way back before it removes a checkpoint. Without a way back, it would
//! remove the only checkpoints from which the run can go on.

use std::path::Path;

use zillion_stream::first_decision;

use super::skip::{Gap, log_of};
use crate::checkpoint::{Checkpoint, RunDir};
use crate::error::Result;
use crate::job::Job;
use crate::online::{Needs, SnapshotLink, find_missing, newest_link, position_of};

/// The state from which a run can go on without the batches that a rewind leaves out.
#[derive(Debug)]
pub(super) enum WayBack {
    /// The checkpoint of this step. The run has learned from this number of batches there.
    Checkpoint {
        /// The step of the checkpoint.
        step: u64,
        /// The number of batches before the checkpoint.
        batches: u64,
    },
    /// The beginning of the log.
    Beginning,
    /// No state is left. The text says why.
    Lost(String),
}

/// Returns the way back of a run to a state without the batches from `from` on.
///
/// # Errors
/// Returns an error if a checkpoint or the log cannot be read.
pub(super) fn find_way_back(job: &Job, dir: &RunDir, from: u64) -> Result<WayBack> {
    let mut gaps = super::skip::read_skips(&log_of(dir.path()))?;
    gaps.push((u64::MAX, from, u64::MAX));
    find_way_around(job, dir, &gaps)
}

/// Returns the way back of a run to a state without the batches of some gaps.
///
/// # Errors
/// Returns an error if a checkpoint or the log cannot be read.
pub(super) fn find_way_around(job: &Job, dir: &RunDir, gaps: &[Gap]) -> Result<WayBack> {
    if let Some((step, newest)) = newest_good(dir, gaps)? {
        let batches = newest.as_ref().map_or(0, |link| link.batches);
        let way = WayBack::Checkpoint { step, batches };
        let place = format!("the checkpoint after batch {batches}");
        return check(job, dir.path(), newest.as_ref(), (way, &place));
    }
    let mut has_begun_elsewhere = job.train.warm_start.is_some();
    for step in dir.steps()? {
        let checkpoint = Checkpoint::open(dir.checkpoint_path(step)?)?;
        has_begun_elsewhere |= checkpoint.manifest.progress.begun_at > 0;
    }
    let no_beginning = if first_decision(log_of(dir.path()))? > 0 {
        "the log does not go back to its beginning"
    } else if has_begun_elsewhere {
        "the run has begun from a version or from the checkpoint of another run"
    } else {
        return check(job, dir.path(), None, (WayBack::Beginning, "its beginning"));
    };
    Ok(WayBack::Lost(format!("no kept checkpoint is early enough, and {no_beginning}")))
}

/// Returns the newest checkpoint without the batches of some gaps: its step and its state of the
/// feed.
///
/// # Errors
/// Returns an error if a checkpoint cannot be read.
pub(super) fn newest_good(
    dir: &RunDir,
    gaps: &[Gap],
) -> Result<Option<(u64, Option<SnapshotLink>)>> {
    for step in dir.steps()?.into_iter().rev() {
        let checkpoint = Checkpoint::open(dir.checkpoint_path(step)?)?;
        let newest = newest_link(dir.path(), &checkpoint)?;
        if is_good(checkpoint.manifest.stream.as_ref(), newest.as_ref(), gaps) {
            return Ok(Some((step, newest)));
        }
    }
    Ok(None)
}

/// Returns the way back if the messages that it reads again exist.
fn check(
    job: &Job,
    run: &Path,
    link: Option<&SnapshotLink>,
    (way, place): (WayBack, &str),
) -> Result<WayBack> {
    let needs = Needs::of(position_of(run, link)?, &log_of(run))?;
    Ok(match find_missing(job, &needs)? {
        None => way,
        Some(missing) => WayBack::Lost(format!(
            "the run would read its messages again from {place} on, but {missing}"
        )),
    })
}

/// Returns whether a checkpoint has none of the batches that gaps leave out. `first` is the state
/// of the feed with which the model was written, `newest` the one of its last renewal. A gap that
/// was decided before the newest state is not in the model: the checkpoint was written without it.
fn is_good(first: Option<&SnapshotLink>, newest: Option<&SnapshotLink>, gaps: &[Gap]) -> bool {
    let next = newest.map_or(0, |link| link.next_decision);
    gaps.iter()
        .all(|&(number, from, _)| number < next || first.is_none_or(|link| link.batches < from))
}
