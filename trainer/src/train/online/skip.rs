//! Rewinds that leave batches out.
//!
//! A rewind first puts the versions with a bad batch into quarantine, then records in the log which
//! batches are left out, and then removes the checkpoints that contain such a batch. A run that is
//! killed in between finds the record when it starts again, and goes on from there.

use std::path::{Path, PathBuf};

use zillion_device::Files;
use zillion_stream::{Decision, DecisionLog, LogOptions, first_decision, read_decisions};

use super::super::Run;
use super::super::opening::{After, Open};
use super::super::prepare::Start;
use crate::checkpoint::{Checkpoint, RunDir};
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::online::{SnapshotLink, Trip, stream_folder};

impl Run {
    /// Sets the run back to a checkpoint before the bad batches, and leaves these batches out from
    /// now on. The feed must have ended.
    pub(super) fn skip_bad_batches(
        &mut self,
        trip: &Trip,
        open: &mut Open<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Start> {
        if let Some(saving) = self.output.saving.take() {
            saving.abandon(self.client.as_mut());
        }
        self.quarantine(trip, observer)?;
        check_way_back(&self.output.dir, trip.from)?;
        let files = &self.options.files;
        let last = leave_out(&log_of(self.output.dir.path()), files, trip.from, &trip.reason)?;
        observer.note(&format!("batches {} to {last} are left out", trip.from));
        remove_bad_checkpoints(&self.output.dir, files)?;
        self.forget_request()?;
        self.options.resume = true;
        self.reopen(After::default(), open, observer)
    }
}

/// Records that the batches from `from` to the last one in the log are left out from now on.
/// Returns the number of the last one.
pub(super) fn leave_out(log: &Path, files: &Files, from: u64, reason: &str) -> Result<u64> {
    let mut writer = DecisionLog::open(files, log, LogOptions::default())?;
    let last = last_batch(log)?;
    writer.append(&Decision::Skip { from, to: last + 1, reason: reason.to_owned() })?;
    writer.sync()?;
    Ok(last)
}

/// Checks that the run can go back before a batch: to a kept checkpoint, or to the beginning.
pub(super) fn check_way_back(dir: &RunDir, from: u64) -> Result<()> {
    let is_whole = first_decision(log_of(dir.path()))? == 0;
    for step in dir.steps()?.into_iter().filter(|_| !is_whole) {
        let checkpoint = Checkpoint::open(dir.checkpoint_path(step)?)?;
        if is_before(checkpoint.manifest.stream.as_ref(), from) {
            return Ok(());
        }
    }
    if is_whole { Ok(()) } else { Err(no_way_back()) }
}

/// Makes the error of a rewind for which no kept checkpoint is early enough.
pub(super) fn no_way_back() -> Error {
    Error::Refused(
        "all kept checkpoints contain batches that must be left out; raise `train.keep`, and begin \
         from the last good version in another folder (`train.warm_start`, `run.output`)"
            .to_owned(),
    )
}

/// Returns the number of the last batch in a log.
fn last_batch(log: &Path) -> Result<u64> {
    let mut last = 0;
    for entry in read_decisions(log, first_decision(log)?)? {
        if let (_, Decision::Cut { batch, .. }) = entry? {
            last = batch;
        }
    }
    Ok(last)
}

/// Returns the gaps of a log: the number of each decision, the first batch that is left out, and
/// the first batch after the gap.
pub(super) fn read_skips(log: &Path) -> Result<Vec<(u64, u64, u64)>> {
    let mut skips = Vec::new();
    for entry in read_decisions(log, first_decision(log)?)? {
        if let (number, Decision::Skip { from, to, .. }) = entry? {
            skips.push((number, from, to));
        }
    }
    Ok(skips)
}

/// Removes the checkpoints that contain a batch which a later decision leaves out.
///
/// # Errors
/// Returns an error if no checkpoint before these batches exists any more, although the log does
/// not go back to its beginning.
pub(super) fn remove_bad_checkpoints(dir: &RunDir, files: &Files) -> Result<()> {
    let log = log_of(dir.path());
    if !log.is_dir() {
        return Ok(());
    }
    let first = first_decision(&log)?;
    let skips = read_skips(&log)?;
    let steps = dir.steps()?;
    let mut good = None;
    for &step in steps.iter().rev() {
        let checkpoint = Checkpoint::open(dir.checkpoint_path(step)?)?;
        let link = checkpoint.manifest.stream.as_ref();
        let next = link.map_or(0, |link| link.next_decision);
        let is_good = skips.iter().all(|&(number, from, _)| number < next || is_before(link, from));
        if is_good {
            good = Some(step);
            break;
        }
    }
    match good {
        Some(step) if Some(&step) != steps.last() => dir.remove_after(step, files),
        Some(_) => Ok(()),
        None if steps.is_empty() => Ok(()),
        None if first == 0 => dir.remove_all(files),
        None => Err(no_way_back()),
    }
}

/// Returns whether the state of a checkpoint has none of the batches from `from` on.
pub(super) fn is_before(link: Option<&SnapshotLink>, from: u64) -> bool {
    link.is_none_or(|link| link.batches < from)
}

/// Returns the path of the log of a run.
pub(super) fn log_of(run: &Path) -> PathBuf {
    stream_folder(run).join("log")
}
