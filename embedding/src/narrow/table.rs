//! The functions of a table that create, read and grow narrow rows.

use crate::error::{Error, Result};
use crate::eviction::schedule::is_loose;
use crate::index::Entry;
use crate::narrow::shape::NarrowShape;
use crate::narrow::{KEPT_DUE, Narrow};
use crate::shape::TableShape;
use crate::table::Table;
use crate::table::slabs::RowSlabs;
use zillion_feature::FeatureKey;
use zillion_rows::row::{Meta, RowWeights, StoredRow};

impl Table {
    /// Returns whether an index entry belongs to a row on disk.
    #[inline(always)]
    pub(crate) fn is_cold(&self, entry: Entry) -> bool {
        self.spill.is_some() && entry.is_cold()
    }

    /// Returns the number of narrow rows.
    pub(crate) fn narrow_rows(&self) -> u64 {
        self.narrow.as_ref().map_or(0, |narrow| narrow.slabs.len() as u64)
    }

    /// Returns the number of narrow rows of one of this shard's slots.
    pub(crate) fn slot_narrow_rows(&self, slot: usize) -> usize {
        let rows = self.narrow.as_ref().map(|narrow| narrow.by_slot[slot - narrow.first_slot]);
        rows.unwrap_or(0) as usize
    }

    /// Returns the number of keys among `keys` that have a narrow row.
    pub(crate) fn narrow_among(&self, keys: &[u64]) -> u64 {
        if self.narrow.is_none() {
            return 0;
        }
        let narrow = |&&key: &&u64| self.index.get(FeatureKey(key)).is_some_and(Entry::is_narrow);
        keys.iter().filter(narrow).count() as u64
    }

    /// Returns the slabs and the shape of narrow rows, or `None` if the table has no narrow rows.
    #[inline(always)]
    fn narrow_parts(&self) -> Option<(&Narrow, &NarrowShape)> {
        self.narrow.as_deref().zip(self.shape.narrow.as_deref())
    }

    /// Returns the shape and the companion row of the full or narrow row with this index entry. The
    /// row must be in memory.
    #[inline(always)]
    pub(crate) fn companion_of(&self, entry: Entry) -> (&TableShape, &[u32]) {
        match (self.narrow_parts(), entry.narrow_row()) {
            (Some((narrow, shape)), Some(row)) => (&shape.shape, narrow.slabs.companion.row(row)),
            _ => (&self.shape, self.slabs.companion.row(entry.row())),
        }
    }

    #[inline(always)]
    pub(crate) fn meta_of(&self, entry: Entry) -> Meta {
        let (shape, companion) = self.companion_of(entry);
        shape.meta(companion)
    }

    /// Returns the weights of the full or narrow row with this index entry, without padding. The
    /// row must be in memory.
    pub(crate) fn weights_of(&self, entry: Entry) -> RowWeights<'_> {
        match (self.narrow_parts(), entry.narrow_row()) {
            (Some((narrow, shape)), Some(row)) => {
                narrow.slabs.weights.stored(row, shape.shape.width)
            }
            _ => self.slabs.weights.stored(entry.row(), self.shape.width),
        }
    }

    /// Returns the full or narrow row with this index entry. The row must be in memory.
    pub(crate) fn stored_of(&self, entry: Entry) -> StoredRow<'_> {
        let (shape, companion) = self.companion_of(entry);
        let is_narrow = self.narrow.is_some() && entry.is_narrow();
        shape.stored_row(self.weights_of(entry), companion, is_narrow)
    }

    /// Returns the slabs that hold the full or narrow row with this index entry, and the number of
    /// the row in them.
    #[inline(always)]
    pub(crate) fn slabs_of(&self, entry: Entry) -> (&RowSlabs, u32) {
        match (&self.narrow, entry.narrow_row()) {
            (Some(narrow), Some(row)) => (&narrow.slabs, row),
            _ => (&self.slabs, entry.row()),
        }
    }

    #[inline(always)]
    pub(crate) fn prefetch_companion(&self, entry: Entry) {
        let (slabs, row) = self.slabs_of(entry);
        slabs.companion.prefetch(row);
    }

    #[inline(always)]
    pub(crate) fn prefetch_weights(&self, entry: Entry) {
        let (slabs, row) = self.slabs_of(entry);
        slabs.weights.prefetch(row);
    }

    /// Adds a narrow row of zeros for a key that has no row. Returns the number of the row in the
    /// narrow slabs.
    fn allocate_narrow_for(&mut self, key: FeatureKey) -> Result<u32> {
        let name = || Error::ShardFull { table: self.shape.name().to_owned() };
        let Some(narrow) = &mut self.narrow else {
            return Err(Error::mismatch(
                self.shape.name(),
                "the job has no narrow rows (`grow`); use the job that wrote the checkpoint",
            ));
        };
        let row = narrow.slabs.allocate()?;
        if !Entry::fits_narrow(row) {
            narrow.slabs.free(row);
            return Err(name());
        }
        if let Err(e) = self.index.insert(key, Entry::narrow(row)) {
            narrow.slabs.free(row);
            return Err(e.into());
        }
        *narrow.of_slot(key) += 1;
        Ok(row)
    }

    /// Creates the narrow row of a key that has no row. Returns its index entry.
    pub(crate) fn make_narrow(&mut self, key: FeatureKey, epoch: u32) -> Result<Entry> {
        let row = self.allocate_narrow_for(key)?;
        if let (Some(narrow), Some(NarrowShape { shape, .. })) =
            (&mut self.narrow, self.shape.narrow.as_deref())
        {
            narrow
                .slabs
                .weights
                .fill(row, &mut self.scratch, |weights| shape.fill_initial(key, weights));
            shape.fill_initial_companion(narrow.slabs.companion.row_mut(row), epoch);
        }
        Ok(Entry::narrow(row))
    }

    /// Adds a narrow row with the values that a checkpoint stored. The key must have no row.
    pub(crate) fn restore_narrow_row(
        &mut self,
        key: FeatureKey,
        stored: StoredRow<'_>,
    ) -> Result<()> {
        if self.has(key) {
            let reason = format!(
                "key {:#018x} has a full row and a narrow row; restore another checkpoint",
                key.0
            );
            return Err(Error::mismatch(self.name(), reason));
        }
        let row = self.allocate_narrow_for(key)?;
        if let (Some(narrow), Some(small)) = (&mut self.narrow, self.shape.narrow.as_deref()) {
            narrow.slabs.restore(row, &small.shape, stored);
        }
        Ok(())
    }

    /// Grows the narrow rows that have had enough pushes into full rows.
    pub(crate) fn grow_due(&mut self) -> Result<()> {
        let Some(narrow) = &mut self.narrow else { return Ok(()) };
        let mut due = std::mem::take(&mut narrow.due);
        let grown = due.iter().try_for_each(|&key| self.grow(key));
        due.clear();
        due.shrink_to(KEPT_DUE);
        if let Some(narrow) = &mut self.narrow {
            narrow.due = due;
        }
        grown
    }

    /// Moves a narrow row to the full slabs. The row keeps its weights and its state. Its new
    /// floats get their initial values.
    fn grow(&mut self, key: FeatureKey) -> Result<()> {
        let Some(row) = self.index.get(key).and_then(Entry::narrow_row) else { return Ok(()) };
        let shape = self.shape.clone();
        let to = self.allocate()?;
        let Self { slabs, scratch, narrow: Some(narrow), .. } = self else {
            return Ok(());
        };
        let Some(small) = shape.narrow.as_deref() else { return Ok(()) };
        slabs.weights.fill(to, scratch, |weights| shape.fill_initial(key, weights));
        slabs.weights.spread(to, narrow.slabs.weights.stored(row, small.shape.width), small);
        let twin = slabs.companion.row_mut(to);
        shape.fill_initial_companion(twin, 0);
        small.spread_companion(&shape, narrow.slabs.companion.row(row), twin);
        narrow.free(key, row);
        self.index.redirect(key, Entry::full(to));
        self.counters.grown += 1;
        Ok(())
    }

    /// Frees the full or narrow row with this index entry. The caller must have removed the key
    /// from the index.
    pub(crate) fn free_row(&mut self, key: FeatureKey, entry: Entry) {
        match (&mut self.narrow, entry.narrow_row()) {
            (Some(narrow), Some(row)) => narrow.free(key, row),
            _ => self.slabs.free(entry.row()),
        }
    }

    /// Moves a narrow row to the lowest free number, if its number is higher than the narrow rows
    /// need.
    pub(crate) fn place_narrow_low(&mut self, key: FeatureKey, row: u32) -> Result<()> {
        let Some(narrow) = &mut self.narrow else { return Ok(()) };
        if is_loose(row, narrow.slabs.len() as u64)
            && let Some(to) = narrow.slabs.move_down(row)?
        {
            self.index.redirect(key, Entry::narrow(to));
        }
        Ok(())
    }
}
