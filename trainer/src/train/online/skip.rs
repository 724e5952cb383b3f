//! Rewinds that leave batches out.
//!
//! A rewind first puts the versions with a bad batch into quarantine, which moves the pointer back.
//! Then it looks for its way back, records in the log which batches are left out, and removes the
//! checkpoints that contain such a batch. A run that is killed in between finds the record when it
//! starts again, and goes on from there. Without a way back, it removes nothing, and records that
//! the batches stay. If the way back cannot be looked for, the run ends, and no bad version is
//! served meanwhile.

use std::path::{Path, PathBuf};

use zillion_device::Files;
use zillion_stream::{Decision, DecisionLog, LogLock, LogOptions, first_decision, read_decisions};

use super::super::Run;
use super::super::opening::{After, Open};
use super::super::prepare::Start;
use super::way_back::{WayBack, find_way_around, find_way_back, newest_good};
use crate::checkpoint::RunDir;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::observer::Observer;
use crate::online::{Trip, stream_folder};

/// A gap of a log: the number of its decision, the first batch that is left out, and the first
/// batch after the gap.
pub(super) type Gap = (u64, u64, u64);

impl Run {
    /// Sets the run back to a checkpoint before the bad batches, and leaves these batches out from
    /// now on. If the way back is lost, the batches stay in the model: their versions go into
    /// quarantine all the same, and nothing is published until the gate passes. The feed must have
    /// ended.
    pub(super) fn skip_bad_batches(
        &mut self,
        trip: &Trip,
        lock: &LogLock,
        open: &mut Open<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Start> {
        if let Some(saving) = self.output.saving.take() {
            saving.abandon(self.client.as_mut());
        }
        self.quarantine(trip, observer)?;
        let way = find_way_back(&self.job, &self.output.dir, trip.from)?;
        let files = &self.options.files;
        if let WayBack::Lost(problem) = way {
            let last = keep_batches(lock, files, trip, &problem)?;
            tracing::warn!(
                problem,
                "batches {} to {last} stay in the model, because the way back is lost; no version \
                 is published until the gate passes: restore the messages and rewind the run by \
                 hand, or begin from the last good version in another folder (`train.warm_start`, \
                 `run.output`)",
                trip.from
            );
            observer.note(&format!(
                "batches {} to {last} stay in the model, because the way back is lost ({problem}); \
                 no version is published until the gate passes",
                trip.from
            ));
        } else {
            let last = leave_out(lock, files, trip.from, &trip.reason)?;
            observer.note(&format!("batches {} to {last} are left out", trip.from));
            remove_bad_checkpoints(&self.job, &self.output.dir, files)?;
        }
        self.forget_request()?;
        self.options.resume = true;
        self.reopen(After::default(), open, observer)
    }
}

/// Records that the batches from `from` to the last one in the log are left out from now on.
/// Returns the number of the last one.
pub(super) fn leave_out(lock: &LogLock, files: &Files, from: u64, reason: &str) -> Result<u64> {
    let mut writer = DecisionLog::open_locked(files, lock, LogOptions::default())?;
    let last = last_batch(lock.folder())?;
    let reason = reason.to_owned();
    writer.append(&Decision::Skip { from, to: last + 1, reason, unread: None })?;
    writer.sync()?;
    Ok(last)
}

/// Records that the batches of a rewind stay in the model, because the way back is lost. Returns
/// the number of the last batch.
fn keep_batches(lock: &LogLock, files: &Files, trip: &Trip, problem: &str) -> Result<u64> {
    let mut writer = DecisionLog::open_locked(files, lock, LogOptions::default())?;
    let last = last_batch(lock.folder())?;
    let reason = format!("{}; {problem}", trip.reason);
    writer.append(&Decision::Keep { from: trip.from, to: last + 1, reason })?;
    writer.sync()?;
    Ok(last)
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

/// Returns the gaps of a log.
pub(super) fn read_skips(log: &Path) -> Result<Vec<Gap>> {
    let mut skips = Vec::new();
    for entry in read_decisions(log, first_decision(log)?)? {
        // A reset of the streams may leave out decisions without a batch.
        if let (number, Decision::Skip { from, to, .. }) = entry?
            && from < to
        {
            skips.push((number, from, to));
        }
    }
    Ok(skips)
}

/// Returns the batches of a log that stay in the model although a rewind should have left them out:
/// for each decision, its number, the first one and the first one after them.
pub(super) fn read_keeps(log: &Path) -> Result<Vec<Gap>> {
    let mut keeps = Vec::new();
    for entry in read_decisions(log, first_decision(log)?)? {
        match entry? {
            (number, Decision::Keep { from, to, .. }) => keeps.push((number, from, to)),
            // An operator has rewound the run over these batches later.
            (_, Decision::Skip { from, .. }) => keeps.retain(|keep: &Gap| keep.1 < from),
            _ => {}
        }
    }
    Ok(keeps)
}

/// Removes the checkpoints that contain a batch which a later decision leaves out.
///
/// # Errors
/// Returns an error if the run could not go on without these checkpoints. Then none is removed.
pub(super) fn remove_bad_checkpoints(job: &Job, dir: &RunDir, files: &Files) -> Result<()> {
    let log = log_of(dir.path());
    let newest = dir.steps()?.last().copied();
    if !log.is_dir() || newest.is_none() {
        return Ok(());
    }
    let gaps = read_skips(&log)?;
    if newest_good(dir, &gaps)?.map(|(step, _)| step) == newest {
        return Ok(());
    }
    match find_way_around(job, dir, &gaps)? {
        WayBack::Checkpoint { step, .. } => dir.remove_after(step, files),
        WayBack::Beginning => dir.remove_all(files),
        WayBack::Lost(problem) => Err(Error::Refused(format!(
            "{}: the log leaves out batches that the newest checkpoint has, and {problem}; restore \
             what is missing, or begin from the last good version in another folder \
             (`train.warm_start`, `run.output`)",
            dir.path().display()
        ))),
    }
}

/// Returns the path of the log of a run.
pub(super) fn log_of(run: &Path) -> PathBuf {
    stream_folder(run).join("log")
}
