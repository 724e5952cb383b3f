//! The removal of rows from a table of a checkpoint. The remaining rows are written as the same
//! table of a new checkpoint.
//!
//! Rows are ranked by one figure, and rows with a rank below a limit are removed. If the caller
//! gives the number of rows to keep, the limit is found digit by digit: each pass over the mapped
//! files counts the rows by one digit of their ranks. So no list of rows is needed. Old parts are
//! mapped, and each thread collects one new part in memory, as for a checkpoint.
//!
//! # Invariants
//! * The choice of rows depends only on the table and the rule.
//! * Among rows of equal rank, the rows with the lowest keys stay, and full rows stay before narrow
//!   rows.
//! * The row of a pinned key stays by every rule, as in training, because it ranks above all other
//!   rows.
//! * The division into new parts depends only on the rows that stay.

use std::ops::Range;
use std::path::Path;

use serde::Serialize;
use zillion_device::{Files, Workers};
use zillion_feature::SLOTS;

use crate::error::{Error, Result};
use crate::view::{Order, TableView, rank, view};
use zillion_rows::TableClock;
use zillion_rows::part::{
    ALL_SLOTS, ListedParts, MAX_PART_ROWS, PartInfo, PartRows, RowDigest, TableParts, cut, overlap,
    write_candidates, write_rows,
};

/// The number of bits of a rank that are counted in one pass.
const DIGIT: u32 = 8;

/// The rule that decides which rows stay. The row of a pinned key always stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keep {
    /// The first rows in an order stay.
    First {
        /// The number of rows that stay.
        rows: u64,
        /// The order in which rows are ranked. Among rows with equal numbers of pushes, the rows
        /// with a later last push come first.
        by: Order,
    },
    /// The rows with at least this number of pushes stay.
    Count(u32),
    /// The rows whose last push was at most this number of steps ago stay, as with an eviction
    /// after the same number of unseen steps. This rule also removes candidates; the other rules
    /// keep all candidates.
    Seen(u64),
    /// The rows whose L2 norm is at least this number stay.
    Norm(f32),
}

/// The size of a table, before or after rows are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TableSize {
    /// The number of rows of the table.
    pub rows: u64,
    /// The number of keys that wait to be admitted.
    pub candidates: u64,
    /// The bytes that the table takes in memory: weights, state, candidates, and the index at the
    /// worst moment of its growth.
    pub memory_bytes: u64,
    /// The approximate number of bytes of the checkpoint's files, without their headers.
    pub file_bytes: u64,
}

/// The plan for shrinking one table, made by [`TableView::plan_shrink`]. It says which rows stay.
#[derive(Debug)]
pub struct Shrink {
    order: Order,
    /// The lowest rank of a row that stays.
    least: u64,
    /// The number of rows with the lowest rank that stay in each part; `None` if all these rows
    /// stay.
    ties: Option<Vec<u64>>,
    /// The oldest step of a candidate that stays. Candidates that were last seen before this step
    /// are removed.
    oldest: u32,
    /// The number of full rows that stay in each slot.
    by_slot: Vec<u64>,
    /// The number of narrow rows that stay in each slot; empty if rows do not grow.
    narrow_by_slot: Vec<u64>,
    /// The size of the table before rows are removed.
    pub before: TableSize,
    /// The size of the table after rows are removed.
    pub after: TableSize,
}

impl TableView {
    /// Finds the rows that stay by the rule `keep`, after `step` steps of training.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`] if the table is dense, because such a table must have all rows
    /// of its vocabulary. Returns it also if the number of rows to keep is below the number of
    /// pinned rows.
    pub fn plan_shrink(&self, workers: &Workers, keep: Keep, step: u64) -> Result<Shrink> {
        if self.shape.spec.dense {
            let reason = "a dense table keeps all rows of its vocabulary, because a key that \
                          loses its row never gets a new row; set `dense = false` and train it as \
                          a dynamic table";
            return Err(Error::mismatch(self.shape.name(), reason));
        }
        if matches!(keep, Keep::Seen(_)) && self.shape.spec.clock() == TableClock::EventTime {
            let reason = "its rows have the event time of their last push and not the step, so a \
                          number of steps cannot choose among them; keep rows by their number, \
                          their pushes or their norm";
            return Err(Error::mismatch(self.shape.name(), reason));
        }
        if let Keep::First { rows, .. } = keep {
            let pinned = self.pinned_rows();
            if rows < pinned {
                let reason = format!(
                    "{pinned} of its rows are pinned and always stay; keep at least {pinned} rows"
                );
                return Err(Error::mismatch(self.shape.name(), reason));
            }
        }
        Ok(self.plan(workers, keep, step))
    }

    /// Returns a plan in which every row stays. With this plan the table is written whole, even if
    /// this checkpoint holds only changes.
    pub fn plan_whole(&self, workers: &Workers) -> Shrink {
        self.plan(workers, Keep::Count(0), 0)
    }

    fn plan(&self, workers: &Workers, keep: Keep, step: u64) -> Shrink {
        let (order, limit, oldest) = match keep {
            Keep::First { rows, by } => (by, self.limit(workers, by, rows), 0),
            Keep::Count(count) => (Order::Count, Limit::at(u64::from(count) << u32::BITS), 0),
            Keep::Seen(steps) => {
                let oldest = oldest(step, steps);
                (Order::Recent, Limit::at(oldest << u32::BITS), oldest as u32)
            }
            Keep::Norm(norm) => (Order::Norm, Limit::at(u64::from(norm.to_bits()) << u32::BITS), 0),
        };
        let Limit { least, of_least } = limit;
        let ties = of_least.map(|mut left| {
            let counts = workers.map(self.parts.len(), |i| {
                self.ranks(i, order).filter(|&rank| rank == least).count() as u64
            });
            let share = |ties: u64| {
                let stay = ties.min(left);
                left -= stay;
                stay
            };
            counts.into_iter().map(share).collect()
        });
        let before = self.size(self.rows(), self.narrow_rows(), self.waiting_keys(0));
        let mut shrink = Shrink {
            order,
            least,
            ties,
            oldest,
            by_slot: Vec::new(),
            narrow_by_slot: Vec::new(),
            before,
            after: before,
        };
        let counted = workers.map(self.parts.len(), |i| {
            let slots = self.parts[i].slots();
            let mut by_slot = vec![0u64; slots.len()];
            shrink
                .for_each(self, i, |row| by_slot[self.parts[i].key(row).slot() - slots.start] += 1);
            by_slot
        });
        let (full, narrow) = counted.split_at(self.full);
        shrink.by_slot = full.concat();
        shrink.narrow_by_slot = narrow.concat();
        let narrow: u64 = shrink.narrow_by_slot.iter().sum();
        let rows = shrink.by_slot.iter().sum::<u64>() + narrow;
        shrink.after = self.size(rows, narrow, self.waiting_keys(oldest));
        shrink
    }

    /// Writes the rows and candidates that stay below `folder`, and returns the table's entry for
    /// the manifest. The caller creates `folder` under a temporary name and renames it at the end.
    /// A filter in which keys are counted does not change, and the caller must copy its files.
    /// `listed` is the table's entry in the old checkpoint.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written. The caller must then remove the files that
    /// were written before.
    pub fn write_shrunk(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        shrink: &Shrink,
        listed: &TableParts,
    ) -> Result<TableParts> {
        let own = folder.join("tables").join(self.shape.name());
        files.create_dir(&own)?;
        let (parts, mut digest) = self.write_width(workers, folder, files, shrink, false)?;
        let narrow = listed.narrow.as_ref();
        let narrow = narrow.map(|_| self.write_width(workers, folder, files, shrink, true));
        let candidates = listed.candidates.as_ref();
        let candidates =
            candidates.map(|_| self.write_waiting(workers, folder, files, shrink.oldest));
        files.sync_dir(&own)?;
        let mut group = |(parts, of_group): (Vec<PartInfo>, RowDigest)| {
            digest += of_group;
            ListedParts::of(parts)
        };
        let narrow = narrow.transpose()?.map(&mut group);
        let candidates = candidates.transpose()?.map(&mut group);
        digest += self.filter_digest;
        Ok(TableParts {
            table: listed.table.clone(),
            rows: shrink.after.rows,
            dirty_epoch: listed.dirty_epoch,
            parts,
            narrow,
            candidates,
            filter: listed.filter.clone(),
            changes: None,
            digest: Some(digest),
        })
    }

    /// Writes the rows of one width that stay. Returns the entries of the files, and the digest of
    /// the rows.
    fn write_width(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        shrink: &Shrink,
        is_narrow: bool,
    ) -> Result<(Vec<PartInfo>, RowDigest)> {
        let (by_slot, old_parts) = match is_narrow {
            true => (&shrink.narrow_by_slot, self.full..self.parts.len()),
            false => (&shrink.by_slot, 0..self.full),
        };
        let places = cut(&ALL_SLOTS, by_slot, MAX_PART_ROWS);
        let written = workers.map(places.len(), |i| {
            let slots = places[i].slots();
            let count = by_slot[slots.clone()].iter().sum::<u64>() as usize;
            let mut rows = PartRows::with_capacity(count, self.shape.of_width(is_narrow));
            for old in old_parts.clone() {
                let stored = &self.parts[old];
                if overlap(&stored.slots(), &slots).is_empty() {
                    continue;
                }
                shrink.for_each(self, old, |row| {
                    if slots.contains(&stored.key(row).slot()) {
                        rows.push(stored.key(row), stored.stored(row));
                    }
                });
            }
            write_rows(files, folder, &self.shape, places[i], (rows, is_narrow))
        });
        listed(written)
    }

    /// Writes the candidates that were last seen in step `oldest` or later. Returns the entries of
    /// the files, and the digest of the candidates.
    fn write_waiting(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        oldest: u32,
    ) -> Result<(Vec<PartInfo>, RowDigest)> {
        let waiting = |slots: Range<usize>| {
            let all = self.candidates.iter().flat_map(move |part| part.in_slots(&slots));
            all.filter(move |(_, candidate)| candidate.last_step >= oldest)
        };
        let mut by_slot = vec![0u64; SLOTS];
        waiting(ALL_SLOTS).for_each(|(key, _)| by_slot[key.slot()] += 1);
        let places = cut(&ALL_SLOTS, &by_slot, MAX_PART_ROWS);
        let written = workers.map(places.len(), |i| {
            let stay = waiting(places[i].slots());
            write_candidates(files, folder, &self.shape, places[i], stay)
        });
        listed(written)
    }

    /// Returns the number of candidates that were last seen in step `oldest` or later.
    fn waiting_keys(&self, oldest: u32) -> u64 {
        let all = self.candidates.iter().flat_map(|part| part.in_slots(&(0..SLOTS)));
        all.filter(|(_, candidate)| candidate.last_step >= oldest).count() as u64
    }

    fn size(&self, rows: u64, narrow: u64, candidates: u64) -> TableSize {
        let spec = &self.shape.spec;
        let (weights, state) = self.row_bytes(rows, narrow);
        let narrow_file_bytes = self.shape.of_width(true).spec.checkpoint_bytes_per_row();
        TableSize {
            rows,
            candidates,
            memory_bytes: weights
                + state
                + spec.index_memory(rows)
                + spec.candidate_memory(candidates),
            file_bytes: (rows - narrow) * spec.checkpoint_bytes_per_row()
                + narrow * narrow_file_bytes
                + candidates * spec.checkpoint_bytes_per_candidate(),
        }
    }

    /// Returns an iterator over the ranks of the rows of a part, in key order.
    fn ranks(&self, part: usize, order: Order) -> impl Iterator<Item = u64> {
        let part = &self.parts[part];
        let pinned = &self.shape.pinned;
        (0..part.len()).map(move |row| match pinned.has(part.key(row)) {
            true => u64::MAX,
            false => rank(&view(part, row), order),
        })
    }

    /// Returns the number of pinned keys that have a row.
    fn pinned_rows(&self) -> u64 {
        self.shape.pinned.keys().iter().filter(|&&key| self.find(key).is_some()).count() as u64
    }

    /// Returns the limit of ranks with which the first `rows` rows in an order stay.
    fn limit(&self, workers: &Workers, order: Order, rows: u64) -> Limit {
        if rows >= self.rows() {
            return Limit::at(0);
        }
        if rows == 0 {
            return Limit { least: u64::MAX, of_least: Some(0) };
        }
        // `known` has the leading digits of the rank that are known so far; `left` is the number of
        // rows still wanted among the rows with these digits.
        let (mut known, mut left) = (0u64, rows);
        for shift in (0..u64::BITS / DIGIT).rev().map(|digit| digit * DIGIT) {
            let above = |rank: u64| rank.checked_shr(shift + DIGIT).unwrap_or(0);
            let counts = workers.map(self.parts.len(), |i| {
                let mut counts = vec![0u64; 1 << DIGIT];
                for rank in self.ranks(i, order).filter(|&rank| above(rank) == above(known)) {
                    counts[(rank >> shift) as usize % (1 << DIGIT)] += 1;
                }
                counts
            });
            let count = |digit: usize| counts.iter().map(|counts| counts[digit]).sum::<u64>();
            for digit in (0..1usize << DIGIT).rev() {
                let rows = count(digit);
                if rows >= left {
                    known |= (digit as u64) << shift;
                    if rows == left {
                        // All rows with these digits stay.
                        return Limit::at(known);
                    }
                    break;
                }
                left -= rows;
            }
        }
        Limit { least: known, of_least: Some(left) }
    }
}

/// The lowest rank of a row that stays. If only some of the rows with this rank stay, the limit
/// also has their number.
#[derive(Clone, Copy)]
struct Limit {
    least: u64,
    of_least: Option<u64>,
}

impl Limit {
    fn at(least: u64) -> Self {
        Self { least, of_least: None }
    }
}

impl Shrink {
    /// Calls `body` for each row of a part that stays, in key order.
    fn for_each(&self, table: &TableView, part: usize, mut body: impl FnMut(usize)) {
        let mut ties = self.ties.as_ref().map(|ties| ties[part]);
        for (row, rank) in table.ranks(part, self.order).enumerate() {
            let stays = match &mut ties {
                Some(left) if rank == self.least => {
                    let stays = *left > 0;
                    *left -= u64::from(stays);
                    stays
                }
                _ => rank >= self.least,
            };
            if stays {
                body(row);
            }
        }
    }
}

/// Returns the entries of written files and the digest of their contents.
fn listed(written: Vec<Result<(PartInfo, RowDigest)>>) -> Result<(Vec<PartInfo>, RowDigest)> {
    let written: Vec<(PartInfo, RowDigest)> = written.into_iter().collect::<Result<_>>()?;
    let digest = written.iter().map(|(_, digest)| *digest).sum();
    Ok((written.into_iter().map(|(part, _)| part).collect(), digest))
}

/// Returns the oldest step of the last push of a row that stays. At step `step`, rows are evicted
/// after `steps` unseen steps.
fn oldest(step: u64, steps: u64) -> u64 {
    step.saturating_sub(steps).min(u32::MAX.into())
}

#[cfg(test)]
mod tests;
