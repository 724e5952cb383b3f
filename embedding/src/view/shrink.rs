//! A table of a checkpoint without some of its rows, written as the same table of another one.
//!
//! Rows are ranked by one figure, and what goes is what ranks below a limit. Where the number of
//! rows to keep is given, the limit is found by counting ranks digit by digit: some passes over the
//! mapping, and no list of rows anywhere. Old parts are mapped, and one new part a thread is
//! gathered in memory, as by a checkpoint.
//!
//! # Invariants
//! What stays is a function of the table and the rule: rows of equal rank stay in the order of
//! their keys, full ones before narrow ones. A pinned key's row stays by every rule, as it does in
//! training: it ranks above all others. A new part takes the rows of whole old ones.

use std::path::Path;

use serde::Serialize;
use zillion_device::{Files, Workers};
use zillion_feature::SLOTS;

use crate::error::{Error, Result};
use crate::view::{Order, TableView, rank, view};
use zillion_rows::part::{
    ListedParts, MAX_PART_ROWS, PartInfo, PartRows, TableParts, part_count, part_slots,
    write_candidates, write_rows,
};

/// Bits of a rank that one pass counts.
const DIGIT: u32 = 8;

/// The rule that decides which rows stay. Rows of pinned keys stay by every rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keep {
    /// The first rows by an order: by pushes (the later push first where these are equal), by norm,
    /// or by the last push.
    First {
        /// The number of rows that stay.
        rows: u64,
        /// The order by which rows are ranked.
        by: Order,
    },
    /// Rows that were pushed at least so often.
    Count(u32),
    /// Rows whose last push lies at most so many steps back, as an eviction by the same number has
    /// it. Keys that wait for a row go by the same rule; by others they stay.
    Seen(u64),
    /// Rows whose L2 norm is at least this.
    Norm(f32),
}

/// The size of a table before and after rows were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TableSize {
    /// The number of rows.
    pub rows: u64,
    /// Keys that wait to be admitted.
    pub candidates: u64,
    /// Bytes in memory: weights, state, index at the worst moment of its growth, candidates.
    pub memory_bytes: u64,
    /// Bytes of the checkpoint's files, give or take what their headers say.
    pub file_bytes: u64,
}

/// The rows of one table that stay, found by [`TableView::plan_shrink`].
#[derive(Debug)]
pub struct Shrink {
    order: Order,
    /// The least rank that stays.
    least: u64,
    /// The number of rows with this rank that stay in each part, where not all do.
    ties: Option<Vec<u64>>,
    /// Candidates stay that were seen in this step or later.
    oldest: u32,
    /// Full rows that stay, by slot.
    by_slot: Vec<u64>,
    /// Narrow rows that stay, by slot; empty where there are none.
    narrow_by_slot: Vec<u64>,
    /// The size of the table now.
    pub before: TableSize,
    /// The size of the table afterwards.
    pub after: TableSize,
}

impl TableView {
    /// Finds the rows that stay, `step` steps having been done.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a dense table, which has the rows of its vocabulary, and for fewer
    /// rows than are pinned.
    pub fn plan_shrink(&self, workers: &Workers, keep: Keep, step: u64) -> Result<Shrink> {
        if self.shape.spec.dense {
            let reason = "a dense table keeps the rows of its vocabulary, and a key that lost its row would never \
                          have one again; train it as a dynamic table (`dense = false`) to let rows go";
            return Err(Error::mismatch(self.shape.name(), reason));
        }
        if let Keep::First { rows, .. } = keep {
            let pinned = self.pinned_rows();
            if rows < pinned {
                let reason =
                    format!("{pinned} of its rows are pinned and stay; keep at least so many");
                return Err(Error::mismatch(self.shape.name(), reason));
            }
        }
        Ok(self.plan(workers, keep, step))
    }

    /// Keeps every row: what is written of it is a whole table, also where this is a checkpoint of
    /// changes.
    pub fn plan_whole(&self, workers: &Workers) -> Shrink {
        self.plan(workers, Keep::Count(0), 0)
    }

    fn plan(&self, workers: &Workers, keep: Keep, step: u64) -> Shrink {
        let (order, least) = match keep {
            Keep::First { rows, by } => (by, self.limit(workers, by, rows)),
            Keep::Count(count) => (Order::Count, Limit::at(u64::from(count) << u32::BITS)),
            Keep::Seen(steps) => (Order::Recent, Limit::at(oldest(step, steps) << u32::BITS)),
            Keep::Norm(norm) => (Order::Norm, Limit::at(u64::from(norm.to_bits()) << u32::BITS)),
        };
        let oldest = match keep {
            Keep::Seen(steps) => oldest(step, steps) as u32,
            _ => 0,
        };
        let Limit { least, of_least } = least;
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

    /// Writes what stays below `folder`, which the caller stages and renames; returns what the
    /// manifest must keep. A filter that keys are counted in stays as it is, and its files are for
    /// the caller to copy. `listed` is what the old one has.
    ///
    /// # Errors
    /// Where the disk refuses; parts may then be left, for the caller to sweep.
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
        let written = self.write_width(workers, folder, files, shrink, false)?;
        let narrow = match &listed.narrow {
            Some(_) => {
                let parts = self.write_width(workers, folder, files, shrink, true)?;
                Some(ListedParts::of(parts))
            }
            None => None,
        };
        let candidates = match &listed.candidates {
            Some(_) => Some(self.write_waiting(workers, folder, files, shrink.oldest)?),
            None => None,
        };
        files.sync_dir(&own)?;
        Ok(TableParts {
            table: listed.table.clone(),
            rows: shrink.after.rows,
            dirty_epoch: listed.dirty_epoch,
            parts: written,
            narrow,
            candidates,
            filter: listed.filter.clone(),
            changes: None,
        })
    }

    /// The rows of one width that stay.
    fn write_width(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        shrink: &Shrink,
        is_narrow: bool,
    ) -> Result<Vec<PartInfo>> {
        let (by_slot, first, old_parts) = match is_narrow {
            true => (&shrink.narrow_by_slot, self.full, self.parts.len() - self.full),
            false => (&shrink.by_slot, 0, self.full),
        };
        // Old parts are taken whole.
        let parts = part_count(by_slot, MAX_PART_ROWS).min(old_parts);
        let merged = old_parts / parts;
        let written = workers.map(parts, |part| {
            let slots = part_slots(part, parts);
            let count = by_slot[slots].iter().sum::<u64>() as usize;
            let mut rows = PartRows::with_capacity(count, self.shape.of_width(is_narrow));
            for old in first + part * merged..first + (part + 1) * merged {
                let stored = &self.parts[old];
                shrink.for_each(self, old, |row| rows.push(stored.key(row), stored.stored(row)));
            }
            write_rows(files, folder, &self.shape, (part, parts), (rows, is_narrow))
        });
        written.into_iter().collect()
    }

    fn write_waiting(
        &self,
        workers: &Workers,
        folder: &Path,
        files: &Files,
        oldest: u32,
    ) -> Result<ListedParts> {
        let waiting = |part: usize| {
            let all = self.candidates[part].in_slots(&(0..SLOTS));
            all.filter(move |(_, candidate)| candidate.last_step >= oldest)
        };
        let mut by_slot = vec![0u64; SLOTS];
        for part in 0..self.candidates.len() {
            waiting(part).for_each(|(key, _)| by_slot[key.slot()] += 1);
        }
        let parts = part_count(&by_slot, MAX_PART_ROWS).min(self.candidates.len());
        let merged = self.candidates.len() / parts;
        let written = workers.map(parts, |part| {
            let stay = (part * merged..(part + 1) * merged).flat_map(waiting);
            write_candidates(files, folder, &self.shape, (part, parts), stay)
        });
        let parts: Vec<PartInfo> = written.into_iter().collect::<Result<_>>()?;
        Ok(ListedParts::of(parts))
    }

    /// Keys that wait and were seen in `oldest` or later.
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

    /// Yields the ranks of the rows of a part, in key order.
    fn ranks(&self, part: usize, order: Order) -> impl Iterator<Item = u64> {
        let part = &self.parts[part];
        let pinned = &self.shape.pinned;
        (0..part.len()).map(move |row| match pinned.has(part.key(row)) {
            true => u64::MAX,
            false => rank(&view(part, row), order),
        })
    }

    /// Pinned keys that have a row.
    fn pinned_rows(&self) -> u64 {
        self.shape.pinned.keys().iter().filter(|&&key| self.find(key).is_some()).count() as u64
    }

    /// The rank that the last of the first `rows` rows has, and how many of that rank are among
    /// them.
    fn limit(&self, workers: &Workers, order: Order, rows: u64) -> Limit {
        if rows >= self.rows() {
            return Limit::at(0);
        }
        if rows == 0 {
            return Limit { least: u64::MAX, of_least: Some(0) };
        }
        // The digits that are known of the rank, from the top, and the rows that are wanted among
        // those with these digits.
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
                        // All that have these digits stay.
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

/// The least rank that stays, and how many rows of it, where not all do.
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
    /// The rows of a part that stay, in key order.
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

/// The oldest last step that an eviction by `steps` leaves.
fn oldest(step: u64, steps: u64) -> u64 {
    step.saturating_sub(steps).min(u32::MAX.into())
}

#[cfg(test)]
mod tests;
