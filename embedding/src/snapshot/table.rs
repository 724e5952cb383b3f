//! Rows as they were when a snapshot began, while training goes on.
//!
//! Whoever is about to change or remove a row that has not changed since the snapshot began keeps
//! its image first. Whether it has is what the row's own generation says, which a push has at hand:
//! nothing is looked up, and a row is copied once at most. Rows that are created later have a later
//! generation and are no part of it.
//!
//! # Invariants
//! * Slots are written in ascending order: those below `pending` are, and keep no images.
//! * Of a pending slot, the rows of the snapshot are those in the table whose generation is not
//!   after the snapshot's and the images. No key has both.
//! * An image for which there is no memory spoils the snapshot and nothing else: training goes on.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

use crate::snapshot::kept::TableSnapshot;

use zillion_feature::FeatureKey;

use crate::admission::KeyAdmission;
use crate::error::{Error, Result};
use crate::index::Entry;
use crate::spill::Thawed;
use crate::table::Table;
use zillion_rows::row::StoredRow;

/// Rows that are asked for before they are looked at.
pub(crate) const AHEAD: usize = 16;

/// The place of a row of the snapshot now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Live(Entry),
    Image(u32),
}

impl Table {
    /// Begins a snapshot of the rows and of the keys that wait, as they are. Rows must be marked
    /// with a later generation than `generation` from now on.
    pub(crate) fn begin_snapshot(&mut self, generation: u32) {
        let snapshot = TableSnapshot::new(&self.shape, self.index.slots(), generation);
        self.snapshot = Some(Box::new(snapshot));
        self.admission_mut().into_iter().for_each(KeyAdmission::begin_snapshot);
    }

    /// Keeps the images of all rows of pending slots: a rule is about to move every row.
    pub(crate) fn save_everything(&mut self) {
        let Self { shape, index, weights, companion, snapshot: Some(snapshot), .. } = self else {
            return;
        };
        if std::mem::replace(&mut snapshot.is_whole, true) {
            return;
        }
        for slot in snapshot.full.pending..snapshot.full.slots.end {
            for (key, entry) in index.slot_entries(slot) {
                let row = entry.row();
                snapshot.save(shape, key, weights.words(row), companion.row(row));
            }
        }
    }

    /// Keeps the image of a row that is about to go.
    pub(crate) fn save_evicted(&mut self, key: FeatureKey, entry: Entry) {
        let Some(snapshot) = &mut self.snapshot else { return };
        match (&self.narrow, self.shape.narrow.as_deref(), entry.narrow_row()) {
            (Some(narrow), Some(shape), Some(row)) => {
                let (weights, companion) = (narrow.weights.words(row), narrow.companion.row(row));
                snapshot.save_narrow(&shape.shape, key, weights, companion);
            }
            _ => {
                let row = entry.row();
                let (weights, companion) = (self.weights.words(row), self.companion.row(row));
                snapshot.save(&self.shape, key, weights, companion);
            }
        }
    }

    /// Calls `f` for the rows that one slot had when the snapshot began, in key order: the full
    /// ones, or those that were narrow; with `since`, for those of them that changed after the end
    /// of that generation. The slot is pending for this width.
    pub(crate) fn for_each_before(
        &self,
        slot: usize,
        of_narrow: bool,
        since: Option<u32>,
        mut f: impl FnMut(FeatureKey, StoredRow<'_>),
    ) -> Result<()> {
        let Some(snapshot) = &self.snapshot else { return Ok(()) };
        let is_asked = |generation: u32| {
            generation <= snapshot.generation && since.is_none_or(|since| generation > since)
        };
        // Of rows on disk only those are read that may have changed.
        let tombstones = self.tombstones.as_ref().zip(since);
        let changed = tombstones.map(|(tombstones, since)| tombstones.spilled_since(slot, since));
        let is_of_width = |entry: Entry| (self.narrow.is_some() && entry.is_narrow()) == of_narrow;
        let entries = self.index.slot_entries(slot).filter(|&(_, entry)| is_of_width(entry));
        let entries: Vec<(FeatureKey, Entry)> = match &changed {
            None => entries.collect(),
            Some(changed) => {
                let is_listed = |key: FeatureKey| changed.binary_search(&key.0).is_ok();
                entries.filter(|&(key, entry)| !self.is_cold(entry) || is_listed(key)).collect()
            }
        };
        let cold = self.cold_rows(&entries)?;
        let mut thawed = Thawed::default();
        let mut places = Vec::with_capacity(entries.len());
        for (i, &(key, entry)) in entries.iter().enumerate() {
            if let Some(&(_, soon)) = entries.get(i + AHEAD) {
                self.prefetch_companion(soon);
            }
            let meta = if self.is_cold(entry) {
                self.thaw(&cold, key, entry, &mut thawed)?;
                self.shape.meta(&thawed.companion)
            } else {
                self.meta_of(entry)
            };
            if is_asked(meta.dirty_epoch) {
                places.push((key, Place::Live(entry)));
            }
        }
        let kept = match of_narrow {
            true => snapshot.narrow.as_ref(),
            false => Some(&snapshot.full),
        };
        let Some(kept) = kept else { return Ok(()) };
        let shape = self.shape.of_width(of_narrow);
        places.extend(kept.images(slot).filter_map(|(key, image)| {
            let generation = kept.row(image, shape, of_narrow).meta.dirty_epoch;
            is_asked(generation).then_some((key, Place::Image(image)))
        }));
        places.sort_unstable();
        for (i, &(key, place)) in places.iter().enumerate() {
            if let Some(&(_, Place::Live(soon))) = places.get(i + AHEAD) {
                self.prefetch_weights(soon);
            }
            let stored = match place {
                Place::Live(entry) if self.is_cold(entry) => {
                    self.thaw(&cold, key, entry, &mut thawed)?;
                    let weights = thawed.weights(&self.shape);
                    self.shape.stored_row(weights, &thawed.companion, false)
                }
                Place::Live(entry) => self.stored_of(entry),
                Place::Image(image) => kept.row(image, shape, of_narrow),
            };
            f(key, stored);
        }
        Ok(())
    }

    /// Notes that a slot's full rows are written: nothing of them is kept any more.
    pub(crate) fn slot_written(&mut self, slot: usize) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.full.forget(slot);
        }
        self.trim_departed(slot);
    }

    /// The same for its narrow rows.
    pub(crate) fn narrow_slot_written(&mut self, slot: usize) {
        if let Some(narrow) = self.snapshot.as_mut().and_then(|snapshot| snapshot.narrow.as_mut()) {
            narrow.forget(slot);
        }
    }

    /// Ends the snapshot of the rows. What was kept is for the caller to drop where that costs no
    /// step its time.
    pub(crate) fn end_snapshot(&mut self) -> Option<Box<TableSnapshot>> {
        self.snapshot.take()
    }

    /// Why an image is missing, where one is.
    pub(crate) fn snapshot_failure(&mut self) -> Option<Error> {
        self.snapshot.as_mut().and_then(|snapshot| snapshot.failure.take())
    }

    /// Bytes of what is kept for a snapshot.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        let rows = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes());
        rows + self.admission().map_or(0, KeyAdmission::snapshot_bytes)
    }
}
