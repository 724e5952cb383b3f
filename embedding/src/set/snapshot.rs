//! A checkpoint of one moment that is written while training goes on.
//!
//! [`TableSet::begin_snapshot`] copies nothing: it ends the era, and from then on a row that changes is kept
//! as it was (see `table::snapshot`), and so is what is counted of keys that wait. [`TableSet::advance_snapshot`], at the end of a step, copies so many
//! rows on into the part that is next, and hands parts that are complete to background tasks of the pool
//! that encode, hash, write and sync them. Where they are behind, nothing is copied: the step does not wait.
//! [`TableSet::finish_snapshot`] does at once what is left.
//!
//! # Invariants
//! * The files of a whole checkpoint are those that [`TableSet::checkpoint`] would have written at the beginning, byte
//!   for byte; those of changes hold the rows of it that changed. Where parts are cut is decided there, from the
//!   rows of each slot, and in which order they are copied is the order of slots.
//! * Parts in memory: the one being filled, and those being written, which are more than one only while they
//!   have at most [`HELD_BYTES`] together.
//!
//! # Concurrency
//! A task owns what it writes. The tables belong to whoever has `&mut`, as in every phase.
//!
//! # Crash consistency
//! As a checkpoint's: files are written and synced below a folder that the caller stages and renames.

mod files;
mod listing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::{Files, Task, Workers};
use zillion_feature::SLOTS;

use super::marks::SnapshotMark;
use super::{TableSet, each};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::shape::TableShape;
pub(super) use files::sync;
use files::{Content, Job, Kind, Written};
use zillion_rows::part::{MAX_PART_ROWS, TableParts, part_slots};

/// What is written beside training may take this much memory where it is more than one part.
const HELD_BYTES: u64 = 256 << 20;

/// What copying a row costs; an empty slot costs one.
const ROW_COST: u64 = 16;
/// What it costs to see whether a row has changed.
const LOOK_COST: u64 = 3;

/// The content that is being copied.
#[derive(Debug)]
struct Filling {
    content: Content,
    /// The next slot.
    slot: usize,
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub(super) struct Snapshot {
    files: Files,
    folder: PathBuf,
    /// The epoch that it began in, and the era that ended then.
    epoch: u32,
    era: u32,
    /// By table, and in a table rows before what is counted of keys that wait, full ones before narrow ones.
    jobs: Vec<Job>,
    written: Vec<Option<Written>>,
    /// The job that is being filled, or will be.
    next: usize,
    filling: Option<Filling>,
    running: Vec<(usize, Task<Result<Written>>)>,
    /// What tables kept and do not need any more: giving memory back takes its time.
    dropping: Vec<Task<()>>,
    /// Syncs the folders when all files are there.
    closing: Option<Task<Result<()>>>,
    /// What may be spent on copying.
    credit: u64,
    failure: Option<Error>,
}

impl TableSet {
    /// Begins a checkpoint of the tables as they are, below `folder`, which is made if absent. Costs time in
    /// proportion to the slots; no row is copied.
    ///
    /// # Errors
    /// Where the disk refuses to make folders, or a checkpoint has begun already.
    pub fn begin_snapshot(
        &mut self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
    ) -> Result<()> {
        self.begin_snapshot_in_parts(workers, folder, files, MAX_PART_ROWS, None)
    }

    /// Begins a checkpoint that holds, of tables without whole-table rules whose rows do not grow, only the rows that
    /// changed and the keys that went since another one; everything else is whole. It is restored on top of that one.
    ///
    /// # Errors
    /// As [`TableSet::begin_snapshot`]; [`Error::Mismatch`] where `since` is not the mark of one of the last two
    /// checkpoints that were finished (or restored) since [`TableSet::follow_snapshots`].
    pub fn begin_changes(
        &mut self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        since: SnapshotMark,
    ) -> Result<()> {
        self.begin_snapshot_in_parts(workers, folder, files, MAX_PART_ROWS, Some(since))
    }

    /// [`TableSet::begin_snapshot`] or [`TableSet::begin_changes`] with as many parts as a whole table of at most
    /// `limit` rows a part has.
    pub(crate) fn begin_snapshot_in_parts(
        &mut self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        limit: u64,
        since: Option<SnapshotMark>,
    ) -> Result<()> {
        if self.snapshot.is_some() {
            return Err(Error::mismatch("*", "a checkpoint is being written; finish it first"));
        }
        let since = since.map(|mark| self.era_of(mark)).transpose()?;
        for shape in &self.shapes {
            files.create_dir(folder.join("tables").join(shape.name()))?;
        }
        let jobs: Vec<Job> =
            (0..self.shapes.len()).flat_map(|table| self.jobs_of(table, limit, since)).collect();
        let epoch = self.eras.epoch();
        let era = self.eras.cut().ok_or_else(|| {
            let reason =
                "there are no more epochs to count in; write checkpoints while nothing trains";
            Error::mismatch("*", reason)
        })?;
        self.seal_changes();
        let tables = self.shapes.len();
        each(workers, &mut self.shards, |_, shard| {
            for table in 0..tables {
                shard.table_mut(table).begin_snapshot(era);
                shard.table_mut(table).cut_departed(era);
            }
            Ok(())
        })?;
        self.snapshot = Some(Box::new(Snapshot {
            files: files.clone(),
            folder: folder.to_owned(),
            epoch,
            era,
            written: jobs.iter().map(|_| None).collect(),
            jobs,
            next: 0,
            filling: None,
            running: Vec::new(),
            dropping: Vec::new(),
            closing: None,
            credit: 0,
            failure: None,
        }));
        Ok(())
    }

    /// Goes on with the checkpoint that has begun: copies about `rows` rows on, where they can be written.
    /// Does nothing without one. What goes wrong is said by [`TableSet::finish_snapshot`].
    pub fn advance_snapshot(&mut self, workers: &Workers, rows: usize) {
        let Some(mut snapshot) = self.snapshot.take() else { return };
        if let Err(e) = self.advance(&mut snapshot, workers, rows as u64 * ROW_COST) {
            self.end_table_snapshots();
            snapshot.fail(e);
        }
        self.snapshot = Some(snapshot);
    }

    fn advance(&mut self, snapshot: &mut Snapshot, workers: &Workers, credit: u64) -> Result<()> {
        if snapshot.failure.is_some() {
            return Ok(());
        }
        snapshot.collect()?;
        snapshot.credit += credit;
        while let Some(&job) = snapshot.jobs.get(snapshot.next) {
            if snapshot.filling.is_none() && !snapshot.has_room(&job, workers) {
                snapshot.credit = 0;
                return Ok(());
            }
            let slot = snapshot.slot();
            let owner = self.shards[self.map.shard_of(slot)].table(job.table);
            let cost = 1 + job.kind.in_slot(owner, slot) as u64
                * if job.since.is_some() { LOOK_COST } else { ROW_COST };
            if cost > snapshot.credit {
                return Ok(());
            }
            let copied = self.copy_next_slot(snapshot, workers)?;
            let copying = if job.since.is_some() { copied * ROW_COST } else { 0 };
            snapshot.credit = snapshot.credit.saturating_sub(cost + copying);
        }
        if snapshot.closing.is_none() && snapshot.written.iter().all(Option::is_some) {
            let (files, folder) = (snapshot.files.clone(), snapshot.folder.clone());
            let names = self.shapes.iter().map(|shape| shape.name().to_owned()).collect();
            snapshot.closing = Some(workers.spawn(move || sync(&files, &folder, names)));
        }
        Ok(())
    }

    /// Copies the next slot, and hands the part over with its last one. Returns the rows that were copied.
    fn copy_next_slot(&mut self, snapshot: &mut Snapshot, workers: &Workers) -> Result<u64> {
        let job = snapshot.jobs[snapshot.next];
        let slot = snapshot.slot();
        let shape = &self.shapes[job.table];
        let mut filling = match snapshot.filling.take() {
            Some(filling) => filling,
            None => Filling { content: Content::new(&job, shape), slot },
        };
        let shard = self.map.shard_of(slot);
        if let Some(failure) = self.shards[shard].table_mut(job.table).snapshot_failure() {
            return Err(failure);
        }
        let copied = self.copy_before(&job, slot, snapshot.era, &mut filling.content)?;
        let table = self.shards[shard].table_mut(job.table);
        match job.kind {
            Kind::Rows => table.slot_written(slot),
            Kind::Narrow => table.narrow_slot_written(slot),
            Kind::Candidates | Kind::Filter => {
                table.gate_mut().into_iter().for_each(|gate| gate.slot_written(slot));
            }
        }
        filling.slot += 1;
        if filling.slot < part_slots(job.part, job.parts).end {
            snapshot.filling = Some(filling);
            return Ok(copied);
        }
        snapshot.begin_writing(filling.content, self.shapes[job.table].clone(), workers);
        // What is kept of rows is needed until those of both widths are written.
        let is_followed = job.kind == Kind::Rows && self.shapes[job.table].narrow.is_some();
        if job.part + 1 == job.parts && !is_followed {
            for shard in &mut self.shards {
                let table = shard.table_mut(job.table);
                if !matches!(job.kind, Kind::Rows | Kind::Narrow) {
                    table.gate_mut().into_iter().for_each(Gate::end_snapshot);
                } else if let Some(kept) = table.end_snapshot() {
                    snapshot.dropping.push(workers.spawn(move || drop(kept)));
                }
            }
        }
        Ok(copied)
    }

    /// Adds what a slot had when the snapshot began, the end of `era`. Returns the rows that were added.
    fn copy_before(&self, job: &Job, slot: usize, era: u32, content: &mut Content) -> Result<u64> {
        let owner = self.shards[self.map.shard_of(slot)].table(job.table);
        match content {
            Content::Rows { rows, gone } => {
                let before = rows.keys().len();
                owner.for_each_before(slot, job.kind.is_narrow(), job.since, |key, stored| {
                    rows.push(key, self.eras.stored(stored));
                })?;
                let changed = &rows.keys()[before..];
                if let Some((gone, since)) = gone.as_mut().zip(job.since) {
                    // Who went and came back has a row that is new.
                    let is_back = |key: &u64| changed.binary_search(key).is_ok();
                    let keys = owner.gone_between(slot, since, era).into_iter();
                    gone.extend(keys.filter(|key| !is_back(key)));
                }
                Ok(changed.len() as u64)
            }
            Content::Candidates(candidates) => {
                let before = candidates.len();
                candidates.extend(owner.candidates_before(slot));
                Ok((candidates.len() - before) as u64)
            }
            Content::Filter(blocks) => {
                let before = blocks.len();
                let filter = owner.gate().and_then(Gate::filter).into_iter();
                let of_slot = filter.flat_map(|filter| filter.before_in_slot(slot));
                blocks.extend(of_slot.map(|(number, words)| (slot, number, words)));
                Ok((blocks.len() - before) as u64)
            }
        }
    }

    /// Whether [`TableSet::finish_snapshot`] would not have to wait: everything is written, or has failed.
    /// False where no checkpoint has begun.
    pub fn snapshot_is_ready(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| {
            snapshot.failure.is_some() || snapshot.closing.as_ref().is_some_and(Task::is_done)
        })
    }

    /// Writes what is left of the checkpoint that has begun, and returns what the manifest must keep: of a whole one the
    /// same as [`TableSet::checkpoint`] at the beginning.
    ///
    /// # Errors
    /// Where the disk refuses, or there was no memory for a row that had to be kept; files may then be left,
    /// for the caller to sweep. [`Error::Mismatch`] where none has begun.
    pub fn finish_snapshot(&mut self, workers: &Workers) -> Result<Vec<TableParts>> {
        let Some(mut snapshot) = self.snapshot.take() else {
            return Err(Error::mismatch("*", "no checkpoint has begun; begin one first"));
        };
        let finished = self.finish(&mut snapshot, workers);
        self.end_table_snapshots();
        if finished.is_ok() {
            self.mark(snapshot.era);
        }
        finished
    }

    fn finish(&mut self, snapshot: &mut Snapshot, workers: &Workers) -> Result<Vec<TableParts>> {
        if let Some(failure) = snapshot.failure.take() {
            return Err(failure);
        }
        while snapshot.filling.is_some() {
            self.copy_next_slot(snapshot, workers)?;
        }
        for shard in &mut self.shards {
            for table in 0..self.shapes.len() {
                shard.table_mut(table).snapshot_failure().map_or(Ok(()), Err)?;
            }
        }
        // Nothing changes meanwhile: the parts are gathered side by side, as those of a plain checkpoint.
        let (this, files, folder, era) = (&*self, &snapshot.files, &snapshot.folder, snapshot.era);
        let rest = &snapshot.jobs[snapshot.next..];
        let written = workers.map(rest.len(), |i| {
            let (job, shape) = (rest[i], &this.shapes[rest[i].table]);
            let mut content = Content::new(&job, shape);
            part_slots(job.part, job.parts)
                .try_for_each(|slot| this.copy_before(&job, slot, era, &mut content).map(drop))?;
            content.write(files, folder, shape, &job)
        });
        for (place, info) in snapshot.written[snapshot.next..].iter_mut().zip(written) {
            *place = Some(info?);
        }
        for (job, task) in snapshot.running.drain(..) {
            snapshot.written[job] = Some(task.join()?);
        }
        match snapshot.closing.take() {
            Some(closing) => closing.join()?,
            None => {
                let names = self.shapes.iter().map(|shape| shape.name().to_owned()).collect();
                sync(&snapshot.files, &snapshot.folder, names)?;
            }
        }
        Ok(self.listing(snapshot))
    }

    /// Gives the checkpoint that has begun up; fine without one. What was written of it is left, for the caller
    /// to sweep; nothing is written any more when this returns.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot = None;
        self.end_table_snapshots();
    }

    fn end_table_snapshots(&mut self) {
        for shard in &mut self.shards {
            for table in 0..self.shapes.len() {
                let table = shard.table_mut(table);
                drop(table.end_snapshot());
                table.gate_mut().into_iter().for_each(Gate::end_snapshot);
            }
        }
    }
}

impl Snapshot {
    /// The slot that is copied next.
    fn slot(&self) -> usize {
        match (&self.filling, self.jobs.get(self.next)) {
            (Some(filling), _) => filling.slot,
            (None, Some(job)) => part_slots(job.part, job.parts).start,
            (None, None) => SLOTS,
        }
    }

    /// Whether another part may be held beside those that are being written.
    fn has_room(&self, job: &Job, workers: &Workers) -> bool {
        let held: u64 = self.running.iter().map(|(running, _)| self.jobs[*running].bytes).sum();
        // The other half of the threads stays with what training does in the background.
        let tasks = (workers.threads() / 2).max(1);
        self.running.is_empty() || self.running.len() < tasks && held + job.bytes <= HELD_BYTES
    }

    /// Hands a part over to be written.
    fn begin_writing(&mut self, content: Content, shape: Arc<TableShape>, workers: &Workers) {
        self.jobs[self.next].bytes = content.bytes(&self.jobs[self.next], &shape);
        let (files, folder, job) = (self.files.clone(), self.folder.clone(), self.jobs[self.next]);
        let task = workers.spawn(move || content.write(&files, &folder, &shape, &job));
        self.running.push((self.next, task));
        self.next += 1;
    }

    /// Takes what the tasks have done.
    fn collect(&mut self) -> Result<()> {
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
    fn fail(&mut self, failure: Error) {
        self.failure = Some(failure);
        self.stop();
    }

    fn stop(&mut self) {
        self.filling = None;
        self.running.drain(..).for_each(|(_, task)| task.cancel());
        self.closing.take().into_iter().for_each(Task::cancel);
    }

    /// Bytes of a table's parts in memory.
    pub(super) fn part_bytes(&self, table: usize) -> u64 {
        let filling = self.filling.as_ref().map(|_| self.next);
        let held = self.running.iter().map(|(job, _)| *job).chain(filling);
        held.map(|job| self.jobs[job]).filter(|job| job.table == table).map(|job| job.bytes).sum()
    }
}

impl Drop for Snapshot {
    /// Nobody may be writing into a folder that its owner is about to remove.
    fn drop(&mut self) {
        self.stop();
    }
}
