//! The old rows of a table for a snapshot. An image of a row is kept from the first change of the
//! row until the row is written.

use crate::error::{Error, Result};
use crate::shape::TableShape;
use crate::snapshot::images::{Images, NONE};
use std::ops::Range;
use zillion_feature::FeatureKey;
use zillion_rows::row::{RowWeights, StoredRow};

/// The rows that one shard's part of a table keeps for a snapshot.
#[derive(Debug)]
pub(crate) struct TableSnapshot {
    /// The generation that ended when the snapshot began. Rows with a later generation have changed
    /// since then.
    pub(crate) generation: u32,
    /// Whether every row that can change has an image, because a rule has changed all rows of the
    /// table.
    pub(crate) is_whole: bool,
    pub(crate) full: Kept,
    /// The images of narrow rows; `None` if the rows of the table do not grow. They are written to
    /// separate files after the full rows.
    pub(crate) narrow: Option<Kept>,
    /// The error that prevented the storing of an image; `None` if there was no error.
    pub(crate) failure: Option<Error>,
}

/// The images of the rows of one width.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) slots: Range<usize>,
    /// The first slot that has not been written.
    pub(crate) pending: usize,
    /// The number of the newest image of each slot. The list is empty until there is an image.
    pub(crate) newest: Vec<u32>,
    pub(crate) images: Images,
}

impl Kept {
    pub(crate) fn new(shape: &TableShape, slots: Range<usize>) -> Self {
        let weights = shape.spec.weight_bytes() / size_of::<u32>();
        let images = Images::new(weights, shape.companion_stride);
        Self { pending: slots.start, slots, newest: Vec::new(), images }
    }

    /// Keeps the image of a row, if its slot is pending and the row has not changed since the end
    /// of `generation`.
    #[inline(always)]
    pub(crate) fn save(
        &mut self,
        generation: u32,
        shape: &TableShape,
        key: FeatureKey,
        weights: &[u32],
        companion: &[u32],
    ) -> Result<()> {
        if key.slot() < self.pending || shape.meta(companion).dirty_epoch > generation {
            return Ok(());
        }
        if self.newest.is_empty() {
            self.newest = vec![NONE; self.slots.len()];
        }
        let newest = &mut self.newest[key.slot() - self.slots.start];
        *newest = self.images.keep(key, *newest, weights, companion)?;
        Ok(())
    }

    /// Drops all images. After this call, no image is kept.
    pub(crate) fn give_up(&mut self) {
        self.pending = self.slots.end;
        self.newest = Vec::new();
        self.images = Images::new(0, 0);
    }

    /// Returns an iterator over the keys and numbers of the images of a slot.
    pub(crate) fn images(&self, slot: usize) -> impl Iterator<Item = (FeatureKey, u32)> {
        let mut next = self.newest.get(slot - self.slots.start).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            let image = next;
            let (key, before) = self.images.head(image)?;
            next = before;
            Some((key, image))
        })
    }

    pub(crate) fn row(&self, image: u32, shape: &TableShape, is_narrow: bool) -> StoredRow<'_> {
        let (words, companion) = self.images.row(image);
        let weights = RowWeights::of_words(words, shape.spec.dtype, shape.width);
        shape.stored_row(weights, companion, is_narrow)
    }

    /// Frees the images of a slot that has been written.
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(newest) = self.newest.get_mut(slot - self.slots.start) {
            let mut image = std::mem::replace(newest, NONE);
            while image != NONE {
                image = self.images.release(image);
            }
        }
        self.pending = self.pending.max(slot + 1);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.images.bytes() + self.newest.capacity() * size_of::<u32>()
    }
}

impl TableSnapshot {
    pub(crate) fn new(shape: &TableShape, slots: Range<usize>, generation: u32) -> Self {
        let narrow = shape.narrow.as_deref();
        Self {
            generation,
            is_whole: false,
            full: Kept::new(shape, slots.clone()),
            narrow: narrow.map(|narrow| Kept::new(&narrow.shape, slots)),
            failure: None,
        }
    }

    /// Returns the images of the narrow rows if `is_narrow` is `true`, else the images of the full
    /// rows. Returns `None` if the table has no narrow rows.
    pub(crate) fn kept(&self, is_narrow: bool) -> Option<&Kept> {
        if is_narrow { self.narrow.as_ref() } else { Some(&self.full) }
    }

    /// Keeps the image of a row in memory that is about to change or to be removed. Does nothing if
    /// the row has an image already.
    #[inline(always)]
    pub(crate) fn save(
        &mut self,
        is_narrow: bool,
        shape: &TableShape,
        key: FeatureKey,
        weights: &[u32],
        companion: &[u32],
    ) {
        let kept = if is_narrow { self.narrow.as_mut() } else { Some(&mut self.full) };
        let Some(kept) = kept else { return };
        let saved = kept.save(self.generation, shape, key, weights, companion);
        saved.unwrap_or_else(|e| self.spoil(e));
    }

    /// Records the error that made the snapshot fail. After this call, no image is kept.
    #[cold]
    pub(crate) fn spoil(&mut self, failure: Error) {
        self.full.give_up();
        self.narrow.as_mut().into_iter().for_each(Kept::give_up);
        self.failure = Some(failure);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.full.bytes() + self.narrow.as_ref().map_or(0, Kept::bytes)
    }
}
