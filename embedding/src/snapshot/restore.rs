//! The restoring of all tables from a checkpoint, on any number of shards.
//!
//! # Crash consistency
//! The tables are replaced only after every part has been verified and read. After an error, the
//! tables are unchanged.

use std::path::Path;

use zillion_device::Workers;

use crate::admission::KeyAdmission;
use crate::error::{Error, Result};
use crate::set::{TableSet, each, empty_shards};
use crate::snapshot::generations::Generations;
use zillion_rows::RowShape;
use zillion_rows::part::{OpenedTable, TableParts, listed_parts, open_tables, overlap};

impl TableSet {
    /// Replaces all rows by the rows that a checkpoint has in the owned slots. Only the files that
    /// have these slots are opened. Training then continues as if it had not
    /// stopped. If changes are tracked, the changes after the end of the checkpoint's epoch are
    /// known. Earlier changes are not known, because a checkpoint does not list earlier evictions.
    /// If the entries hold only changes, they must name the checkpoints that have the other rows
    /// ([`TableParts::stand_on`]). The rows of this chain are merged.
    ///
    /// # Errors
    /// Returns [`Error::Part`] if a file cannot be read or is damaged, [`Error::Mismatch`] if the
    /// checkpoint and the job have different tables, and [`Error::TooManyRows`] if the checkpoint
    /// lists more rows of a whole table than its limit. After an error, the tables are unchanged.
    pub fn restore(
        &mut self,
        workers: &Workers,
        folder: &Path,
        parts: &[TableParts],
    ) -> Result<()> {
        let (opened, epoch) = self.open_files(workers, folder, parts)?;
        let mut shards = empty_shards(&self.shapes, &self.map)?;
        self.spill_shards(&mut shards)?;
        each(workers, &mut shards, |_, shard| {
            let all = shard.slots();
            for (index, opened) in opened.iter().enumerate() {
                let OpenedTable { rows, candidates, filter: filters, .. } = opened;
                let slots = overlap(&all, &self.owned[index]);
                let table = &mut shard.tables[index];
                for part in rows {
                    for row in part.rows_in(&slots) {
                        table.restore_row(part.key(row), part.stored(row))?;
                    }
                }
                table.finish_restoring();
                for part in candidates {
                    for (key, candidate) in part.in_slots(&slots) {
                        table.restore_candidate(key, candidate)?;
                    }
                }
                let filter = table.candidates.as_mut().and_then(KeyAdmission::filter_mut);
                if let Some(filter) = filter {
                    for (slot, block, words) in
                        filters.iter().flat_map(|part| part.in_slots(&slots))
                    {
                        filter.restore(slot, block, words);
                    }
                }
            }
            Ok(())
        })?;
        let old = self.shards.iter().flat_map(|shard| &shard.tables);
        let new = shards.iter_mut().flat_map(|shard| &mut shard.tables);
        new.zip(old).for_each(|(new, old)| new.keep_counters(old));
        self.shards = shards;
        self.generations = Generations::of_epoch(epoch);
        self.snapshot = None;
        self.limit_candidates();
        self.begin_lists(workers)?;
        self.mark_restored();
        Ok(())
    }

    /// Verifies every file that [`TableSet::restore`] would read, and changes nothing.
    ///
    /// # Errors
    /// Returns the errors of [`TableSet::restore`].
    pub fn check_restore(
        &self,
        workers: &Workers,
        folder: &Path,
        parts: &[TableParts],
    ) -> Result<()> {
        self.open_files(workers, folder, parts).map(drop)
    }

    /// Verifies and opens the files with the owned slots. Also returns the epoch of the changes
    /// after the checkpoint.
    fn open_files(
        &self,
        workers: &Workers,
        folder: &Path,
        parts: &[TableParts],
    ) -> Result<(Vec<OpenedTable>, u32)> {
        let shapes: Vec<&RowShape> = self.shapes.iter().map(|shape| shape.row()).collect();
        let listed = listed_parts(&shapes, parts)?;
        for (shape, table) in shapes.iter().zip(&listed) {
            for (is_job, is_stored, what) in [
                (shape.spec.admission.counts_exactly(), table.candidates.is_some(), "counts"),
                (shape.filter.is_some(), table.filter.is_some(), "a filter"),
            ] {
                if is_job == is_stored {
                    continue;
                }
                let reason = match is_stored {
                    true => format!(
                        "the checkpoint has {what} of keys that wait for a row, but the job's \
                         admission has none"
                    ),
                    false => format!(
                        "the job's admission has {what} of keys, but the checkpoint has none"
                    ),
                };
                let reason = format!("{reason}; use the job that wrote the checkpoint");
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
        let opened = open_tables(workers, folder, &shapes, &listed, &self.owned)?;
        let epoch = listed.iter().map(|t| t.dirty_epoch).max().unwrap_or(1).max(1);
        Ok((opened, epoch))
    }
}
