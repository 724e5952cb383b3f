//! One shard's part of one table: an index, a slab of weights and a slab of companion rows.
//!
//! # Invariants
//! * In a dense table, rows are numbered in key order, so the rows of a slot are one run. A sweep
//!   therefore reads memory from one end to the other, and adds sums in an order that does not
//!   depend on history.
//!
//! # Concurrency
//! A `Table` is a plain value without locks. One shard owns it.

pub(crate) mod dense;
pub(crate) mod found_rows;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod record;
pub(crate) mod slabs;
pub(crate) mod sweep;
pub(crate) mod uses;
pub(crate) mod weights;

use std::ops::Range;
use std::sync::Arc;

use zillion_feature::FeatureKey;
use zillion_rows::row::StoredRow;

use crate::admission::KeyAdmission;
use crate::changes::Changes;
use crate::error::{Error, Result};
use crate::eviction::capacity::Demand;
use crate::free_list::FreeList;
use crate::groups::ByGroup;
use crate::index::{Entry, Index};
use crate::narrow::Narrow;
use crate::shape::TableShape;
use crate::snapshot::kept::TableSnapshot;
use crate::spill::Spill;
use crate::statistics::{Counters, TableStatistics};
use crate::table::dense::Dense;
use crate::table::found_rows::FoundRows;
use crate::table::slabs::RowSlabs;
use crate::tombstones::Tombstones;

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) shape: Arc<TableShape>,
    pub(crate) index: Index,
    /// The slabs of the full rows.
    pub(crate) slabs: RowSlabs,
    /// The scratch memory for a row in f32, used if the weights have another type.
    pub(crate) scratch: Vec<f32>,
    pub(crate) counters: Counters,
    /// The admission of the table; `None` if every key gets a row at once.
    pub(crate) candidates: Option<KeyAdmission>,
    /// The index entries that the last pull found for its keys.
    pub(crate) known: FoundRows,
    /// The rows that were evicted to make room, which new rows take first.
    pub(crate) free_list: FreeList,
    /// The demand of the present step so far, for each group of slots.
    pub(crate) demand: ByGroup<Demand>,
    /// The additional state of a dense table; `None` in a dynamic table.
    pub(crate) dense: Option<Dense>,
    /// The lists of changed keys; `None` if changes are not tracked.
    pub(crate) changes: Option<Changes>,
    /// The old rows that a snapshot needs; `None` if no snapshot is being written.
    pub(crate) snapshot: Option<Box<TableSnapshot>>,
    /// The tombstones; `None` if no checkpoints of changes are written.
    pub(crate) tombstones: Option<Box<Tombstones>>,
    /// The state of spilling; `None` if the table does not spill. In a table that spills, index
    /// entries can belong to records.
    pub(crate) spill: Option<Box<Spill>>,
    /// The narrow rows; `None` if rows do not grow. In a table with narrow rows, index entries can
    /// belong to narrow rows.
    pub(crate) narrow: Option<Box<Narrow>>,
}

impl Table {
    pub(crate) fn new(shape: Arc<TableShape>, slots: Range<usize>) -> Result<Self> {
        Ok(Self {
            slabs: RowSlabs::new(&shape, &slots)?,
            scratch: Vec::new(),
            counters: Counters::default(),
            candidates: KeyAdmission::new(&shape, slots.clone()),
            known: FoundRows::default(),
            free_list: FreeList::default(),
            demand: ByGroup::new(&slots),
            dense: shape.spec.dense.then(|| Dense::new(slots.clone())),
            changes: None,
            snapshot: None,
            tombstones: None,
            spill: None,
            narrow: Narrow::new(&shape, &slots)?,
            index: Index::new(slots),
            shape,
        })
    }

    pub(crate) fn name(&self) -> &str {
        self.shape.name()
    }

    pub(crate) fn rows(&self) -> u64 {
        self.index.len() as u64
    }

    pub(crate) fn has(&self, key: FeatureKey) -> bool {
        self.index.get(key).is_some()
    }

    /// Takes over the counters of the table that this table replaces.
    pub(crate) fn keep_counters(&mut self, replaced: &Self) {
        self.counters = replaced.counters;
        if let (Some(spill), Some(replaced)) = (&mut self.spill, &replaced.spill) {
            // The figures of the present state in this sum are not read.
            spill.counters.add(&replaced.statistics(0, 0));
        }
    }

    /// Creates the row of a key that has none, with initial weights and initial optimizer state. If
    /// the table's rows grow, the row is narrow. Returns the index entry of the row.
    pub(crate) fn create(&mut self, key: FeatureKey, epoch: u32) -> Result<Entry> {
        let entry = match self.narrow {
            Some(_) => self.make_narrow(key, epoch)?,
            None => Entry::full(self.make_full(key, epoch)?),
        };
        self.counters.created += 1;
        self.demand.of_slot(key.slot()).rows += 1;
        if let Some(changes) = &mut self.changes {
            changes.note(key);
        }
        Ok(entry)
    }

    pub(crate) fn make_full(&mut self, key: FeatureKey, epoch: u32) -> Result<u32> {
        let row = match self.take_free() {
            Some(row) => self.refill(key, row)?,
            None => self.allocate_for(key)?,
        };
        self.slabs
            .weights
            .fill(row, &mut self.scratch, |weights| self.shape.fill_initial(key, weights));
        self.shape.fill_initial_companion(self.slabs.companion.row_mut(row), epoch);
        Ok(row)
    }

    /// Gives the memory of a removed row to a key without a row. The row still has the weights of
    /// the removed row.
    pub(crate) fn refill(&mut self, key: FeatureKey, row: u32) -> Result<u32> {
        if let Err(e) = self.index.insert(key, Entry::full(row)) {
            self.free_list.rows.push(row);
            return Err(e.into());
        }
        self.slabs.companion.row_mut(row).fill(0);
        Ok(row)
    }

    /// Allocates a row of zeros and adds its key to the index. The key must have no row. Returns
    /// the number of the row.
    pub(crate) fn allocate_for(&mut self, key: FeatureKey) -> Result<u32> {
        let row = self.allocate()?;
        if let Err(e) = self.index.insert(key, Entry::full(row)) {
            self.slabs.free(row);
            return Err(e.into());
        }
        Ok(row)
    }

    /// Allocates a row of zeros in both slabs, and returns its number.
    pub(crate) fn allocate(&mut self) -> Result<u32> {
        let row = self.slabs.allocate()?;
        if !Entry::fits_full(row, self.narrow.is_some()) {
            self.slabs.free(row);
            return Err(Error::ShardFull { table: self.shape.name().to_owned() });
        }
        Ok(row)
    }

    /// Adds a row with the values that a checkpoint stored. The key must have no row.
    pub(crate) fn restore_row(&mut self, key: FeatureKey, stored: StoredRow<'_>) -> Result<()> {
        if stored.is_narrow {
            return self.restore_narrow_row(key, stored);
        }
        self.make_room_for_restored(stored.meta.last_step)?;
        let row = self.allocate_for(key)?;
        self.slabs.restore(row, &self.shape, stored);
        Ok(())
    }

    /// Completes the restoring of rows. The caller must call this function after it has added the
    /// last row, in key order.
    pub(crate) fn finish_restoring(&mut self) {
        if let Some(dense) = &mut self.dense {
            dense.renumber(&self.index);
        }
    }

    /// Calls `f` for the rows of one slot, in key order.
    pub(crate) fn for_each_in_slot(
        &self,
        slot: usize,
        f: impl FnMut(FeatureKey, StoredRow<'_>),
    ) -> Result<()> {
        let mut entries: Vec<(FeatureKey, Entry)> = self.index.slot_entries(slot).collect();
        entries.sort_unstable();
        self.for_each_row(&entries, f)
    }

    pub(crate) fn statistics(&self) -> TableStatistics {
        let (mut weights, mut companion) =
            (self.slabs.weights.bytes(), self.slabs.companion.bytes());
        weights.used -= self.free_list.len() * self.shape.spec.weight_bytes();
        companion.used -= self.free_list.len() * self.shape.companion_stride * size_of::<u32>();
        weights.bookkeeping += self.free_list.bytes();
        if let Some(narrow) = &self.narrow {
            weights = crate::narrow::sum_bytes(weights, narrow.slabs.weights.bytes());
            companion = crate::narrow::sum_bytes(companion, narrow.slabs.companion.bytes());
            weights.bookkeeping += narrow.bookkeeping();
        }
        let staged = self.dense.as_ref().map_or(0, Dense::bytes);
        let reserved = weights.reserved + weights.bookkeeping;
        let companion_reserved = companion.reserved + companion.bookkeeping;
        let used = weights.used + companion.used;
        TableStatistics {
            table: self.shape.name().to_owned(),
            rows: self.rows(),
            narrow_rows: self.narrow_rows(),
            candidates: self.candidates.as_ref().map_or(0, |c| c.len() as u64),
            payload_bytes: weights.used as u64,
            state_bytes: companion.used as u64,
            index_bytes: self.index.bytes() as u64,
            candidate_bytes: self.candidates.as_ref().map_or(0, |c| c.bytes() as u64),
            staged_bytes: staged as u64,
            change_bytes: (self.changes.as_ref().map_or(0, Changes::bytes)
                + self.tombstones.as_ref().map_or(0, |tombstones| tombstones.bytes()))
                as u64,
            snapshot_bytes: self.snapshot_bytes() as u64,
            slack_bytes: (reserved + companion_reserved - used) as u64,
            spill: self
                .spill
                .as_ref()
                .map(|spill| spill.statistics(self.slabs.len() as u64, self.rows())),
            counters: self.counters,
        }
    }
}
