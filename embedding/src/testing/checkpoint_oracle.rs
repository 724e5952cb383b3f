//! The simplest writer of checkpoints. Tests compare snapshots with it.
//!
//! Production code writes checkpoints with [`TableSet::begin_snapshot`] and
//! [`TableSet::finish_snapshot`], while training goes on. This writer runs while nothing changes.
//! The oracle copies each part and writes it. Both must produce the same bytes for the same rows.

use std::path::Path;

use zillion_device::{Files, Workers};
use zillion_feature::SLOTS;
use zillion_rows::part::{
    ListedParts, PartInfo, PartRows, TableParts, part_count, part_slots, write_candidates,
    write_filter, write_rows,
};

use crate::error::Result;
use crate::set::TableSet;
use crate::snapshot::sync;

/// Writes every table of `set` below `folder`, in parts of at most `limit` rows, and returns the
/// entries of the manifest. A snapshot of this moment must have the same bytes.
///
/// # Errors
/// Returns an error if a file cannot be written. The files that were written before are not
/// removed.
pub fn checkpoint_oracle(
    set: &TableSet,
    workers: &Workers,
    folder: &Path,
    files: &Files,
    limit: u64,
) -> Result<Vec<TableParts>> {
    Oracle { set }.write(workers, folder, files, limit)
}

/// The writer, which reads the tables of a set.
struct Oracle<'a> {
    set: &'a TableSet,
}

impl Oracle<'_> {
    /// Writes every table below `folder`, which is created if it does not exist, in parts of at
    /// most `limit` rows. Returns the entries of the manifest. The same rows give the same bytes
    /// for every number of shards and threads, and for every order in which the rows were created.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written. The files that were written before are not
    /// removed.
    fn write(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        limit: u64,
    ) -> Result<Vec<TableParts>> {
        let tables = folder.join("tables");
        for shape in &self.set.shapes {
            files.create_dir(tables.join(shape.name()))?;
        }
        let cuts: Vec<usize> = (0..self.set.shapes.len())
            .map(|table| part_count(&self.full_rows(table), limit))
            .collect();
        let jobs: Vec<(usize, usize)> = cuts
            .iter()
            .enumerate()
            .flat_map(|(table, &parts)| (0..parts).map(move |part| (table, part)))
            .collect();
        let written = workers.map(jobs.len(), |job| {
            let (table, part) = jobs[job];
            let rows = self.gather(table, part, cuts[table], false)?;
            write_rows(files, folder, &self.set.shapes[table], (part, cuts[table]), (rows, false))
        });
        let mut written = written.into_iter();
        let mut manifest = Vec::with_capacity(self.set.shapes.len());
        for (shape, &parts) in self.set.shapes.iter().zip(&cuts) {
            let parts: Vec<PartInfo> = written.by_ref().take(parts).collect::<Result<_>>()?;
            let table = manifest.len();
            let narrow = self.write_narrow(workers, folder, files, table, limit)?;
            let candidates = self.write_candidates(workers, folder, files, table, limit)?;
            let filter = self.write_filter(workers, folder, files, table, limit)?;
            manifest.push(TableParts {
                table: shape.name().to_owned(),
                rows: parts.iter().map(|p| p.rows).sum::<u64>()
                    + narrow.as_ref().map_or(0, |narrow| narrow.rows),
                dirty_epoch: self.set.dirty_epoch(),
                parts,
                narrow,
                candidates,
                filter,
                changes: None,
            });
        }
        sync(files, folder, self.set.shapes.iter().map(|shape| shape.name().to_owned()).collect())?;
        Ok(manifest)
    }

    /// Writes the narrow rows of one table, and returns their entry. Returns `None` if the rows of
    /// the table do not grow.
    fn write_narrow(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<ListedParts>> {
        let shape = &self.set.shapes[table];
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

    /// Writes the keys of one table that wait for admission, and returns their entry. Returns
    /// `None` if the admission does not count keys exactly.
    fn write_candidates(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<ListedParts>> {
        let shape = &self.set.shapes[table];
        if !shape.spec.admission.counts_exactly() {
            return Ok(None);
        }
        let owner = |slot: usize| self.set.owner(table, slot);
        let by_slot: Vec<u64> = (0..SLOTS)
            .map(|slot| owner(slot).counts().map_or(0, |c| c.slot_len(slot)) as u64)
            .collect();
        let parts = part_count(&by_slot, limit);
        let written = workers.map(parts, |part| {
            let in_slot = |slot: usize| owner(slot).counts().map(|c| c.in_slot(slot));
            let candidates = part_slots(part, parts).flat_map(in_slot).flatten();
            write_candidates(files, folder, shape, (part, parts), candidates)
        });
        Ok(Some(ListedParts::of(written.into_iter().collect::<Result<_>>()?)))
    }

    /// Writes the filter in which one table counts keys, and returns its entry. Returns `None` if
    /// the table has no filter.
    fn write_filter(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        table: usize,
        limit: u64,
    ) -> Result<Option<ListedParts>> {
        let shape = &self.set.shapes[table];
        let Some(filter) = &shape.filter else { return Ok(None) };
        let own = |slot: usize| self.set.owner(table, slot).filter();
        let blocks = |slot: usize| {
            let filter = own(slot).into_iter();
            filter
                .flat_map(move |f| f.in_slot(slot).map(move |(block, words)| (slot, block, words)))
        };
        let in_slot = |slot: usize| own(slot).map_or(0, |f| f.slot_len(slot));
        let by_slot: Vec<u64> = (0..SLOTS).map(|slot| in_slot(slot) as u64).collect();
        let parts = part_count(&by_slot, limit);
        let written = workers.map(parts, |part| {
            let contents = part_slots(part, parts).flat_map(blocks);
            write_filter(files, folder, (shape, filter), (part, parts), contents)
        });
        Ok(Some(ListedParts::of(written.into_iter().collect::<Result<_>>()?)))
    }

    /// Returns the number of rows of each slot of one table.
    fn slot_rows(&self, table: usize) -> Vec<u64> {
        let mut rows = Vec::with_capacity(SLOTS);
        for shard in &self.set.shards {
            rows.extend(shard.slots().map(|slot| shard.tables[table].index.slot_len(slot) as u64));
        }
        rows
    }

    /// Returns the number of full rows of each slot of one table.
    fn full_rows(&self, table: usize) -> Vec<u64> {
        let all = self.slot_rows(table).into_iter();
        all.zip(self.narrow_rows(table)).map(|(all, narrow)| all - narrow).collect()
    }

    /// Returns the number of narrow rows of each slot of one table.
    fn narrow_rows(&self, table: usize) -> Vec<u64> {
        let shards = self.set.shards.iter();
        let rows = shards.flat_map(|shard| {
            shard.slots().map(move |slot| shard.tables[table].slot_narrow_rows(slot) as u64)
        });
        rows.collect()
    }

    /// Returns the full or the narrow rows of one part. They are copied from all shards that own
    /// slots of the part.
    fn gather(&self, table: usize, part: usize, parts: usize, is_narrow: bool) -> Result<PartRows> {
        let slots = part_slots(part, parts);
        let owner = |slot: usize| self.set.owner(table, slot);
        let in_slot = |slot: usize| match is_narrow {
            true => owner(slot).slot_narrow_rows(slot),
            false => owner(slot).index.slot_len(slot) - owner(slot).slot_narrow_rows(slot),
        };
        let count = slots.clone().map(in_slot).sum();
        let mut rows = PartRows::with_capacity(count, self.set.shapes[table].of_width(is_narrow));
        for slot in slots {
            owner(slot).for_each_in_slot(slot, |key, stored| {
                if stored.is_narrow == is_narrow {
                    rows.push(key, self.set.generations.stored(stored));
                }
            })?;
        }
        Ok(rows)
    }
}
