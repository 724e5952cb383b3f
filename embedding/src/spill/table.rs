//! The functions of a table that move rows from memory to the file and back.
//!
//! Rows are brought into memory in two halves, so that the reads of all shards run at the same time
//! before the first shard waits. [`Table::begin_bringing_in`] finds the rows of a plan that are not
//! in memory and begins to read them. [`Table::finish_bringing_in`] puts them into slabs.
//! [`Table::look_ahead`] does the first half for announced plans.

use zillion_device::direct_io::Pieces;
use zillion_feature::FeatureKey;
use zillion_rows::row::StoredRow;

use crate::error::{Error, Result};
use crate::index::Entry;
use crate::spill::{
    COMPARED, Compaction, Fetch, LEAVING, Missing, Spill, SpillHome, Thawed, least,
};
use crate::table::Table;

/// The number of keys between a prefetch and the use of its memory.
const AHEAD: usize = 16;
/// The number of records that compaction checks for each record that is written. Only segments that
/// are less than half full are compacted, so checking two records frees at least one.
const LOOKED_AT: usize = 2;

/// The records of some keys, which were read from the file for a single use.
#[derive(Debug, Default)]
pub(crate) struct ColdRows {
    /// The numbers of the records in ascending order.
    records: Vec<u32>,
    pieces: Option<Pieces>,
}

impl Table {
    /// Lets rows of the table spill, so that the rows in memory take at most `memory` bytes.
    pub(crate) fn spill(&mut self, home: &SpillHome, memory: u64) -> Result<()> {
        self.spill = Some(Box::new(Spill::new(home, &self.shape, memory)?));
        Ok(())
    }

    /// Begins to read the rows of announced plans that are not in memory, and marks the other rows
    /// to stay in memory. `until` is the number of the last pull that needs the rows.
    pub(crate) fn look_ahead(&mut self, keys: &[&[FeatureKey]], until: u32) {
        let Some(mut spill) = self.spill.take() else { return };
        let mut records = Vec::new();
        for keys in keys {
            self.for_each_place(keys, |_, entry| match entry.record() {
                Some(record) => records.push(record),
                None => spill.want(entry.row(), until),
            });
        }
        records.sort_unstable();
        records.retain(|&record| spill.log.in_memory(record).is_none());
        // A row that several of the plans need stays in memory from the first plan to the last.
        let again: Vec<u32> = records.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).collect();
        records.dedup();
        if !records.is_empty() {
            let fetch = Fetch::start(&spill.home.inner.readers, &spill.log, &records, again, until);
            spill.ahead.push(fetch);
        }
        self.spill = Some(spill);
    }

    /// Finds the rows of `keys` that are not in memory, and begins to read their records. Records
    /// that an earlier fetch is reading are left out.
    pub(crate) fn begin_bringing_in(&mut self, keys: &[FeatureKey]) {
        let Some(mut spill) = self.spill.take() else { return };
        let mut rows = Vec::new();
        self.for_each_place(keys, |key, entry| {
            rows.extend(entry.record().map(|record| (record, key)));
        });
        rows.sort_unstable();
        let log = &spill.log;
        let is_read = |record: u32| {
            log.in_memory(record).is_some()
                || spill.ahead.iter().any(|fetch| fetch.position(log, record).is_some())
        };
        let unread: Vec<u32> = rows.iter().map(|&(r, _)| r).filter(|&r| !is_read(r)).collect();
        let fetch = (!unread.is_empty())
            .then(|| Fetch::start(&spill.home.inner.readers, log, &unread, Vec::new(), 0));
        spill.missing = (!rows.is_empty()).then_some(Missing { rows, fetch });
        self.spill = Some(spill);
    }

    /// Waits for the reads of the first half, and puts the rows into slabs. `pull` is the number of
    /// the pull that needs the rows.
    pub(crate) fn finish_bringing_in(&mut self, pull: u32) -> Result<()> {
        let Some(mut spill) = self.spill.take() else { return Ok(()) };
        let outcome = match spill.missing.take() {
            Some(missing) => self.install(&mut spill, missing),
            None => Ok(()),
        };
        spill.ahead.retain(|fetch| fetch.until > pull);
        self.spill = Some(spill);
        outcome
    }

    fn install(&mut self, spill: &mut Spill, missing: Missing) -> Result<()> {
        let Missing { rows, mut fetch } = missing;
        if let Some(fetch) = &mut fetch {
            fetch.wait()?;
        }
        for (record, key) in rows {
            let shape = spill.record;
            let mut is_ahead = false;
            let mut found = None;
            if spill.log.in_memory(record).is_none() {
                for (i, ahead) in spill.ahead.iter_mut().enumerate() {
                    if let Some(position) = ahead.position(&spill.log, record) {
                        ahead.wait()?;
                        (found, is_ahead) = (Some((Some(i), position)), true);
                        break;
                    }
                }
                let here = || fetch.as_ref().and_then(|f| f.position(&spill.log, record));
                found = found.or_else(|| here().map(|position| (None, position)));
            }
            let bytes = match found {
                Some((Some(i), position)) => spill.ahead[i].get(position),
                Some((None, position)) => fetch.as_ref().and_then(|f| f.get(position)),
                None => spill.log.in_memory(record),
            };
            let bytes = bytes.ok_or_else(|| spill.bad(record, key, "it was not read"))?;
            if let Some(problem) = shape.problem(bytes, key) {
                return Err(spill.bad(record, key, problem));
            }
            let row = self.allocate()?;
            let until = match found {
                Some((Some(i), _)) => spill.ahead[i].wanted_until(record),
                _ => None,
            };
            shape.read(bytes, self.slabs.weights.words_mut(row), self.slabs.companion.row_mut(row));
            self.index.redirect(key, Entry::full(row));
            if let Some(until) = until {
                spill.want(row, until);
            }
            spill.log.release(record);
            spill.counters.brought_in += 1;
            spill.counters.ahead += u64::from(is_ahead);
        }
        Ok(())
    }

    /// Calls `f` with each key of `keys` that the table has, and with its index entry.
    fn for_each_place(&self, keys: &[FeatureKey], mut f: impl FnMut(FeatureKey, Entry)) {
        for (i, &key) in keys.iter().enumerate() {
            if let Some(&key) = keys.get(i + AHEAD) {
                self.index.prefetch(key);
            }
            if let Some(entry) = self.index.get(key) {
                f(key, entry);
            }
        }
    }

    /// Writes rows to the file until the rows in memory fit into their budget, and continues
    /// compaction. `pull` is the number of the last pull. `step` is the newest step, or `None` if
    /// no step was applied since the last call.
    pub(crate) fn settle(&mut self, pull: u32, step: Option<u32>) -> Result<()> {
        self.settle_beside(pull, step, &|_| false)
    }

    /// Does the work of [`Table::settle`], and keeps the rows for which `is_held` returns `true` in
    /// memory.
    pub(crate) fn settle_beside(
        &mut self,
        pull: u32,
        step: Option<u32>,
        is_held: &dyn Fn(u32) -> bool,
    ) -> Result<()> {
        let Some(mut spill) = self.spill.take() else { return Ok(()) };
        if let Some(step) = step {
            spill.policy.note_step(step);
        }
        let hot = self.slabs.len() as u64;
        // Steps are similar but not equal: the allowance is a quarter more than the last step
        // added, and it shrinks slowly after a large step.
        let grown = hot.saturating_sub(spill.settled);
        spill.allowance = (grown + grown / 4).max(spill.allowance - spill.allowance.div_ceil(64));
        let shrunk = self.shrink(&mut spill, pull, is_held);
        let outcome = shrunk.and_then(|()| self.compact(&mut spill));
        spill.settled = self.slabs.len() as u64;
        self.spill = Some(spill);
        outcome
    }

    /// Makes room in memory for a row that is added outside of a step. `newest` is the newest step
    /// of the rows.
    pub(crate) fn make_room_for_restored(&mut self, newest: u32) -> Result<()> {
        match &self.spill {
            Some(spill) if self.slabs.len() as u64 >= spill.budget_rows => {
                self.settle(0, Some(newest))
            }
            _ => Ok(()),
        }
    }

    fn shrink(
        &mut self,
        spill: &mut Spill,
        pull: u32,
        is_held: &dyn Fn(u32) -> bool,
    ) -> Result<()> {
        let slots = self.index.slots();
        let target = spill.target();
        // Rows that an announced plan needs are spilled only if there are no other rows to spill.
        let mut spare_wanted = true;
        let mut rows: Vec<(f32, FeatureKey, u32)> = Vec::new();
        while self.slabs.len() as u64 > target {
            rows.clear();
            // No slot may be visited twice, so that no row is listed twice.
            let mut visited = 0;
            while visited < slots.len() && rows.len() < COMPARED {
                visited += 1;
                let slot = slots.start + spill.policy.hand;
                spill.policy.hand = (spill.policy.hand + 1) % slots.len();
                let stays = |row: u32| is_held(row) || (spare_wanted && spill.is_wanted(row, pull));
                let entries = self.index.slot_entries(slot);
                let hot = entries.filter(|(_, entry)| !entry.is_cold());
                let leaving = hot.filter(|(_, entry)| !stays(entry.row()));
                rows.extend(leaving.map(|(key, entry)| (0.0, key, entry.row())));
            }
            if rows.is_empty() {
                if !spare_wanted {
                    break;
                }
                spare_wanted = false;
                continue;
            }
            for i in 0..rows.len() {
                if let Some(&(_, _, row)) = rows.get(i + AHEAD) {
                    self.slabs.companion.prefetch(row);
                }
                let meta = self.shape.meta(self.slabs.companion.row(rows[i].2));
                rows[i].0 = spill.policy.worth(meta);
            }
            let over = (self.slabs.len() as u64 - target) as usize;
            // After a visit to all slots there is nothing else to compare with, so all listed rows
            // may leave.
            let part = if visited == slots.len() { 1 } else { LEAVING };
            let leaving = rows.len().div_ceil(part).min(over);
            least(&mut rows, leaving);
            rows.sort_unstable_by_key(|&(_, key, _)| key);
            for &(_, key, row) in &rows {
                self.freeze(spill, key, row)?;
            }
            spill.policy.note_left(rows.len() as u64, spill.budget_rows);
        }
        Ok(())
    }

    /// Moves one row from memory to the file.
    fn freeze(&mut self, spill: &mut Spill, key: FeatureKey, row: u32) -> Result<()> {
        let (weights, companion) = (self.slabs.weights.words(row), self.slabs.companion.row(row));
        let shape = spill.record;
        let record = spill.log.append(|to| shape.write(to, key, weights, companion))?;
        if let Some(tombstones) = &mut self.tombstones {
            tombstones.note_spilled(key, self.shape.meta(companion).dirty_epoch);
        }
        self.index.redirect(key, Entry::cold(record));
        self.slabs.free(row);
        // The key that gets this place next is not known to be needed.
        if let Some(until) = spill.wanted.get_mut(row as usize) {
            *until = 0;
        }
        spill.counters.spilled += 1;
        spill.credit += LOOKED_AT;
        Ok(())
    }

    /// Processes the units that compaction requested in the previous step, and requests more. The
    /// number of checked records grows with the number of written records. So the size of the file
    /// stays bounded, and no step has much more work than other steps.
    fn compact(&mut self, spill: &mut Spill) -> Result<()> {
        let geometry = spill.log.geometry;
        if let Some(mut compaction) = spill.compaction.take() {
            let is_there = spill.log.segment_generation(compaction.segment)
                == compaction.generation
                && spill.log.live(compaction.segment) > 0;
            if is_there {
                if let Some((first, reading)) = compaction.reading.take() {
                    self.keep_live(spill, &mut compaction, first, &reading.wait()?)?;
                }
                let live = spill.log.live(compaction.segment);
                if compaction.next < geometry.units() {
                    spill.compaction = Some(compaction);
                } else if live > 0 {
                    let at =
                        compaction.damaged.unwrap_or(geometry.unit_offset(compaction.segment, 0));
                    let reason = format!(
                        "the records of {live} rows are damaged, the first at byte {at}; restart from the last checkpoint, and \
                         check the disk"
                    );
                    return Err(spill.broken(reason));
                }
            }
        }
        if spill.compaction.is_none() {
            spill.compaction = spill.log.sparsest().map(|segment| Compaction {
                segment,
                generation: spill.log.segment_generation(segment),
                next: 0,
                reading: None,
                damaged: None,
            });
        }
        let Some(compaction) = &mut spill.compaction else {
            // Unused credit is limited, so that a long quiet time does not end in one long step.
            spill.credit = spill.credit.min(geometry.units() * geometry.per_unit);
            return Ok(());
        };
        let units = (spill.credit / geometry.per_unit).min(geometry.units() - compaction.next);
        if units > 0 {
            let (first, segment) = (compaction.next, compaction.segment);
            let offsets: Vec<u64> =
                (first..first + units).map(|unit| geometry.unit_offset(segment, unit)).collect();
            let readers = &spill.home.inner.readers;
            let reading = readers.start(&spill.log.file, &offsets, geometry.unit_bytes());
            compaction.reading = Some((first, reading));
            compaction.next += units;
            spill.credit -= units * geometry.per_unit;
        }
        Ok(())
    }

    /// Appends the live records of some units of a segment to the end of the log.
    fn keep_live(
        &mut self,
        spill: &mut Spill,
        compaction: &mut Compaction,
        first: usize,
        units: &Pieces,
    ) -> Result<()> {
        let (geometry, shape) = (spill.log.geometry, spill.record);
        let mut unit = 0;
        while let Some(bytes) = units.get(unit) {
            for place in 0..geometry.per_unit {
                let record = geometry.number(compaction.segment, first + unit, place);
                let bytes = geometry.in_unit(bytes, place);
                let key = shape.key(bytes);
                let owns = self.index.slots().contains(&key.slot());
                if !owns || self.index.get(key) != Some(Entry::cold(record)) {
                    if compaction.damaged.is_none() && !shape.is_whole(bytes) {
                        compaction.damaged = Some(geometry.offset(record));
                    }
                    continue;
                }
                if let Some(problem) = shape.problem(bytes, key) {
                    return Err(spill.bad(record, key, problem));
                }
                let moved = spill.log.append(|to| to.copy_from_slice(bytes))?;
                self.index.redirect(key, Entry::cold(moved));
                spill.log.release(record);
                spill.counters.compacted += 1;
            }
            unit += 1;
        }
        Ok(())
    }

    /// Reads the records of those `entries` that are not in memory, for a single use.
    pub(crate) fn cold_rows(&self, entries: &[(FeatureKey, Entry)]) -> Result<ColdRows> {
        let Some(spill) = &self.spill else { return Ok(ColdRows::default()) };
        let cold = entries.iter().filter_map(|(_, entry)| entry.record());
        let mut records: Vec<u32> =
            cold.filter(|&record| spill.log.in_memory(record).is_none()).collect();
        if records.is_empty() {
            return Ok(ColdRows::default());
        }
        records.sort_unstable();
        let reading = spill.log.read(&spill.home.inner.readers, &records);
        Ok(ColdRows { pieces: Some(reading.wait()?), records })
    }

    /// Calls `f` with the row of each of `entries`, in their order. The rows can be in memory or on
    /// disk. Entries without a row are left out.
    pub(crate) fn for_each_row(
        &self,
        entries: &[(FeatureKey, Entry)],
        mut f: impl FnMut(FeatureKey, StoredRow<'_>),
    ) -> Result<()> {
        let cold = self.cold_rows(entries)?;
        let mut thawed = Thawed::default();
        for (i, &(key, entry)) in entries.iter().enumerate() {
            if let Some(&(_, soon)) = entries.get(i + AHEAD) {
                self.prefetch_weights(soon);
                self.prefetch_companion(soon);
            }
            if !entry.is_none() {
                f(key, self.row_of(&cold, key, entry, &mut thawed)?);
            }
        }
        Ok(())
    }

    /// Returns the row of an index entry. A row on disk is copied from `cold` to `thawed`. `cold`
    /// must contain the record of this entry.
    pub(crate) fn row_of<'a>(
        &'a self,
        cold: &ColdRows,
        key: FeatureKey,
        entry: Entry,
        thawed: &'a mut Thawed,
    ) -> Result<StoredRow<'a>> {
        if !self.is_cold(entry) {
            return Ok(self.stored_of(entry));
        }
        let (Some(spill), Some(record)) = (&self.spill, entry.record()) else {
            return Err(Error::mismatch(
                self.name(),
                "a row is on disk, but the table does not spill; restart from the last checkpoint",
            ));
        };
        let position = cold.records.binary_search(&record).ok();
        let read = position.zip(cold.pieces.as_ref()).and_then(|(i, pieces)| pieces.get(i));
        let bytes = read.or_else(|| spill.log.in_memory(record));
        let bytes = bytes.ok_or_else(|| spill.bad(record, key, "it was not read"))?;
        if let Some(problem) = spill.record.problem(bytes, key) {
            return Err(spill.bad(record, key, problem));
        }
        spill.record.thaw(bytes, thawed);
        Ok(self.shape.stored_row(thawed.weights(&self.shape), &thawed.companion, false))
    }
}

impl Spill {
    fn want(&mut self, row: u32, until: u32) {
        let row = row as usize;
        if self.wanted.len() <= row {
            self.wanted.resize(row + 1, 0);
        }
        self.wanted[row] = until;
    }

    fn is_wanted(&self, row: u32, pull: u32) -> bool {
        self.wanted.get(row as usize).is_some_and(|&until| until > pull)
    }

    /// Returns an error for a damaged record.
    fn bad(&self, record: u32, key: FeatureKey, problem: &str) -> Error {
        let at = self.log.geometry.offset(record);
        self.broken(format!(
            "the record at byte {at}, of key {:#018x}, is damaged: {problem}; restart from the last checkpoint, and check \
             the disk",
            key.0
        ))
    }

    fn broken(&self, reason: String) -> Error {
        Error::Spill { path: self.log.file.path().to_owned(), reason }
    }
}
