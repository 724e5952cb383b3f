//! Rows that go, and memory that goes with them.
//!
//! A slot is visited whole: what has expired leaves the index and both slabs. The slabs hand out
//! the lowest free number, so that rows which stay would keep the last chunks alive; those whose
//! number lies beyond what a table of this many rows needs are moved down while their slot is
//! visited. A table that has lost half of its rows has given half of its memory back one period
//! later.

use zillion_feature::FeatureKey;

use crate::error::Result;
use crate::eviction::Due;
use crate::eviction::priority::Priority;
use crate::index::Entry;
use crate::table::Table;

/// Entries whose rows are asked for before they are looked at.
const AHEAD: usize = 16;
/// Rows may lie this part beyond the number of rows before they are moved.
const LOOSE: u64 = 8;

/// Whether a row's number lies beyond what so many rows need.
pub(crate) fn is_loose(row: u32, rows: u64) -> bool {
    u64::from(row) > rows + rows / LOOSE
}

impl Table {
    /// Takes out what has expired in the slots whose turn it is.
    pub(crate) fn evict(&mut self, due: Due) -> Result<()> {
        for slot in due.turn.slots(self.index.slots()) {
            if let Some(candidates) = &mut self.candidates
                && due.oldest > 0
            {
                self.counters.lapsed += candidates.evict(slot, due.oldest);
            }
            if let Some(priority) = self.shape.priority
                && self.index.slot_len(slot) > 0
            {
                self.evict_rows(slot, priority, due.floor)?;
            }
        }
        Ok(())
    }

    fn evict_rows(&mut self, slot: usize, priority: Priority, floor: f64) -> Result<()> {
        let shape = self.shape.clone();
        let pinned = shape.pinned.of_slot(slot);
        let mut entries: Vec<(FeatureKey, Entry)> = self.index.slot_entries(slot).collect();
        let mut stay = 0;
        for i in 0..entries.len() {
            if let Some(&(_, soon)) = entries.get(i + AHEAD) {
                self.prefetch_companion(soon);
            }
            let (key, entry) = entries[i];
            if self.worth(priority, entry) < floor && !pinned.contains(&key) {
                self.take_out(key, entry);
                self.free_row(key, entry);
            } else {
                entries[stay] = (key, entry);
                stay += 1;
            }
        }
        if stay < entries.len() {
            self.index.tidy(slot);
        }
        entries[..stay].iter().try_for_each(|&(key, entry)| self.place_low(key, entry))
    }

    /// Moves a row down whose number lies beyond what the table needs.
    #[inline(always)]
    pub(crate) fn place_low(&mut self, key: FeatureKey, entry: Entry) -> Result<()> {
        if self.narrow.is_some()
            && let Some(row) = entry.narrow_row()
        {
            return self.place_narrow_low(key, row);
        }
        let row = entry.row();
        let rows = self.rows() - self.narrow_rows() + self.free_list.len() as u64;
        if is_loose(row, rows) { self.move_down(key, row) } else { Ok(()) }
    }

    /// Takes a key out of the index. Every row that is evicted goes here: what must be told of it
    /// (a delta's tombstone, a checkpoint's) begins at this place. The row stays live in the slabs:
    /// who calls this frees or vacates it.
    pub(crate) fn take_out(&mut self, key: FeatureKey, entry: Entry) {
        // What is beside the row is read only where somebody asks for it.
        let epoch = self.changes.as_ref().map(|_| self.meta_of(entry).dirty_epoch);
        if let (Some(changes), Some(epoch)) = (&mut self.changes, epoch)
            && epoch != changes.epoch()
        {
            changes.note(key);
        }
        if let Some(tombstones) = &mut self.tombstones {
            tombstones.note_gone(key);
        }
        self.save_evicted(key, entry);
        self.index.remove(key);
        self.counters.evicted += 1;
    }

    /// Gives a row the lowest free number, which is below its own where rows have gone.
    fn move_down(&mut self, key: FeatureKey, row: u32) -> Result<()> {
        let to = self.allocate()?;
        if to > row {
            self.weights.free(to);
            self.companion.free(to);
            return Ok(());
        }
        self.weights.copy_row(row, to);
        let companion = self.companion.row(row).to_vec();
        self.companion.row_mut(to).copy_from_slice(&companion);
        self.index.redirect(key, Entry::full(to));
        self.weights.free(row);
        self.companion.free(row);
        Ok(())
    }
}
