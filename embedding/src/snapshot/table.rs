//! The reading of rows as they were when a snapshot began, while training goes on.
//!
//! Code that is about to change or remove a row that has not changed since the snapshot began keeps
//! the row's image first. The row's own generation says whether the row has changed, and a push has
//! the generation at hand. Therefore no lookup is needed, and a row is copied at most once. Rows
//! that are created later have a later generation and are no part of the snapshot.
//!
//! # Invariants
//! * Slots are written in ascending order. Slots below `pending` are written, and keep no images.
//! * The rows of the snapshot in a pending slot are the table's rows whose generation is not after
//!   the snapshot's, and the images. No key has both.
//! * If there is no memory for an image, the snapshot fails and training goes on.
//!
//! # Concurrency
//! The snapshot of a table is a plain value, owned by one shard's part of the table.

use crate::snapshot::kept::TableSnapshot;

use zillion_feature::FeatureKey;

use crate::admission::KeyAdmission;
use crate::error::{Error, Result};
use crate::index::Entry;
use crate::spill::Thawed;
use crate::table::Table;
use zillion_rows::row::StoredRow;

/// The number of rows between prefetching a row and reading it.
pub(crate) const AHEAD: usize = 16;

/// The current place of a row of the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Live(Entry),
    Image(u32),
}

impl Table {
    /// Begins a snapshot of the rows and candidates as they are now. From now on, changed rows must
    /// be marked with a later generation than `generation`.
    pub(crate) fn begin_snapshot(&mut self, generation: u32) {
        let snapshot = TableSnapshot::new(&self.shape, self.index.slots(), generation);
        self.snapshot = Some(Box::new(snapshot));
        self.candidates.iter_mut().for_each(KeyAdmission::begin_snapshot);
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.begin(generation));
    }

    /// Keeps the images of all rows of pending slots, because a rule is about to change every row.
    pub(crate) fn save_everything(&mut self) {
        let Self { shape, index, slabs, snapshot: Some(snapshot), .. } = self else { return };
        if std::mem::replace(&mut snapshot.is_whole, true) {
            return;
        }
        for slot in snapshot.full.pending..snapshot.full.slots.end {
            for (key, entry) in index.slot_entries(slot) {
                let row = entry.row();
                let (weights, companion) = (slabs.weights.words(row), slabs.companion.row(row));
                snapshot.save(false, shape, key, weights, companion);
            }
        }
    }

    /// Keeps the image of a row that is about to be removed.
    pub(crate) fn save_evicted(&mut self, key: FeatureKey, entry: Entry) {
        let Some(mut snapshot) = self.snapshot.take() else { return };
        let (slabs, row) = self.slabs_of(entry);
        let (shape, companion) = self.companion_of(entry);
        let is_narrow = self.narrow.is_some() && entry.is_narrow();
        snapshot.save(is_narrow, shape, key, slabs.weights.words(row), companion);
        self.snapshot = Some(snapshot);
    }

    /// Calls `f` for the rows that one slot had when the snapshot began, in key order: the narrow
    /// rows if `of_narrow`, else the full ones. With `since`, only rows that changed after the end
    /// of that generation are included. The slot must be pending for this width.
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
        // Of the rows on disk, only those that may have changed are read.
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
            let meta = match self.is_cold(entry) {
                true => self.row_of(&cold, key, entry, &mut thawed)?.meta,
                false => self.meta_of(entry),
            };
            if is_asked(meta.dirty_epoch) {
                places.push((key, Place::Live(entry)));
            }
        }
        let Some(kept) = snapshot.kept(of_narrow) else { return Ok(()) };
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
                Place::Live(entry) => self.row_of(&cold, key, entry, &mut thawed)?,
                Place::Image(image) => kept.row(image, shape, of_narrow),
            };
            f(key, stored);
        }
        Ok(())
    }

    /// Notes that the rows of one width of a slot are written, and frees their images.
    pub(crate) fn rows_written(&mut self, slot: usize, is_narrow: bool) {
        if let Some(snapshot) = &mut self.snapshot {
            let kept = if is_narrow { snapshot.narrow.as_mut() } else { Some(&mut snapshot.full) };
            kept.into_iter().for_each(|kept| kept.forget(slot));
        }
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.trim(slot));
    }

    /// Takes the error that kept an image from being stored, if there was one.
    pub(crate) fn snapshot_failure(&mut self) -> Option<Error> {
        self.snapshot.as_mut().and_then(|snapshot| snapshot.failure.take())
    }

    /// Returns the bytes of rows and candidates that are kept for a snapshot.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        let rows = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes());
        rows + self.candidates.as_ref().map_or(0, KeyAdmission::snapshot_bytes)
    }
}
