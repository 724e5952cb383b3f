//! The functions of a set that begin, continue and end a snapshot of all tables.

use crate::admission::KeyAdmission;
use crate::error::{Error, Result};
use crate::set::{TableSet, each};
use crate::snapshot::files::sync;
use crate::snapshot::files::{Content, Job, Kind};
use crate::snapshot::marks::SnapshotMark;
use crate::snapshot::{Filling, LOOK_COST, ROW_COST, Snapshot};
use std::path::Path;
use zillion_device::{Files, Task, Workers};
use zillion_rows::part::{MAX_PART_ROWS, TableParts};

impl TableSet {
    /// Begins a checkpoint of the owned slots of the present tables ([`TableSet::own`]) below
    /// `folder`, which is created if it does not exist. The call takes time in proportion to the
    /// number of slots and copies no row.
    ///
    /// # Errors
    /// Returns an error if folders cannot be created, if a checkpoint has already begun, or if a
    /// table has rows in slots that are not owned.
    pub fn begin_snapshot(
        &mut self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
    ) -> Result<()> {
        self.begin_snapshot_in_parts(workers, folder, files, MAX_PART_ROWS, None)
    }

    /// Begins a checkpoint of the changes since another checkpoint. Both checkpoints are needed to
    /// restore the tables. If a table has no whole-table rule and its rows do not grow, the
    /// checkpoint holds only its changed rows and its removed keys. All other tables are written
    /// whole.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`TableSet::begin_snapshot`]. Returns
    /// [`Error::Misuse`] if `since` is not the mark of one of the last two checkpoints that were
    /// finished or restored since [`TableSet::follow_snapshots`].
    pub fn begin_changes(
        &mut self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        since: SnapshotMark,
    ) -> Result<()> {
        self.begin_snapshot_in_parts(workers, folder, files, MAX_PART_ROWS, Some(since))
    }

    /// Begins a snapshot as [`TableSet::begin_snapshot`] or [`TableSet::begin_changes`] does. The
    /// number of parts is the same as for a whole table whose parts have at most `limit` rows.
    pub(crate) fn begin_snapshot_in_parts(
        &mut self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        limit: u64,
        since: Option<SnapshotMark>,
    ) -> Result<()> {
        if self.snapshot.is_some() {
            return Err(Error::misuse("a checkpoint is being written; finish it first"));
        }
        let since = since.map(|mark| self.generation_of(mark)).transpose()?;
        self.check_owned()?;
        for shape in &self.shapes {
            files.create_dir(folder.join("tables").join(shape.name()))?;
        }
        let jobs: Vec<Job> =
            (0..self.shapes.len()).flat_map(|table| self.jobs_of(table, limit, since)).collect();
        let epoch = self.generations.epoch();
        let generation = self.generations.cut().ok_or_else(|| {
            let reason =
                "the numbers of snapshot generations are used up; restart training from a checkpoint";
            Error::misuse(reason)
        })?;
        self.seal_changes();
        each(workers, &mut self.shards, |_, shard| {
            shard.tables.iter_mut().for_each(|table| table.begin_snapshot(generation));
            Ok(())
        })?;
        self.snapshot = Some(Box::new(Snapshot {
            files: files.clone(),
            folder: folder.to_owned(),
            epoch,
            generation,
            holds_changes: since.is_some(),
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

    /// Continues the open checkpoint: copies about `rows` more rows if the writing tasks can take
    /// them. Does nothing if no checkpoint is open. Errors are returned by
    /// [`TableSet::finish_snapshot`].
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
            let owner = self.owner(job.table, slot);
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

    /// Copies the next slot to the current part. After the last slot of the part, hands the part to
    /// a task that writes it. Returns the number of entries that were copied.
    fn copy_next_slot(&mut self, snapshot: &mut Snapshot, workers: &Workers) -> Result<u64> {
        let job = snapshot.jobs[snapshot.next];
        let slot = snapshot.slot();
        let shape = &self.shapes[job.table];
        let mut filling = match snapshot.filling.take() {
            Some(filling) => filling,
            None => Filling { content: Content::new(&job, shape), slot },
        };
        let shard = self.map.shard_of(slot);
        if let Some(failure) = self.shards[shard].tables[job.table].snapshot_failure() {
            return Err(failure);
        }
        let copied = self.copy_before(&job, slot, snapshot.generation, &mut filling.content)?;
        let table = &mut self.shards[shard].tables[job.table];
        match job.kind {
            Kind::Rows | Kind::Narrow => table.rows_written(slot, job.kind.is_narrow()),
            Kind::Candidates | Kind::Filter => {
                table.candidates.iter_mut().for_each(|admission| admission.slot_written(slot));
            }
        }
        filling.slot += 1;
        if filling.slot < job.place.slots().end {
            snapshot.filling = Some(filling);
            return Ok(copied);
        }
        snapshot.begin_writing(filling.content, self.shapes[job.table].clone(), workers);
        // The images of rows are needed until the rows of both widths are written.
        let is_followed = job.kind == Kind::Rows && self.shapes[job.table].narrow.is_some();
        if job.is_last && !is_followed {
            for shard in &mut self.shards {
                let table = &mut shard.tables[job.table];
                if !matches!(job.kind, Kind::Rows | Kind::Narrow) {
                    table.candidates.iter_mut().for_each(KeyAdmission::end_snapshot);
                } else if let Some(kept) = table.snapshot.take() {
                    snapshot.dropping.push(workers.spawn(move || drop(kept)));
                }
            }
        }
        Ok(copied)
    }

    /// Adds the old content of a slot to `content`: the content at the end of `generation`, when
    /// the snapshot began. Returns the number of entries that were added.
    fn copy_before(
        &self,
        job: &Job,
        slot: usize,
        generation: u32,
        content: &mut Content,
    ) -> Result<u64> {
        let owner = self.owner(job.table, slot);
        match content {
            Content::Rows { rows, gone } => {
                let before = rows.keys().len();
                owner.for_each_before(slot, job.kind.is_narrow(), job.since, |key, stored| {
                    rows.push(key, self.generations.stored(stored));
                })?;
                let changed = &rows.keys()[before..];
                if let Some((gone, since)) = gone.as_mut().zip(job.since) {
                    // A key that was removed and came back has a new row.
                    let is_back = |key: &u64| changed.binary_search(key).is_ok();
                    let keys = owner.gone_between(slot, since, generation).into_iter();
                    gone.extend(keys.filter(|key| !is_back(key)));
                }
                Ok(changed.len() as u64)
            }
            Content::Candidates(candidates) => {
                let before = candidates.len();
                let counts = owner.counts().into_iter();
                candidates.extend(counts.flat_map(|counts| counts.before_in_slot(slot)));
                Ok((candidates.len() - before) as u64)
            }
            Content::Filter(blocks) => {
                let before = blocks.len();
                let filter = owner.filter().into_iter();
                let of_slot = filter.flat_map(|filter| filter.before_in_slot(slot));
                blocks.extend(of_slot.map(|(number, words)| (slot, number, words)));
                Ok((blocks.len() - before) as u64)
            }
        }
    }

    /// Returns whether [`TableSet::finish_snapshot`] would return without waiting, because
    /// everything has been written or has failed. Returns `false` if no checkpoint is open.
    pub fn snapshot_is_ready(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| {
            snapshot.failure.is_some() || snapshot.closing.as_ref().is_some_and(Task::is_done)
        })
    }

    /// Writes the rest of the open checkpoint, and returns the entries for the manifest. For a
    /// whole checkpoint, these are the entries that `checkpoint_oracle` would have returned when
    /// the checkpoint began.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if no checkpoint is open. Returns another error if a write fails,
    /// or if there was no memory for the old content of a row. The caller must then remove the
    /// files that were written before.
    pub fn finish_snapshot(&mut self, workers: &Workers) -> Result<Vec<TableParts>> {
        let Some(mut snapshot) = self.snapshot.take() else {
            return Err(Error::misuse("no checkpoint has begun; begin one first"));
        };
        let finished = self.finish(&mut snapshot, workers);
        self.end_table_snapshots();
        if finished.is_ok() {
            self.mark(snapshot.generation);
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
        self.tables_mut().try_for_each(|table| table.snapshot_failure().map_or(Ok(()), Err))?;
        // The tables do not change here, so the parts are gathered in parallel, like the parts of a
        // plain checkpoint.
        let (this, files, folder, generation) =
            (&*self, &snapshot.files, &snapshot.folder, snapshot.generation);
        let rest = &snapshot.jobs[snapshot.next..];
        let written = workers.map(rest.len(), |i| {
            let (job, shape) = (rest[i], &this.shapes[rest[i].table]);
            let mut content = Content::new(&job, shape);
            job.place.slots().try_for_each(|slot| {
                this.copy_before(&job, slot, generation, &mut content).map(drop)
            })?;
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

    /// Abandons the open checkpoint, if there is one. After this call has returned, no file is
    /// written. The caller must remove the files that were written before.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot = None;
        self.end_table_snapshots();
    }

    fn end_table_snapshots(&mut self) {
        for table in self.tables_mut() {
            table.snapshot = None;
            table.candidates.iter_mut().for_each(KeyAdmission::end_snapshot);
        }
    }
}
