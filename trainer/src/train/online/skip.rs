//! Rewinds that leave batches out.
//!
//! A rewind first puts the versions with a bad batch into quarantine, then records in the log which
//! batches are left out, and then removes the checkpoints that contain such a batch. A run that is
//! killed in between finds the record when it starts again, and goes on from there.

use std::path::Path;

use zillion_device::Files;
use zillion_stream::{Decision, DecisionLog, LogOptions, first_decision, read_decisions};

use super::super::Run;
use super::super::opening::{After, Open};
use super::super::prepare::Start;
use super::judge::{is_before, log_of};
use crate::checkpoint::{Checkpoint, RunDir};
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::online::Trip;

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
        let folder = log_of(self.output.dir.path());
        let files = &self.options.files;
        let to = last_batch(&folder)? + 1;
        let mut log = DecisionLog::open(files, &folder, LogOptions::default())?;
        let (from, reason) = (trip.from, trip.reason.clone());
        log.append(&Decision::Skip { from, to, reason })?;
        log.sync()?;
        drop(log);
        observer.note(&format!("batches {from} to {} are left out", to - 1));
        remove_bad_checkpoints(&self.output.dir, files)?;
        self.options.resume = true;
        self.reopen(After::default(), open, observer)
    }
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
    let mut skips = Vec::new();
    for entry in read_decisions(&log, first)? {
        if let (number, Decision::Skip { from, .. }) = entry? {
            skips.push((number, from));
        }
    }
    let steps = dir.steps()?;
    let mut good = None;
    for &step in steps.iter().rev() {
        let checkpoint = Checkpoint::open(dir.checkpoint_path(step)?)?;
        let link = checkpoint.manifest.stream.as_ref();
        let next = link.map_or(0, |link| link.next_decision);
        let is_good = skips.iter().all(|&(number, from)| number < next || is_before(link, from));
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
        None => Err(Error::Unsupported(
            "all kept checkpoints contain batches that the log leaves out; raise `train.keep`, and \
             begin from the last good version in another folder (`train.warm_start`, `run.output`)"
                .to_owned(),
        )),
    }
}
