//! A checkpoint of one moment that is written while training goes on.
//!
//! [`TableSet::begin_snapshot`] copies nothing: it ends the generation, and from then on a row that
//! changes is kept as it was (see `table::snapshot`), and so is what is counted of keys that wait.
//! [`TableSet::advance_snapshot`], at the end of a step, copies so many rows on into the part that
//! is next, and hands parts that are complete to background tasks of the pool that encode, hash,
//! write and sync them. Where they are behind, nothing is copied: the step does not wait.
//! [`TableSet::finish_snapshot`] does at once what is left.
//!
//! # Invariants
//! * The files of a whole checkpoint are those that `checkpoint_oracle` would have written at the
//!   beginning, byte for byte; those of changes hold the rows of it that changed. Where parts are
//!   cut is decided there, from the rows of each slot, and in which order they are copied is the
//!   order of slots.
//! * Parts in memory: the one being filled, and those being written, which are more than one only
//!   while they have at most [`HELD_BYTES`] together.
//!
//! # Concurrency
//! A task owns what it writes. The tables belong to whoever has `&mut`, as in every phase.
//!
//! # Crash consistency
//! As a checkpoint's: files are written and synced below a folder that the caller stages and
//! renames.

mod files;
mod follow;
pub(crate) mod generations;
mod images;
pub(crate) mod kept;
mod listing;
pub(crate) mod marks;
mod restore;
mod set;
mod table;

use std::path::PathBuf;
use std::sync::Arc;

use zillion_device::{Files, Task, Workers};
use zillion_feature::SLOTS;

use crate::error::{Error, Result};
use crate::shape::TableShape;
pub(crate) use crate::snapshot::files::sync;
use crate::snapshot::files::{Content, Job, Written};
use zillion_rows::part::part_slots;

/// The memory that parts may take while they are written beside training, where that is more than
/// one part.
pub(crate) const HELD_BYTES: u64 = 256 << 20;

/// The cost of copying a row; an empty slot costs one.
pub(crate) const ROW_COST: u64 = 16;
/// The cost of looking whether a row has changed.
pub(crate) const LOOK_COST: u64 = 3;

/// The content that is being copied.
#[derive(Debug)]
pub(crate) struct Filling {
    pub(crate) content: Content,
    /// The slot that is copied next.
    pub(crate) slot: usize,
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) files: Files,
    pub(crate) folder: PathBuf,
    /// The epoch that it began in, and the generation that ended then.
    pub(crate) epoch: u32,
    pub(crate) generation: u32,
    /// By table, and in a table rows before what is counted of keys that wait, full ones before
    /// narrow ones.
    pub(crate) jobs: Vec<Job>,
    pub(crate) written: Vec<Option<Written>>,
    /// The job that is being filled, or will be.
    pub(crate) next: usize,
    pub(crate) filling: Option<Filling>,
    pub(crate) running: Vec<(usize, Task<Result<Written>>)>,
    /// The images that tables do not need any more: giving memory back takes its time.
    pub(crate) dropping: Vec<Task<()>>,
    /// Syncs the folders when all files are there.
    pub(crate) closing: Option<Task<Result<()>>>,
    /// The cost that may still be spent on copying.
    pub(crate) credit: u64,
    pub(crate) failure: Option<Error>,
}

impl Snapshot {
    /// The slot that is copied next.
    pub(crate) fn slot(&self) -> usize {
        match (&self.filling, self.jobs.get(self.next)) {
            (Some(filling), _) => filling.slot,
            (None, Some(job)) => part_slots(job.part, job.parts).start,
            (None, None) => SLOTS,
        }
    }

    /// Whether another part may be held beside those that are being written.
    pub(crate) fn has_room(&self, job: &Job, workers: &Workers) -> bool {
        let held: u64 = self.running.iter().map(|(running, _)| self.jobs[*running].bytes).sum();
        // The other half of the threads stays with what training does in the background.
        let tasks = (workers.threads() / 2).max(1);
        self.running.is_empty() || self.running.len() < tasks && held + job.bytes <= HELD_BYTES
    }

    /// Hands a part over to be written.
    pub(crate) fn begin_writing(
        &mut self,
        content: Content,
        shape: Arc<TableShape>,
        workers: &Workers,
    ) {
        self.jobs[self.next].bytes = content.bytes(&self.jobs[self.next], &shape);
        let (files, folder, job) = (self.files.clone(), self.folder.clone(), self.jobs[self.next]);
        let task = workers.spawn(move || content.write(&files, &folder, &shape, &job));
        self.running.push((self.next, task));
        self.next += 1;
    }

    /// Takes what the tasks have done.
    pub(crate) fn collect(&mut self) -> Result<()> {
        let (done, running) = self.running.drain(..).partition(|(_, task)| task.is_done());
        self.running = running;
        self.dropping.retain(|task| !task.is_done());
        let done: Vec<_> = done;
        done.into_iter().try_for_each(|(job, task)| {
            self.written[job] = Some(task.join()?);
            Ok(())
        })
    }

    /// Remembers why there will be no checkpoint, and ends what is being done for it.
    pub(crate) fn fail(&mut self, failure: Error) {
        self.failure = Some(failure);
        self.stop();
    }

    pub(crate) fn stop(&mut self) {
        self.filling = None;
        self.running.drain(..).for_each(|(_, task)| task.cancel());
        self.closing.take().into_iter().for_each(Task::cancel);
    }

    /// Bytes of a table's parts in memory.
    pub(crate) fn part_bytes(&self, table: usize) -> u64 {
        let filling = self.filling.as_ref().map(|_| self.next);
        let held = self.running.iter().map(|(job, _)| *job).chain(filling);
        held.map(|job| self.jobs[job]).filter(|job| job.table == table).map(|job| job.bytes).sum()
    }
}

impl Drop for Snapshot {
    /// Waits for all writers: none may write into a folder that its owner is about to remove.
    fn drop(&mut self) {
        self.stop();
    }
}
