//! The bookkeeping of a step whose arithmetic is done by a device: keys are found, counted and
//! admitted, rows are created, and metadata and lists of changes are updated, as a pull, a push and
//! a sweep do it. Weights and optimizer state stay as they are.

use zillion_device::simd::vectorised;
use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::index::{AtHome, Entry};
use crate::prefetch::in_turn;
use crate::shape::{TableShape, TableStep};
use crate::table::Table;
use crate::table::push::{Push, Times, touch};
use zillion_rows::row::Meta;

/// The rows of a step's keys in one shard's part of a table.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The number of the row of each key, or [`Record::NO_ROW`].
    pub(crate) rows: Vec<u32>,
    /// The number of pushes that each row had before the step.
    pub(crate) counts: Vec<u32>,
    /// The positions of the keys whose rows are new, in ascending order.
    pub(crate) new: Vec<u32>,
    /// The positions of the keys that waited for admission or for room when the step began, in
    /// ascending order. Gradients of such keys have no part in the norm of the step.
    pub(crate) waiting: Vec<u32>,
    /// The number of keys that have a row.
    pub(crate) found: u64,
    /// The number of keys that had no row when the step began.
    missing: u64,
}

/// The state of a pass over keys.
struct Pass<'a> {
    table: &'a mut Table,
    record: &'a mut Record,
}

impl Record {
    /// The number in place of a row of a key without a row.
    pub(crate) const NO_ROW: u32 = u32::MAX;

    fn clear(&mut self) {
        for list in [&mut self.rows, &mut self.counts, &mut self.new, &mut self.waiting] {
            list.clear();
        }
        (self.found, self.missing) = (0, 0);
    }

    /// Adds the row of the next key, which has been pushed `count` times.
    #[inline(always)]
    fn add(&mut self, row: u32, count: u32) {
        self.rows.push(row);
        self.counts.push(count);
    }
}

impl Table {
    /// Finds the rows of keys that the step does not change, as a pull does.
    pub(crate) fn record_pull(&mut self, keys: &[FeatureKey], record: &mut Record) {
        record.clear();
        for &key in keys {
            match self.index.get(key) {
                Some(entry) => record.add(entry.row(), self.meta_of(entry).count),
                None => {
                    record.missing += 1;
                    record.add(Record::NO_ROW, 0);
                }
            }
        }
        record.found = keys.len() as u64 - record.missing;
        self.count_pull(keys, record);
    }

    /// Does the bookkeeping of a pull and a push, in a table without whole-table rules. If
    /// `has_norm` is true, the norm of the step's gradients is needed.
    pub(crate) fn record_push(
        &mut self,
        keys: &[FeatureKey],
        occurrences: Times<'_>,
        step: &TableStep,
        has_norm: bool,
        record: &mut Record,
    ) -> Result<()> {
        record.clear();
        self.count_demand(keys);
        let permits = &step.permits;
        if has_norm && (self.candidates.is_some() || !permits.runs.is_empty()) {
            // Keys can share the counters of a filter, so all keys are asked before one is counted.
            for (i, &key) in keys.iter().enumerate() {
                if !self.has(key)
                    && (!permits.has(occurrences.first + i)
                        || self.waits(key, || occurrences.of(i), step.at.step))
                {
                    record.waiting.push(i as u32);
                }
            }
        }
        let shape = &*self.shape.clone();
        let push = Push { shape, keys, gradients: &[], occurrences, step, known: None };
        let mut pass = Pass { table: self, record };
        vectorised(
            #[inline(always)]
            || {
                in_turn(
                    &mut pass,
                    keys.len(),
                    #[inline(always)]
                    |pass, i| push.ask(pass.table, i),
                    #[inline(always)]
                    |pass, i| push.look(pass.table, i),
                    #[inline(always)]
                    |pass, i| pass.look_again(&push, i),
                    #[inline(always)]
                    |pass, i, entry| pass.note(&push, i, entry),
                )
            },
        )?;
        self.count_pull(keys, record);
        Ok(())
    }

    /// Does the bookkeeping of a pull, of the staging of gradients and of a sweep, in a table with
    /// whole-table rules. If `marks` is true, the rows get the dirty epoch of the step; else they
    /// have it already.
    pub(crate) fn record_sweep(
        &mut self,
        keys: &[FeatureKey],
        step: &TableStep,
        marks: bool,
        record: &mut Record,
    ) {
        self.record_pull(keys, record);
        self.counters.refused += record.missing;
        self.save_everything();
        if let Some(changes) = &mut self.changes {
            changes.note_everything();
        }
        let shape = &*self.shape.clone();
        let rows = self.dense.as_ref().map_or(0, |dense| dense.rows());
        for row in (0..rows).filter(|_| marks) {
            let companion = self.slabs.companion.row_mut(row);
            let meta = Meta { dirty_epoch: step.epoch, ..shape.meta(companion) };
            shape.set_meta(companion, meta);
        }
        for &row in record.rows.iter().filter(|row| **row != Record::NO_ROW) {
            touch(shape, self.slabs.companion.row_mut(row), step);
        }
    }

    fn count_pull(&mut self, keys: &[FeatureKey], record: &Record) {
        self.counters.pulled += keys.len() as u64;
        self.counters.missing += record.missing;
    }
}

impl Pass<'_> {
    /// Finds or creates the row of a key that the first lookup has not found.
    fn look_again(&mut self, push: &Push<'_>, i: usize) -> Result<Entry> {
        let is_known = match self.table.index.get_at_home(push.keys[i]) {
            AtHome::Found(_) => true,
            AtHome::Absent => false,
            AtHome::Beyond => self.table.has(push.keys[i]),
        };
        let entry = push.look_again(self.table, i)?;
        if !is_known {
            self.record.missing += 1;
            if !entry.is_none() {
                self.record.new.push(i as u32);
            }
        }
        Ok(entry)
    }

    /// Records the push of a key. The keys come in their order.
    #[inline(always)]
    fn note(&mut self, push: &Push<'_>, i: usize, entry: Entry) {
        if entry.is_none() {
            return self.record.add(Record::NO_ROW, 0);
        }
        let row = entry.row();
        let shape: &TableShape = push.shape;
        let Table { slabs, changes, snapshot, .. } = &mut *self.table;
        let companion = slabs.companion.row_mut(row);
        if let Some(snapshot) = snapshot {
            snapshot.save(false, shape, push.keys[i], slabs.weights.words(row), companion);
        }
        self.record.found += 1;
        self.record.add(row, shape.meta(companion).count);
        push.note(shape, changes, companion, i);
    }
}
