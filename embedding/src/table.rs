//! One shard's part of one table: an index, a slab of weights and a companion slab.
//!
//! # Invariants
//! * Row `r` of the weight slab and row `r` of the companion slab belong to the same key, or are
//!   free; both slabs hand out the lowest free number and see the same calls.
//! * In a dense table rows are numbered in key order. The rows of a slot are one run, so that a
//!   sweep walks memory from one end to the other and takes sums in an order that does not depend
//!   on history.
//!
//! # Concurrency
//! A `Table` is a plain value, owned by one shard.

pub(crate) mod dense;
pub(crate) mod found_rows;
pub(crate) mod pull;
pub(crate) mod push;
pub(crate) mod sweep;
pub(crate) mod uses;
pub(crate) mod weights;

use std::ops::Range;
use std::sync::Arc;

use zillion_device::slab::Slab;
use zillion_feature::FeatureKey;
use zillion_rows::row::StoredRow;

use crate::admission::KeyAdmission;
use crate::changes::Changes;
use crate::error::{Error, Result};
use crate::eviction::capacity::Demand;
use crate::free_list::FreeList;
use crate::index::{Entry, Index};
use crate::narrow::Narrow;
use crate::shape::TableShape;
use crate::snapshot::kept::TableSnapshot;
use crate::spill::{Spill, Thawed};
use crate::statistics::{Counters, TableStatistics};
use crate::table::dense::Dense;
use crate::table::found_rows::FoundRows;
use crate::table::weights::WeightSlab;
use crate::tombstones::Tombstones;

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) shape: Arc<TableShape>,
    pub(crate) index: Index,
    pub(crate) weights: WeightSlab,
    pub(crate) companion: Slab<u32>,
    /// The memory for a row in f32, used if the weights have another type.
    pub(crate) scratch: Vec<f32>,
    pub(crate) counters: Counters,
    /// The admission of the table; present if keys wait for their rows.
    pub(crate) candidates: Option<KeyAdmission>,
    /// The entries that the last pull found for its keys.
    pub(crate) known: FoundRows,
    /// The places of rows that were evicted to make room, for new rows to take.
    pub(crate) free_list: FreeList,
    /// The demand of this step so far.
    pub(crate) demand: Demand,
    /// The state of a dense table; present if the vocabulary is fixed.
    pub(crate) dense: Option<Dense>,
    /// The lists of changed keys; present while changes are tracked.
    pub(crate) changes: Option<Changes>,
    /// The rows as a snapshot needs them; present while a snapshot is written.
    pub(crate) snapshot: Option<Box<TableSnapshot>>,
    /// The tombstones; present if checkpoints of changes are written.
    pub(crate) tombstones: Option<Box<Tombstones>>,
    /// The state of spilling; present if rows may leave memory. Index entries may then name
    /// records.
    pub(crate) spill: Option<Box<Spill>>,
    /// The narrow rows; present if rows grow. Index entries may then name rows of their slabs.
    pub(crate) narrow: Option<Box<Narrow>>,
}

impl Table {
    pub(crate) fn new(shape: Arc<TableShape>, slots: Range<usize>) -> Result<Self> {
        let shard = weights::shard_with(&slots);
        Ok(Self {
            weights: WeightSlab::new(&shape, shard)?,
            companion: Slab::new(shape.companion_stride)?.staggered(shard),
            scratch: Vec::new(),
            counters: Counters::default(),
            candidates: KeyAdmission::new(&shape, slots.clone()),
            known: FoundRows::default(),
            free_list: FreeList::default(),
            demand: Demand::default(),
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

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Copies the counters of the table that this table replaces.
    pub(crate) fn keep_counters(&mut self, replaced: &Self) {
        self.counters = replaced.counters;
        if let (Some(spill), Some(replaced)) = (&mut self.spill, &replaced.spill) {
            spill.keep_counters(replaced);
        }
    }

    /// Returns the number of rows of one of this shard's slots.
    pub(crate) fn slot_rows(&self, slot: usize) -> usize {
        self.index.slot_len(slot)
    }

    /// Creates the row of a key that has none, with initial weights and initial state. The row is
    /// narrow if the table's rows grow.
    pub(crate) fn create(&mut self, key: FeatureKey, epoch: u32) -> Result<Entry> {
        let entry = match self.narrow {
            Some(_) => self.make_narrow(key, epoch)?,
            None => Entry::full(self.make_full(key, epoch)?),
        };
        self.counters.created += 1;
        self.demand.rows += 1;
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
        self.weights.fill(row, &mut self.scratch, |weights| self.shape.fill_initial(key, weights));
        self.shape.fill_initial_companion(self.companion.row_mut(row), epoch);
        Ok(row)
    }

    /// Gives the place of a removed row to a key without a row. The weights are still those of the
    /// removed row.
    pub(crate) fn refill(&mut self, key: FeatureKey, row: u32) -> Result<u32> {
        if let Err(e) = self.index.insert(key, Entry::full(row)) {
            self.keep_free(row);
            return Err(e.into());
        }
        self.companion.row_mut(row).fill(0);
        Ok(row)
    }

    /// Allocates a row of zeros and inserts the key into the index; the key must have no row.
    pub(crate) fn allocate_for(&mut self, key: FeatureKey) -> Result<u32> {
        let row = self.allocate()?;
        if let Err(e) = self.index.insert(key, Entry::full(row)) {
            self.weights.free(row);
            self.companion.free(row);
            return Err(e.into());
        }
        Ok(row)
    }

    /// Allocates a row of zeros in both slabs.
    pub(crate) fn allocate(&mut self) -> Result<u32> {
        let row = self.weights.alloc()?;
        let twin = match self.companion.alloc() {
            Ok(twin) => twin,
            Err(e) => {
                self.weights.free(row);
                return Err(e.into());
            }
        };
        debug_assert_eq!(row, twin, "both slabs hand out the lowest free row");
        if !Entry::fits_full(row, self.narrow.is_some()) {
            self.weights.free(row);
            self.companion.free(row);
            return Err(Error::ShardFull { table: self.shape.name().to_owned() });
        }
        Ok(row)
    }

    /// Adds a row as a checkpoint stored it; the key must have no row.
    pub(crate) fn restore_row(&mut self, key: FeatureKey, stored: StoredRow<'_>) -> Result<()> {
        self.make_room_for_restored(stored.meta.last_step)?;
        let row = self.allocate_for(key)?;
        self.weights.restore(row, stored.weights);
        let companion = self.companion.row_mut(row);
        zillion_rows::row::floats_mut(&mut companion[..self.shape.state_width])
            .copy_from_slice(stored.state);
        self.shape.set_meta(companion, stored.meta);
        self.shape.set_used(companion, stored.used);
        Ok(())
    }

    /// Completes the restoring of rows in key order. The function must be called after the last
    /// row.
    pub(crate) fn restored(&mut self) {
        if let Some(dense) = &mut self.dense {
            dense.renumbered(&self.index);
        }
    }

    /// Calls `f` for the rows of one slot, in key order.
    pub(crate) fn for_each_in_slot(
        &self,
        slot: usize,
        mut f: impl FnMut(FeatureKey, StoredRow<'_>),
    ) -> Result<()> {
        let mut entries: Vec<(FeatureKey, Entry)> = self.index.slot_entries(slot).collect();
        entries.sort_unstable();
        let cold = self.cold_rows(&entries)?;
        let mut thawed = Thawed::default();
        for (key, entry) in entries {
            if self.is_cold(entry) {
                self.thaw(&cold, key, entry, &mut thawed)?;
                let (weights, companion) = (thawed.weights(&self.shape), &thawed.companion);
                f(key, self.shape.stored_row(weights, companion, false));
            } else {
                f(key, self.stored_of(entry));
            }
        }
        Ok(())
    }

    pub(crate) fn statistics(&self) -> TableStatistics {
        let (mut weights, mut companion) = (self.weights.bytes(), self.companion.bytes());
        weights.used -= self.free_list.len() * self.shape.spec.weight_bytes();
        companion.used -= self.free_list.len() * self.shape.companion_stride * size_of::<u32>();
        weights.bookkeeping += self.free_list.bytes();
        if let Some(narrow) = &self.narrow {
            weights = crate::narrow::both(weights, narrow.weights.bytes());
            companion = crate::narrow::both(companion, narrow.companion.bytes());
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
            change_bytes: (self.changes.as_ref().map_or(0, Changes::bytes) + self.tombstone_bytes())
                as u64,
            snapshot_bytes: self.snapshot_bytes() as u64,
            slack_bytes: (reserved + companion_reserved - used) as u64,
            spill: self.spill_statistics(),
            counters: self.counters,
        }
    }
}
