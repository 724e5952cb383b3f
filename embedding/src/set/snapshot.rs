//! A checkpoint of one moment that is written while training goes on.
//!
//! [`TableSet::begin_snapshot`] copies no row (filters of keys that wait it writes): it ends the era, and from then on a row that changes is kept
//! as it was (see `table::snapshot`). [`TableSet::advance_snapshot`], at the end of a step, copies so many
//! rows on into the part that is next, and hands parts that are complete to background tasks of the pool
//! that encode, hash, write and sync them. Where they are behind, nothing is copied: the step does not wait.
//! [`TableSet::finish_snapshot`] does at once what is left.
//!
//! # Invariants
//! * The files are those that [`TableSet::checkpoint`] would have written at the beginning, byte for byte:
//!   where parts are cut is decided there, from the rows of each slot, and in which order they are copied is
//!   the order of slots.
//! * Parts in memory: the one being filled, and those being written, which are more than one only while they
//!   have at most [`HELD_BYTES`] together.
//!
//! # Concurrency
//! A task owns what it writes. The tables belong to whoever has `&mut`, as in every phase.
//!
//! # Crash consistency
//! As a checkpoint's: files are written and synced below a folder that the caller stages and renames.

mod files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::{Files, Task, Workers};
use zillion_feature::{FeatureKey, SLOTS};

use super::checkpoint::counts_exactly;
use super::{TableSet, each};
use crate::candidates::Candidate;
use crate::error::{Error, Result};
use crate::part::{
    CandidateParts, MAX_PART_ROWS, PartInfo, PartRows, TableParts, part_count, part_slots,
};
use crate::shape::TableShape;
pub(super) use files::sync;
use files::{Content, Job};

/// What is written beside training may take this much memory where it is more than one part.
const HELD_BYTES: u64 = 256 << 20;

/// What copying a row costs; an empty slot costs one.
const ROW_COST: u64 = 16;

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
    /// The epoch that it began in.
    epoch: u32,
    /// The filters of tables that count keys in one: written at the beginning, because a push may halve all
    /// counters of a slot at once.
    filters: Vec<Option<CandidateParts>>,
    /// By table, and in a table full rows before narrow ones, and rows before candidates.
    jobs: Vec<Job>,
    written: Vec<Option<PartInfo>>,
    /// The job that is being filled, or will be.
    next: usize,
    filling: Option<Filling>,
    running: Vec<(usize, Task<Result<PartInfo>>)>,
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
        self.begin_snapshot_in_parts(workers, folder, files, MAX_PART_ROWS)
    }

    /// [`TableSet::begin_snapshot`] with parts of at most `limit` rows.
    pub(crate) fn begin_snapshot_in_parts(
        &mut self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        limit: u64,
    ) -> Result<()> {
        if self.snapshot.is_some() {
            return Err(Error::mismatch("*", "a checkpoint is being written; finish it first"));
        }
        for shape in &self.shapes {
            files.create_dir(folder.join("tables").join(shape.name()))?;
        }
        let jobs: Vec<Job> =
            (0..self.shapes.len()).flat_map(|table| self.jobs_of(table, limit)).collect();
        let tables = 0..self.shapes.len();
        let filters = tables.map(|table| self.write_filter(workers, folder, files, table, limit));
        let filters = filters.collect::<Result<_>>()?;
        let epoch = self.eras.epoch();
        let era = self.eras.cut().ok_or_else(|| {
            let reason =
                "there are no more epochs to count in; write checkpoints while nothing trains";
            Error::mismatch("*", reason)
        })?;
        self.seal_changes();
        let tables = self.shapes.len();
        each(workers, &mut self.shards, |_, shard| {
            (0..tables).for_each(|table| shard.table_mut(table).begin_snapshot(era));
            Ok(())
        })?;
        self.snapshot = Some(Box::new(Snapshot {
            files: files.clone(),
            folder: folder.to_owned(),
            epoch,
            written: jobs.iter().map(|_| None).collect(),
            jobs,
            filters,
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

    /// The files that a table will have.
    fn jobs_of(&self, table: usize, limit: u64) -> Vec<Job> {
        let shape = &self.shapes[table];
        let jobs = |by_slot: Vec<u64>, (is_rows, is_narrow): (bool, bool), row_bytes: usize| {
            let parts = part_count(&by_slot, limit);
            (0..parts).map(move |part| {
                let rows = by_slot[part_slots(part, parts)].iter().sum::<u64>();
                let bytes = rows * row_bytes as u64;
                Job { table, is_rows, is_narrow, part, parts, rows, bytes }
            })
        };
        let mut all: Vec<Job> =
            jobs(self.full_rows(table), (true, false), PartRows::row_bytes(shape)).collect();
        if let Some(narrow) = &shape.narrow {
            let row_bytes = PartRows::row_bytes(&narrow.shape);
            all.extend(jobs(self.narrow_rows(table), (true, true), row_bytes));
        }
        if counts_exactly(shape) {
            let owner = |slot: usize| self.shards[self.map.shard_of(slot)].table(table);
            let by_slot = (0..SLOTS).map(|slot| owner(slot).slot_candidates(slot) as u64).collect();
            all.extend(jobs(by_slot, (false, false), size_of::<(FeatureKey, Candidate)>()));
        }
        all
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
            let rows = match job.is_rows {
                true => owner.slot_rows(slot),
                false => owner.slot_candidates(slot),
            };
            let cost = 1 + rows as u64 * ROW_COST;
            if cost > snapshot.credit {
                return Ok(());
            }
            snapshot.credit -= cost;
            self.copy_next_slot(snapshot, workers)?;
        }
        if snapshot.closing.is_none() && snapshot.written.iter().all(Option::is_some) {
            let (files, folder) = (snapshot.files.clone(), snapshot.folder.clone());
            let names = self.shapes.iter().map(|shape| shape.name().to_owned()).collect();
            snapshot.closing = Some(workers.spawn(move || sync(&files, &folder, names)));
        }
        Ok(())
    }

    /// Copies the next slot, and hands the part over with its last one.
    fn copy_next_slot(&mut self, snapshot: &mut Snapshot, workers: &Workers) -> Result<()> {
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
        self.copy_before(&job, slot, &mut filling.content)?;
        let table = self.shards[shard].table_mut(job.table);
        match job.is_rows {
            true if job.is_narrow => table.narrow_slot_written(slot),
            true => table.slot_written(slot),
            false => table.candidates_mut().into_iter().for_each(|c| c.slot_written(slot)),
        }
        filling.slot += 1;
        if filling.slot < part_slots(job.part, job.parts).end {
            snapshot.filling = Some(filling);
            return Ok(());
        }
        snapshot.begin_writing(filling.content, self.shapes[job.table].clone(), workers);
        let is_followed = job.is_rows && !job.is_narrow && self.shapes[job.table].narrow.is_some();
        if job.part + 1 == job.parts && !is_followed {
            for shard in &mut self.shards {
                let table = shard.table_mut(job.table);
                if !job.is_rows {
                    table.candidates_mut().into_iter().for_each(|c| c.end_snapshot());
                } else if let Some(kept) = table.end_snapshot() {
                    snapshot.dropping.push(workers.spawn(move || drop(kept)));
                }
            }
        }
        Ok(())
    }

    /// Adds what a slot had when the snapshot began.
    fn copy_before(&self, job: &Job, slot: usize, content: &mut Content) -> Result<()> {
        let owner = self.shards[self.map.shard_of(slot)].table(job.table);
        match content {
            Content::Rows(rows) => {
                owner.for_each_before(slot, |key, stored| {
                    if stored.is_narrow == job.is_narrow {
                        rows.push(key, self.eras.stored(stored));
                    }
                })?;
            }
            Content::Candidates(candidates) => candidates.extend(owner.candidates_before(slot)),
        }
        Ok(())
    }

    /// Whether [`TableSet::finish_snapshot`] would not have to wait: everything is written, or has failed.
    /// False where no checkpoint has begun.
    pub fn snapshot_is_ready(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| {
            snapshot.failure.is_some() || snapshot.closing.as_ref().is_some_and(Task::is_done)
        })
    }

    /// Writes what is left of the checkpoint that has begun, and returns what the manifest must keep: the
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
        let (this, files, folder) = (&*self, &snapshot.files, &snapshot.folder);
        let rest = &snapshot.jobs[snapshot.next..];
        let written = workers.map(rest.len(), |i| {
            let (job, shape) = (rest[i], &this.shapes[rest[i].table]);
            let mut content = Content::new(&job, shape);
            part_slots(job.part, job.parts)
                .try_for_each(|slot| this.copy_before(&job, slot, &mut content))?;
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

    /// The manifest's entries.
    fn listing(&self, snapshot: &mut Snapshot) -> Vec<TableParts> {
        type Infos = (Vec<PartInfo>, Vec<PartInfo>, Vec<PartInfo>);
        let mut infos: Vec<Infos> = Vec::new();
        infos.resize_with(self.shapes.len(), Default::default);
        for (job, info) in snapshot.jobs.iter().zip(&mut snapshot.written) {
            let (rows, narrow, candidates) = &mut infos[job.table];
            match job.is_rows {
                true if job.is_narrow => narrow.extend(info.take()),
                true => rows.extend(info.take()),
                false => candidates.extend(info.take()),
            }
        }
        let sum = |parts: &[PartInfo]| parts.iter().map(|part| part.rows).sum::<u64>();
        let filters = std::mem::take(&mut snapshot.filters);
        let entry =
            |((shape, (parts, narrow, candidates)), filter): ((&Arc<TableShape>, Infos), _)| {
                let waits = counts_exactly(shape);
                TableParts {
                    table: shape.name().to_owned(),
                    rows: sum(&parts) + sum(&narrow),
                    dirty_epoch: snapshot.epoch,
                    parts,
                    narrow: shape
                        .narrow
                        .is_some()
                        .then(|| CandidateParts { rows: sum(&narrow), parts: narrow }),
                    candidates: waits
                        .then(|| CandidateParts { rows: sum(&candidates), parts: candidates }),
                    filter,
                }
            };
        self.shapes.iter().zip(infos).zip(filters).map(entry).collect()
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
                table.candidates_mut().into_iter().for_each(|c| c.end_snapshot());
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
