//! Snapshots: checkpoints of one moment. They are written while training goes on.
//!
//! [`TableSet::begin_snapshot`] copies no row. It ends the current snapshot generation. From then
//! on, the old content of a row is kept before the row changes (see `snapshot::table`). The old
//! counts of candidates are kept in the same way. The caller calls [`TableSet::advance_snapshot`]
//! at the end of a step. This call copies a number of rows into the next part, and hands complete
//! parts to background tasks of the pool, which encode, hash, write and sync them. If these tasks
//! are late, the call copies nothing, so the step does not wait. [`TableSet::finish_snapshot`] does
//! all remaining work at once.
//!
//! # Invariants
//! * The files of a whole checkpoint have the same bytes as the files that `checkpoint_oracle`
//!   would have written at the beginning of the snapshot. The files of a checkpoint of changes hold
//!   only the rows that changed. The boundaries of parts are decided at the beginning, from the
//!   number of rows of each slot. Rows are copied in slot order.
//! * At any time, memory holds the part that is being filled and the parts that are being written.
//!   More than one part is being written only if these parts take at most [`HELD_BYTES`] together.
//!
//! # Concurrency
//! A task owns the content that it writes. Only the holder of `&mut` changes the tables, as in
//! every other phase.
//!
//! # Crash consistency
//! Files are written and synced below a folder. The caller creates this folder under a temporary
//! name and renames it at the end, as for every checkpoint.

pub(crate) mod files;
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

/// The number of bytes of memory that parts may take together while they are written beside
/// training. A single part may be larger.
pub(crate) const HELD_BYTES: u64 = 256 << 20;

/// The cost of copying a row, in units of the cost of visiting an empty slot.
pub(crate) const ROW_COST: u64 = 16;
/// The cost of checking whether a row has changed, in the same unit as [`ROW_COST`].
pub(crate) const LOOK_COST: u64 = 3;

/// The content of the file that is being filled.
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
    /// The dirty epoch in which the checkpoint began.
    pub(crate) epoch: u32,
    /// The generation that ended when the checkpoint began.
    pub(crate) generation: u32,
    /// Whether the checkpoint holds only the changes of the tables that can be written so.
    pub(crate) holds_changes: bool,
    /// The jobs that write the files of the checkpoint, ordered by table. In a table, full rows
    /// come first, then narrow rows, candidates and the filter.
    pub(crate) jobs: Vec<Job>,
    pub(crate) written: Vec<Option<Written>>,
    /// The index of the job that is being filled or will be filled next.
    pub(crate) next: usize,
    pub(crate) filling: Option<Filling>,
    pub(crate) running: Vec<(usize, Task<Result<Written>>)>,
    /// The tasks that free the images that tables no longer need. Returning memory to the system
    /// takes time, so it is not done in a step.
    pub(crate) dropping: Vec<Task<()>>,
    /// The task that syncs the folders after all files have been written; `None` before that.
    pub(crate) closing: Option<Task<Result<()>>>,
    /// The cost of copying that is still allowed, in the same unit as [`ROW_COST`].
    pub(crate) credit: u64,
    pub(crate) failure: Option<Error>,
}

impl Snapshot {
    /// Returns the slot that is copied next.
    pub(crate) fn slot(&self) -> usize {
        match (&self.filling, self.jobs.get(self.next)) {
            (Some(filling), _) => filling.slot,
            (None, Some(job)) => job.place.slots().start,
            (None, None) => SLOTS,
        }
    }

    /// Returns whether memory has room for another part in addition to the parts that are being
    /// written.
    pub(crate) fn has_room(&self, job: &Job, workers: &Workers) -> bool {
        let held: u64 = self.running.iter().map(|(running, _)| self.jobs[*running].bytes).sum();
        // The other half of the threads is left to the background work of training.
        let tasks = (workers.threads() / 2).max(1);
        self.running.is_empty() || self.running.len() < tasks && held + job.bytes <= HELD_BYTES
    }

    /// Hands the content of the current part to a task that writes it.
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

    /// Collects the results of the tasks that have finished.
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

    /// Records the error that made the checkpoint fail, and stops the tasks of the checkpoint.
    pub(crate) fn fail(&mut self, failure: Error) {
        self.failure = Some(failure);
        self.stop();
    }

    pub(crate) fn stop(&mut self) {
        self.filling = None;
        self.running.drain(..).for_each(|(_, task)| task.cancel());
        self.closing.take().into_iter().for_each(Task::cancel);
    }

    /// Returns the bytes of memory that the parts of a table take.
    pub(crate) fn part_bytes(&self, table: usize) -> u64 {
        let filling = self.filling.as_ref().map(|_| self.next);
        let held = self.running.iter().map(|(job, _)| *job).chain(filling);
        held.map(|job| self.jobs[job]).filter(|job| job.table == table).map(|job| job.bytes).sum()
    }
}

impl Drop for Snapshot {
    /// Cancels the tasks and waits for their end, because the owner of the folder may remove the
    /// folder after this.
    fn drop(&mut self) {
        self.stop();
    }
}
