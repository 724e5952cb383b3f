//! The eviction of rows on schedule, and the release of their memory.
//!
//! A visit covers a whole slot. Expired rows are removed from the index and from both slabs. New
//! rows get the lowest free numbers, but the remaining rows could keep the last chunks of the slabs
//! in memory. So a visit moves a row down if its number is higher than a table with this many rows
//! needs. If a table loses half of its rows, it has given back half of its memory one period later.

use zillion_feature::FeatureKey;

use crate::admission::KeyAdmission;
use crate::error::Result;
use crate::eviction::Due;
use crate::eviction::priority::Priority;
use crate::index::Entry;
use crate::table::Table;

/// The number of entries between the prefetch of a row and its use.
const AHEAD: usize = 16;
/// The divisor of the number of rows that gives the tolerance for row numbers. A row is moved down
/// if its number exceeds the number of rows by more than the tolerance.
const LOOSE: u64 = 8;

/// Returns whether a row has a higher number than a table of `rows` rows needs.
pub(crate) fn is_loose(row: u32, rows: u64) -> bool {
    u64::from(row) > rows + rows / LOOSE
}

impl Table {
    /// Evicts the expired candidates and rows of the slots in `due`, and halves the counters of a
    /// filter if they age.
    pub(crate) fn evict(&mut self, due: Due) -> Result<()> {
        for slot in due.turn.slots(self.index.slots()) {
            if let Some(candidates) = &mut self.candidates
                && due.oldest > 0
            {
                self.counters.lapsed += candidates.evict(slot, due.oldest);
            }
            if due.halves
                && let Some(filter) = self.candidates.as_mut().and_then(KeyAdmission::filter_mut)
            {
                filter.halve(slot, due.turn.turns_of(slot));
            }
            if let (Some(priority), Some(floor)) = (self.shape.priority, due.floor)
                && self.index.slot_len(slot) > 0
            {
                self.evict_rows(slot, priority, floor)?;
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
            if self.row_priority(priority, entry) < floor && !pinned.contains(&key) {
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

    /// Moves a row down if its number is higher than the table needs.
    #[inline(always)]
    pub(crate) fn place_low(&mut self, key: FeatureKey, entry: Entry) -> Result<()> {
        if self.narrow.is_some()
            && let Some(row) = entry.narrow_row()
        {
            return self.place_narrow_low(key, row);
        }
        let row = entry.row();
        let rows = self.rows() - self.narrow_rows() + self.free_list.len() as u64;
        // A number below the row's own fits into an entry too.
        if is_loose(row, rows)
            && let Some(to) = self.slabs.move_down(row)?
        {
            self.index.redirect(key, Entry::full(to));
        }
        Ok(())
    }

    /// Removes a key from the index. Every eviction of a row calls this function, so the tombstones
    /// of deltas and checkpoints are recorded here. The row stays allocated in the slabs: the
    /// caller must free it or add it to the free list.
    pub(crate) fn take_out(&mut self, key: FeatureKey, entry: Entry) {
        // The companion row is read only where changes are tracked.
        let epoch = self.changes.as_ref().map(|_| self.meta_of(entry).dirty_epoch);
        if let (Some(changes), Some(epoch)) = (&mut self.changes, epoch)
            && epoch != changes.epoch
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
}
