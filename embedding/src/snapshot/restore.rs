//! Writing all tables to a checkpoint, and reading them back onto any number of shards.
//!
//! # Crash consistency
//! Parts are written and synced in place, below a folder that the caller stages and renames when all of
//! the checkpoint is there. Restoring replaces the tables when every part has been verified and read, and
//! not before: an error leaves them as they were.

use std::ops::Range;
use std::path::Path;

use zillion_device::{Files, Workers};
use zillion_feature::SLOTS;

use crate::admission::Gate;
use crate::error::{Error, Result};
use crate::set::{TableSet, each, empty_shards};
use crate::snapshot::generations::Eras;
use crate::snapshot::sync;
use crate::table::Table;
use zillion_rows::RowShape;
use zillion_rows::part::{
    ListedParts, MAX_PART_ROWS, Need, PartInfo, PartRows, RowPart, StoredCandidates, StoredFilter,
    TableParts, listed_parts, open_candidates, open_filters, open_narrow, open_rows, part_count,
    part_slots, write_candidates, write_filter, write_part, write_rows,
};

impl TableSet {
    /// Writes every table below `folder` (made if absent) and returns what the manifest must keep.
    /// Same rows, same bytes: for every number of shards and threads, and in whatever order the rows came.
    ///
    /// # Errors
    /// Where the disk refuses; parts may then be left, for the caller to sweep.
    pub fn checkpoint(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
    ) -> Result<Vec<TableParts>> {
        self.checkpoint_in_parts(workers, folder, files, MAX_PART_ROWS)
    }

    /// [`TableSet::checkpoint`] with parts of at most `limit` rows.
    pub(crate) fn checkpoint_in_parts(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        limit: u64,
    ) -> Result<Vec<TableParts>> {
        let tables = folder.join("tables");
        for shape in &self.shapes {
            files.create_dir(tables.join(shape.name()))?;
        }
        let cuts: Vec<usize> =
            (0..self.shapes.len()).map(|table| part_count(&self.full_rows(table), limit)).collect();
        let jobs: Vec<(usize, usize)> = cuts
            .iter()
            .enumerate()
            .flat_map(|(table, &parts)| (0..parts).map(move |part| (table, part)))
            .collect();
        let written = workers.map(jobs.len(), |job| {
            let (table, part) = jobs[job];
            let rows = self.gather(table, part, cuts[table], false)?;
            write_part(files, folder, &self.shapes[table], (part, cuts[table]), rows)
        });
        let mut written = written.into_iter();
        let mut manifest = Vec::with_capacity(self.shapes.len());
        for (shape, &parts) in self.shapes.iter().zip(&cuts) {
            let parts: Vec<PartInfo> = written.by_ref().take(parts).collect::<Result<_>>()?;
            let table = manifest.len();
            let narrow = self.write_narrow(workers, folder, files, table, limit)?;
            let candidates = self.write_candidates(workers, folder, files, table, limit)?;
            let filter = self.write_filter(workers, folder, files, table, limit)?;
            manifest.push(TableParts {
                table: shape.name().to_owned(),
                rows: parts.iter().map(|p| p.rows).sum::<u64>()
                    + narrow.as_ref().map_or(0, |narrow| narrow.rows),
                dirty_epoch: self.dirty_epoch(),
                parts,
                narrow,
                candidates,
                filter,
                changes: None,
            });
        }
        sync(files, folder, self.shapes.iter().map(|shape| shape.name().to_owned()).collect())?;
        Ok(manifest)
    }

    /// Writes the rows of one table that are not full yet, if its rows grow.
    fn write_narrow(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<ListedParts>> {
        let shape = &self.shapes[table];
        if shape.narrow.is_none() {
            return Ok(None);
        }
        let parts = part_count(&self.narrow_rows(table), limit);
        let written = workers.map(parts, |part| {
            let rows = self.gather(table, part, parts, true)?;
            write_rows(files, folder, shape, (part, parts), (rows, true))
        });
        Ok(Some(ListedParts::of(written.into_iter().collect::<Result<_>>()?)))
    }

    /// Writes the keys of one table that wait to be admitted, if it lets them wait.
    fn write_candidates(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<ListedParts>> {
        let shape = &self.shapes[table];
        if !shape.spec.admission.counts_exactly() {
            return Ok(None);
        }
        let owner = |slot: usize| self.shards[self.map.shard_of(slot)].table(table);
        let by_slot: Vec<u64> =
            (0..SLOTS).map(|slot| owner(slot).slot_candidates(slot) as u64).collect();
        let parts = part_count(&by_slot, limit);
        let written = workers.map(parts, |part| {
            let candidates =
                part_slots(part, parts).flat_map(|slot| owner(slot).candidates_in(slot));
            write_candidates(files, folder, shape, (part, parts), candidates)
        });
        Ok(Some(ListedParts::of(written.into_iter().collect::<Result<_>>()?)))
    }

    /// Writes the filter that keys of one table are counted in, if it has one.
    fn write_filter(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<ListedParts>> {
        let shape = &self.shapes[table];
        let Some(filter) = &shape.filter else { return Ok(None) };
        let gate = |slot: usize| self.shards[self.map.shard_of(slot)].table(table).gate();
        let blocks = |slot: usize| {
            let filter = gate(slot).and_then(Gate::filter).into_iter();
            filter
                .flat_map(move |f| f.in_slot(slot).map(move |(block, words)| (slot, block, words)))
        };
        let in_slot =
            |slot: usize| gate(slot).and_then(Gate::filter).map_or(0, |f| f.slot_len(slot));
        let by_slot: Vec<u64> = (0..SLOTS).map(|slot| in_slot(slot) as u64).collect();
        let parts = part_count(&by_slot, limit);
        let written = workers.map(parts, |part| {
            let contents = part_slots(part, parts).flat_map(blocks);
            write_filter(files, folder, (shape, filter), (part, parts), contents)
        });
        Ok(Some(ListedParts::of(written.into_iter().collect::<Result<_>>()?)))
    }

    /// Replaces all rows by those of a checkpoint. Training then goes on as if it had not stopped. Where
    /// changes are tracked, they are known from the end of the checkpoint's epoch on: which rows were evicted
    /// before is not in it. Entries that hold changes say what they stand on ([`TableParts::stand_on`]), and the chain
    /// is merged row by row.
    ///
    /// # Errors
    /// [`Error::Part`] names the file and what is wrong with it; [`Error::Mismatch`] a table that the
    /// checkpoint does not have, or the job. The tables are then as they were.
    pub fn restore(
        &mut self,
        workers: &Workers,
        folder: &Path,
        parts: &[TableParts],
    ) -> Result<()> {
        let shapes: Vec<&RowShape> = self.shapes.iter().map(|shape| shape.row()).collect();
        let listed = listed_parts(&shapes, parts)?;
        for (shape, table) in shapes.iter().zip(&listed) {
            for (is_job, is_stored, what) in [
                (shape.spec.admission.counts_exactly(), table.candidates.is_some(), "counts"),
                (shape.filter.is_some(), table.filter.is_some(), "filter"),
            ] {
                if is_job == is_stored {
                    continue;
                }
                let reason = match is_stored {
                    true => format!(
                        "the checkpoint has a {what} of keys that wait to be admitted and the job's admission has \
                         none"
                    ),
                    false => format!(
                        "the job's admission has a {what} of keys and the checkpoint has no {what}"
                    ),
                };
                let reason = format!("{reason}; use the job that it was written by");
                return Err(Error::mismatch(shape.name(), reason));
            }
            if let Some(cap) = shape.spec.row_limit().filter(|&cap| table.rows > cap) {
                return Err(Error::TooManyRows {
                    table: table.table.clone(),
                    rows: table.rows,
                    cap,
                });
            }
        }
        let opened = open_rows(workers, folder, &shapes, &listed, Need::State)?;
        let narrow = open_narrow(workers, folder, &shapes, &listed, Need::State)?;
        let candidates = open_candidates(workers, folder, &shapes, &listed)?;
        let filters = open_filters(workers, folder, &shapes, &listed)?;
        let mut shards = empty_shards(&self.shapes, &self.map)?;
        self.spill_shards(&mut shards)?;
        each(workers, &mut shards, |_, shard| {
            let slots = shard.slots();
            for (index, parts) in opened.iter().enumerate() {
                let table = shard.table_mut(index);
                for part in parts {
                    for row in part.rows_in(&slots) {
                        table.restore_row(part.key(row), part.stored(row))?;
                    }
                }
                narrow[index].iter().try_for_each(|part| restore_narrow(table, part, &slots))?;
                table.restored();
                candidates[index]
                    .iter()
                    .try_for_each(|part| restore_candidates(table, part, &slots))?;
                filters[index].iter().for_each(|part| restore_filter(table, part, &slots));
            }
            Ok(())
        })?;
        for (new, old) in shards.iter_mut().zip(&self.shards) {
            (0..opened.len()).for_each(|i| new.table_mut(i).keep_counters(old.table(i)));
        }
        self.shards = shards;
        let epoch = listed.iter().map(|t| t.dirty_epoch).max().unwrap_or(1).max(1);
        self.eras = Eras::of_epoch(epoch);
        self.snapshot = None;
        self.limit_candidates();
        self.begin_lists(workers)?;
        self.mark_restored();
        Ok(())
    }

    /// Rows of each slot of one table.
    pub(crate) fn slot_rows(&self, table: usize) -> Vec<u64> {
        let mut rows = Vec::with_capacity(SLOTS);
        for shard in &self.shards {
            rows.extend(shard.slots().map(|slot| shard.table(table).slot_rows(slot) as u64));
        }
        rows
    }

    /// The same of those that are full.
    pub(crate) fn full_rows(&self, table: usize) -> Vec<u64> {
        let all = self.slot_rows(table).into_iter();
        all.zip(self.narrow_rows(table)).map(|(all, narrow)| all - narrow).collect()
    }

    /// The same of those that are not.
    pub(crate) fn narrow_rows(&self, table: usize) -> Vec<u64> {
        let shards = self.shards.iter();
        let rows = shards.flat_map(|shard| {
            shard.slots().map(move |slot| shard.table(table).slot_narrow_rows(slot) as u64)
        });
        rows.collect()
    }

    /// The rows of one part, full or narrow ones, from whichever shards have them.
    fn gather(&self, table: usize, part: usize, parts: usize, is_narrow: bool) -> Result<PartRows> {
        let slots = part_slots(part, parts);
        let owner = |slot: usize| self.shards[self.map.shard_of(slot)].table(table);
        let in_slot = |slot: usize| match is_narrow {
            true => owner(slot).slot_narrow_rows(slot),
            false => owner(slot).slot_rows(slot) - owner(slot).slot_narrow_rows(slot),
        };
        let count = slots.clone().map(in_slot).sum();
        let mut rows = PartRows::with_capacity(count, self.shapes[table].of_width(is_narrow));
        for slot in slots {
            owner(slot).for_each_in_slot(slot, |key, stored| {
                if stored.is_narrow == is_narrow {
                    rows.push(key, self.eras.stored(stored));
                }
            })?;
        }
        Ok(rows)
    }
}

/// The blocks of one part that belong to a shard's slots.
fn restore_filter(table: &mut Table, part: &StoredFilter, slots: &Range<usize>) {
    let Some(filter) = table.gate_mut().and_then(Gate::filter_mut) else { return };
    for (slot, block, words) in part.in_slots(slots) {
        filter.restore(slot, block, words);
    }
}

/// The narrow rows of one part that belong to a shard's slots.
fn restore_narrow(table: &mut Table, part: &RowPart, slots: &Range<usize>) -> Result<()> {
    for row in part.rows_in(slots) {
        let key = part.key(row);
        if !table.restore_narrow_row(key, part.stored(row))? {
            let reason = format!(
                "key {:#018x} has a full row and a narrow one; take another checkpoint",
                key.0
            );
            return Err(Error::mismatch(table.name(), reason));
        }
    }
    Ok(())
}

/// The candidates of one part that belong to a shard's slots.
fn restore_candidates(
    table: &mut Table,
    part: &StoredCandidates,
    slots: &Range<usize>,
) -> Result<()> {
    for (key, candidate) in part.in_slots(slots) {
        if !table.restore_candidate(key, candidate) {
            let reason =
                format!("key {:#018x} waits for a row and has one; take another checkpoint", key.0);
            return Err(Error::mismatch(table.name(), reason));
        }
    }
    Ok(())
}
