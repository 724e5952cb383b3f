//! The writing of layers from live tables, with all rows or only with changed rows.
//!
//! The threads of the pool copy rows in key order, a few megabytes at a time, and the calling
//! thread writes the copies. Each shard owns a contiguous range of keys. The rows of one shard
//! after another are therefore in key order, and the bytes do not depend on the number of shards.

pub(crate) mod gather;

use std::ops::Range;
use std::path::Path;

use zillion_device::{Files, Workers};
use zillion_feature::SLOTS;

use crate::changes::Changed;
use crate::error::{Error, Result};
use crate::set::TableSet;
use zillion_rows::layer::{LayerCut, LayerManifest, LayerWriter, Throttle};

/// The number of keys that one thread looks up as one piece of work.
const PIECE_KEYS: usize = 4096;

/// The largest number of bytes of rows that are copied before they are written.
const HELD_BYTES: usize = 8 << 20;

/// The rows of a table that a layer gets.
enum Chosen {
    All,
    /// Only some keys, given for each shard in ascending order.
    Keys(Vec<Vec<u64>>),
}

/// A piece of the chosen rows. One thread copies it.
enum Piece<'a> {
    Slot(usize),
    /// Some keys of the shard with this index, in ascending order.
    Keys(usize, &'a [u64]),
}

impl TableSet {
    /// Writes every row of every table as a layer, which is the base of a version. `folder` must
    /// exist. The same rows give the same bytes for every number of shards and threads.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written. The caller must then remove the files that
    /// were written before.
    pub fn write_base(
        &self,
        workers: &Workers,
        files: &Files,
        folder: &Path,
        pace: &mut dyn Throttle,
    ) -> Result<LayerManifest> {
        self.write_tables(workers, LayerWriter::new(files, folder, pace), None, |_| Chosen::All)
    }

    /// Writes every row of the owned slots as the parts of a base that several owners write.
    /// `cuts` has the cut of each table, which is the same for all owners.
    ///
    /// # Errors
    /// Returns the errors of [`TableSet::write_base`], and an error if a cut does not fit the owned
    /// slots.
    pub fn write_owned_base(
        &self,
        workers: &Workers,
        cuts: &[LayerCut],
        files: &Files,
        folder: &Path,
        pace: &mut dyn Throttle,
    ) -> Result<LayerManifest> {
        if cuts.len() != self.shapes.len() {
            let (given, tables) = (cuts.len(), self.shapes.len());
            return Err(Error::misuse(format!(
                "a base of {tables} tables has {given} cuts; give the cut of each table"
            )));
        }
        let writer = LayerWriter::new(files, folder, pace);
        self.write_tables(workers, writer, Some(cuts), |_| Chosen::All)
    }

    /// Writes the changes since the end of epoch `since`: the rows that were written or created and
    /// still exist, and tombstones for the other changed keys. Returns `None` if these changes are
    /// not known, because tracking was off or began later. The time is proportional to the number
    /// of changes. A table with whole-table rules is written completely if any step has changed it.
    ///
    /// The same history gives the same bytes for every number of shards and threads.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if the epoch has not ended, and another error if a file cannot be
    /// written.
    pub fn write_delta(
        &self,
        workers: &Workers,
        since: u32,
        files: &Files,
        folder: &Path,
        pace: &mut dyn Throttle,
    ) -> Result<Option<LayerManifest>> {
        if since >= self.dirty_epoch() {
            let reason = format!(
                "epoch {since} has not ended (the current epoch is {}); ask for the changes since \
                 an earlier epoch",
                self.dirty_epoch()
            );
            return Err(Error::misuse(reason));
        }
        if !self.knows_changes_since(since) {
            return Ok(None);
        }
        let writer = LayerWriter::new(files, folder, pace);
        let generation = self.generations.last_of(since);
        let choose = |table| self.changed_rows(workers, table, generation);
        self.write_tables(workers, writer, None, choose).map(Some)
    }

    /// Returns the rows of a table that changed after the end of a generation.
    fn changed_rows(&self, workers: &Workers, table: usize, since: u32) -> Chosen {
        let by_shard = workers.map(self.shards.len(), |shard| {
            self.shards[shard].tables[table].changes.as_ref().map(|changes| changes.since(since))
        });
        let keys = by_shard.into_iter().map(|changed| match changed {
            Some(Changed::Keys(keys)) => Some(keys),
            // If all rows of one shard have changed, all rows of the other shards have too.
            Some(Changed::Everything) | None => None,
        });
        keys.collect::<Option<_>>().map_or(Chosen::All, Chosen::Keys)
    }

    fn write_tables(
        &self,
        workers: &Workers,
        mut writer: LayerWriter<'_>,
        cuts: Option<&[LayerCut]>,
        choose: impl Fn(usize) -> Chosen,
    ) -> Result<LayerManifest> {
        for table in 0..self.shapes.len() {
            let cut = cuts.map(|cuts| cuts[table]);
            self.write_table(workers, &mut writer, (table, cut), &choose(table))?;
        }
        writer.finish()
    }

    fn write_table(
        &self,
        workers: &Workers,
        writer: &mut LayerWriter<'_>,
        (table, cut): (usize, Option<LayerCut>),
        chosen: &Chosen,
    ) -> Result<()> {
        let pieces: Vec<(Piece<'_>, usize)> = match chosen {
            Chosen::All => {
                let rows = (0..SLOTS).map(|slot| self.owner(table, slot).index.slot_len(slot));
                let filled = rows.enumerate().filter(|(_, rows)| *rows > 0);
                filled.map(|(slot, rows)| (Piece::Slot(slot), rows)).collect()
            }
            Chosen::Keys(by_shard) => {
                let of_shard = |(shard, keys)| {
                    let pieces = <[u64]>::chunks(keys, PIECE_KEYS);
                    pieces.map(move |keys| (Piece::Keys(shard, keys), keys.len()))
                };
                by_shard.iter().map(Vec::as_slice).enumerate().flat_map(of_shard).collect()
            }
        };
        let layout = &self.layouts[table];
        match cut {
            Some(cut) => writer.owned_table(layout, cut, &self.owned[table])?,
            None => {
                let rows: usize = pieces.iter().map(|(_, rows)| rows).sum();
                let narrow = self.count_narrow(workers, table, chosen);
                writer.table_of_rows(layout, rows as u64 - narrow, narrow)?;
            }
        }
        let row_bytes = layout.width() * size_of::<f32>();
        for held in cut_groups(&pieces, HELD_BYTES / row_bytes.max(1)) {
            let held = &pieces[held];
            let runs = workers.map(held.len(), |piece| match held[piece].0 {
                Piece::Slot(slot) => self.owner(table, slot).slot_run(slot),
                Piece::Keys(shard, keys) => self.shards[shard].tables[table].key_run(keys),
            });
            for run in runs {
                for (key, row) in run?.iter() {
                    match row {
                        Some((row, uses)) => writer.push_used(key, row, uses.count, uses.last)?,
                        None => writer.push(key, None, 0)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the number of narrow rows among the rows of a layer.
    fn count_narrow(&self, workers: &Workers, table: usize, chosen: &Chosen) -> u64 {
        let counted = workers.map(self.shards.len(), |shard| {
            let owner = &self.shards[shard].tables[table];
            match chosen {
                Chosen::All => owner.narrow_rows(),
                Chosen::Keys(by_shard) => owner.narrow_among(&by_shard[shard]),
            }
        });
        counted.into_iter().sum()
    }
}

/// Divides a list of pieces into groups. A group has at most `limit` rows, or a single piece.
fn cut_groups<T>(pieces: &[(T, usize)], limit: usize) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut start, mut held) = (0, 0);
    for (i, (_, rows)) in pieces.iter().enumerate() {
        if i > start && held + rows > limit {
            groups.push(start..i);
            (start, held) = (i, 0);
        }
        held += rows;
    }
    if start < pieces.len() {
        groups.push(start..pieces.len());
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_no_more_than_the_limit() {
        let pieces = |rows: &[usize]| rows.iter().map(|&r| ((), r)).collect::<Vec<_>>();
        assert_eq!(cut_groups(&pieces(&[3, 3, 3, 9, 1]), 6), [0..2, 2..3, 3..4, 4..5]);
        assert!(cut_groups(&pieces(&[]), 6).is_empty());
    }
}
