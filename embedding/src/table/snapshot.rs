//! Rows as they were when a snapshot began, while training goes on.
//!
//! Whoever is about to change or remove a row that has not changed since the snapshot began keeps its image
//! first. Whether it has is what the row's own era says, which a push has at hand: nothing is looked up, and
//! a row is copied once at most. Rows that are created later have a later era and are no part of it.
//!
//! # Invariants
//! * Slots are written in ascending order: those below `pending` are, and keep no images.
//! * Of a pending slot, the rows of the snapshot are those in the table whose era is not after the snapshot's
//!   and the images. No key has both.
//! * An image for which there is no memory spoils the snapshot and nothing else: training goes on.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

use std::ops::Range;

use zillion_device::slab::Slab;
use zillion_feature::FeatureKey;

use super::images::{Images, NONE};
use super::spill::is_cold;
use super::weights::{RowWeights, WeightSlab};
use super::{DROPPED, StoredRow, Table};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::shape::{TableShape, floats};
use crate::spill::Thawed;

/// Rows that are asked for before they are looked at.
const AHEAD: usize = 16;

/// What is kept for a snapshot of one shard's part of a table.
#[derive(Debug)]
pub(crate) struct TableSnapshot {
    /// Rows of later eras have changed since.
    era: u32,
    slots: Range<usize>,
    /// The first slot that is not written yet.
    pending: usize,
    /// Whether every row that could change has an image, because a rule has moved them all.
    is_whole: bool,
    /// By slot, the newest image; empty until there is one.
    newest: Vec<u32>,
    images: Images,
    /// Why an image is missing.
    failure: Option<Error>,
}

/// Where a row of the snapshot is now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Live(u32),
    Image(u32),
}

impl TableSnapshot {
    fn new(shape: &TableShape, slots: Range<usize>, era: u32) -> Self {
        Self {
            era,
            pending: slots.start,
            slots,
            is_whole: false,
            newest: Vec::new(),
            images: Images::new(
                shape.spec.weight_bytes() / size_of::<u32>(),
                shape.companion_stride,
            ),
            failure: None,
        }
    }

    /// Keeps the images of rows that are about to change or to go, where they have none. `rows` may hold
    /// [`DROPPED`].
    pub(super) fn save(
        &mut self,
        shape: &TableShape,
        weights: &WeightSlab,
        companion: &Slab<u32>,
        keys: &[FeatureKey],
        rows: &[u32],
    ) {
        for (&key, &row) in keys.iter().zip(rows) {
            if row == DROPPED || key.slot() < self.pending {
                continue;
            }
            let twin = companion.row(row);
            if shape.meta(twin).dirty_epoch <= self.era {
                self.keep(key, weights.words(row), twin);
            }
        }
    }

    /// Adds an image to the list of its slot.
    #[inline]
    fn keep(&mut self, key: FeatureKey, weights: &[u32], companion: &[u32]) {
        if self.newest.is_empty() {
            self.newest = vec![NONE; self.slots.len()];
        }
        let newest = &mut self.newest[key.slot() - self.slots.start];
        match self.images.keep(key, *newest, weights, companion) {
            Ok(image) => *newest = image,
            Err(e) => self.spoil(e),
        }
    }

    /// Gives up: nothing is kept from here on.
    #[cold]
    fn spoil(&mut self, failure: Error) {
        self.pending = self.slots.end;
        self.newest = Vec::new();
        self.images = Images::new(0, 0);
        self.failure = Some(failure);
    }

    /// The images of a slot and their keys.
    fn images(&self, slot: usize) -> impl Iterator<Item = (FeatureKey, u32)> {
        let mut next = self.newest.get(slot - self.slots.start).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let image = next;
            let (key, before) = self.images.head(image)?;
            next = before;
            Some((key, image))
        })
    }

    /// Forgets the images of a slot, which is written.
    fn forget(&mut self, slot: usize) {
        if let Some(newest) = self.newest.get_mut(slot - self.slots.start) {
            let mut image = std::mem::replace(newest, NONE);
            while image != NONE {
                image = self.images.release(image);
            }
        }
        self.pending = self.pending.max(slot + 1);
    }

    fn bytes(&self) -> usize {
        self.images.bytes() + self.newest.capacity() * size_of::<u32>()
    }
}

impl Table {
    /// Begins a snapshot of the rows and of the keys that wait, as they are. Rows must be marked with a later
    /// era than `era` from now on.
    pub(crate) fn begin_snapshot(&mut self, era: u32) {
        let snapshot = TableSnapshot::new(&self.shape, self.index.slots(), era);
        self.snapshot = Some(Box::new(snapshot));
        self.gate_mut().into_iter().for_each(Gate::begin_snapshot);
    }

    /// Keeps the images of all rows of pending slots: a rule is about to move every row.
    pub(super) fn save_everything(&mut self) {
        let Self { shape, index, weights, companion, snapshot: Some(snapshot), .. } = self else {
            return;
        };
        if std::mem::replace(&mut snapshot.is_whole, true) {
            return;
        }
        for slot in snapshot.pending..snapshot.slots.end {
            for (key, row) in index.slot_entries(slot) {
                snapshot.save(shape, weights, companion, &[key], &[row]);
            }
        }
    }

    /// Keeps the image of a row that is about to go.
    pub(super) fn save_evicted(&mut self, key: FeatureKey, row: u32) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.save(&self.shape, &self.weights, &self.companion, &[key], &[row]);
        }
    }

    /// Calls `f` for the rows that one slot had when the snapshot began, in key order; with `since`, for those of them
    /// that changed after the end of that era. The slot is pending.
    pub(crate) fn for_each_before(
        &self,
        slot: usize,
        since: Option<u32>,
        mut f: impl FnMut(FeatureKey, StoredRow<'_>),
    ) -> Result<()> {
        let Some(snapshot) = &self.snapshot else { return Ok(()) };
        let is_asked = |era: u32| era <= snapshot.era && since.is_none_or(|since| era > since);
        // Of rows on disk only those are read that may have changed.
        let departed = self.departed.as_ref().zip(since);
        let changed = departed.map(|(departed, since)| departed.spilled_since(slot, since));
        let entries = self.index.slot_entries(slot);
        let entries: Vec<(FeatureKey, u32)> = match &changed {
            None => entries.collect(),
            Some(changed) => {
                let is_listed = |key: FeatureKey| changed.binary_search(&key.0).is_ok();
                entries.filter(|&(key, row)| !is_cold(row) || is_listed(key)).collect()
            }
        };
        let cold = self.cold_rows(&entries)?;
        let mut thawed = Thawed::default();
        let mut places = Vec::with_capacity(entries.len());
        for (i, &(key, row)) in entries.iter().enumerate() {
            if let Some(&(_, row)) = entries.get(i + AHEAD) {
                self.companion.prefetch(row);
            }
            let companion = if is_cold(row) {
                self.thaw(&cold, key, row, &mut thawed)?;
                &thawed.companion
            } else {
                self.companion.row(row)
            };
            if is_asked(self.shape.meta(companion).dirty_epoch) {
                places.push((key, Place::Live(row)));
            }
        }
        places.extend(snapshot.images(slot).filter_map(|(key, image)| {
            let (_, companion) = snapshot.images.row(image);
            is_asked(self.shape.meta(companion).dirty_epoch).then_some((key, Place::Image(image)))
        }));
        places.sort_unstable();
        for (i, &(key, place)) in places.iter().enumerate() {
            if let Some(&(_, Place::Live(row))) = places.get(i + AHEAD) {
                self.weights.prefetch(row);
            }
            let (dtype, width) = (self.shape.spec.dtype, self.shape.width);
            let (weights, companion) = match place {
                Place::Live(row) if is_cold(row) => {
                    self.thaw(&cold, key, row, &mut thawed)?;
                    (thawed.weights(&self.shape), thawed.companion.as_slice())
                }
                Place::Live(row) => (self.weights.stored(row, width), self.companion.row(row)),
                Place::Image(image) => {
                    let (words, companion) = snapshot.images.row(image);
                    (RowWeights::of_words(words, dtype, width), companion)
                }
            };
            let stored = StoredRow {
                weights,
                state: floats(&companion[..self.shape.state_width]),
                meta: self.shape.meta(companion),
                used: self.shape.used(companion),
            };
            f(key, stored);
        }
        Ok(())
    }

    /// Notes that a slot's rows are written: nothing of it is kept any more.
    pub(crate) fn slot_written(&mut self, slot: usize) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.forget(slot);
        }
        self.trim_departed(slot);
    }

    /// Ends the snapshot of the rows. What was kept is for the caller to drop where that costs no step its time.
    pub(crate) fn end_snapshot(&mut self) -> Option<Box<TableSnapshot>> {
        self.snapshot.take()
    }

    /// Why an image is missing, where one is.
    pub(crate) fn snapshot_failure(&mut self) -> Option<Error> {
        self.snapshot.as_mut().and_then(|snapshot| snapshot.failure.take())
    }

    /// Bytes of what is kept for a snapshot.
    pub(super) fn snapshot_bytes(&self) -> usize {
        let rows = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes());
        rows + self.gate().map_or(0, Gate::snapshot_bytes)
    }
}
