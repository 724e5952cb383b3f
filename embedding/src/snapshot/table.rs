//! The functions of a table that keep the old content of rows for a snapshot, and read the rows as
//! they were when the snapshot began.
//!
//! Before code changes or removes a row for the first time after the snapshot began, it keeps an
//! image of the row. The generation of the row says whether the row has changed already, and a push
//! reads the generation in any case. So no further lookup is needed, and a row is copied at most
//! once. Rows that are created after the beginning have a later generation and do not belong to the
//! snapshot.
//!
//! # Invariants
//! * Slots are written in ascending order. The slots below `pending` have been written and keep no
//!   images.
//! * In a pending slot, the rows of the snapshot are of two kinds: images, and rows of the table
//!   whose generation is not later than that of the snapshot. No key has both.
//! * If there is no memory for an image, the snapshot fails and training goes on.
//!
//! # Concurrency
//! The snapshot of a table is a plain value without locks. One shard's part of the table owns it.

use crate::snapshot::kept::TableSnapshot;

use zillion_feature::FeatureKey;

use crate::admission::KeyAdmission;
use crate::error::{Error, Result};
use crate::index::Entry;
use crate::spill::Thawed;
use crate::table::Table;
use zillion_rows::row::StoredRow;

/// The number of rows between the prefetch of a row and its use.
pub(crate) const AHEAD: usize = 16;

/// The place where the old content of a row of the snapshot is now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Live(Entry),
    Image(u32),
}

impl Table {
    /// Begins a snapshot of the present rows and candidates. After this call, the caller must mark
    /// changed rows with a later generation than `generation`.
    pub(crate) fn begin_snapshot(&mut self, generation: u32) {
        let snapshot = TableSnapshot::new(&self.shape, self.index.slots(), generation);
        self.snapshot = Some(Box::new(snapshot));
        self.candidates.iter_mut().for_each(KeyAdmission::begin_snapshot);
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.begin(generation));
    }

    /// Keeps images of all rows of the pending slots, because a rule is about to change every row.
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

    /// Calls `f` for the rows of one slot as they were when the snapshot began, in key order. The
    /// function visits the narrow rows if `of_narrow` is `true`, else the full rows. If `since` is
    /// given, it visits only rows that changed after the end of that generation. The rows of this
    /// slot and this width must not have been written yet.
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

    /// Records that the rows of one width have been written for a slot, and frees their images.
    pub(crate) fn rows_written(&mut self, slot: usize, is_narrow: bool) {
        if let Some(snapshot) = &mut self.snapshot {
            let kept = if is_narrow { snapshot.narrow.as_mut() } else { Some(&mut snapshot.full) };
            kept.into_iter().for_each(|kept| kept.forget(slot));
        }
        self.tombstones.iter_mut().for_each(|tombstones| tombstones.trim(slot));
    }

    /// Removes and returns the error that occurred when a copy of a row was stored for the
    /// snapshot, or returns `None` if there was no error.
    pub(crate) fn snapshot_failure(&mut self) -> Option<Error> {
        self.snapshot.as_mut().and_then(|snapshot| snapshot.failure.take())
    }

    /// Returns the bytes of the rows and candidates that are kept for a snapshot.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        let rows = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.bytes());
        rows + self.candidates.as_ref().map_or(0, KeyAdmission::snapshot_bytes)
    }
}
