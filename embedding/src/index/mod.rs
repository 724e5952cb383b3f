//! The index of one table in one shard: key to row number, one small sub-index a virtual slot.
//!
//! # Invariants
//! * A key is in the sub-index of its slot and nowhere else, at most once.
//! * Nothing is hashed: the top bits of a key are its slot, the bits below choose the bucket.
//! * Growing touches one slot. Slots grow at different sizes, so that the index as a whole grows in
//!   small steps although the keys of all slots arrive at the same pace.

mod bucket;
mod slot;

use std::ops::Range;

use zillion_device::prefetch::prefetch_read;
use zillion_feature::{FeatureKey, SLOTS};

use slot::SlotIndex;

/// Where keys lead to in one shard's part of a table.
///
/// A slot's number is the top of all its keys, so that those bits need not be stored: with `TAG` of them
/// set aside, an entry can carry a small number beside its row.
#[derive(Debug)]
pub(crate) struct Index<const TAG: u32 = 0> {
    first_slot: usize,
    slots: Vec<SlotIndex<TAG>>,
    keys: usize,
}

impl<const TAG: u32> Index<TAG> {
    /// An empty index of the slots in `range`.
    pub(crate) fn new(range: Range<usize>) -> Self {
        debug_assert!(range.end <= SLOTS, "slots are numbered below {SLOTS}");
        Self {
            first_slot: range.start,
            slots: range.map(|_| SlotIndex::default()).collect(),
            keys: 0,
        }
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys
    }

    /// The slots that this index owns.
    pub(crate) fn slots(&self) -> Range<usize> {
        self.first_slot..self.first_slot + self.slots.len()
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.iter().map(SlotIndex::<TAG>::bytes).sum::<usize>()
            + self.slots.capacity() * size_of::<SlotIndex<TAG>>()
    }

    /// Asks for the bucket where `key` is looked for first.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key: FeatureKey) {
        let slot = &self.slots[self.position(key)];
        prefetch_read(slot.buckets(), slot.home(key.0));
    }

    /// The row of `key`.
    #[inline(always)]
    pub(crate) fn get(&self, key: FeatureKey) -> Option<u32> {
        self.slots[self.position(key)].get(key.0)
    }

    /// Adds a key that is not there yet.
    pub(crate) fn insert(&mut self, key: FeatureKey, row: u32) {
        let position = self.position(key);
        self.slots[position].insert(key.0, row, key.slot());
        self.keys += 1;
    }

    /// Takes a key out; returns the row that it had.
    pub(crate) fn remove(&mut self, key: FeatureKey) -> Option<u32> {
        let position = self.position(key);
        let row = self.slots[position].remove(key.0)?;
        self.keys -= 1;
        Some(row)
    }

    /// The stored key, tag included.
    pub(crate) fn stored(&self, key: FeatureKey) -> Option<u64> {
        self.slots[self.position(key)].stored(key.0)
    }

    /// The stored key, tag included, and the row of a key, to write.
    pub(crate) fn entry_mut(&mut self, key: FeatureKey) -> Option<(&mut u64, &mut u32)> {
        let position = self.position(key);
        self.slots[position].entry_mut(key.0)
    }

    /// Adds a key that is not there yet, its tag in place of its slot.
    pub(crate) fn insert_tagged(&mut self, key: FeatureKey, stored: u64, row: u32) {
        let position = self.position(key);
        self.slots[position].insert(stored, row, key.slot());
        self.keys += 1;
    }

    /// To be called when keys have left a slot: gives memory back, and keeps probes short.
    pub(crate) fn tidy(&mut self, slot: usize) {
        self.slots[slot - self.first_slot].tidy(slot);
    }

    /// The keys and rows of one slot that this index owns, in no particular order.
    pub(crate) fn slot_entries(&self, slot: usize) -> impl Iterator<Item = (FeatureKey, u32)> {
        self.slots[slot - self.first_slot].entries().map(|(key, row)| (FeatureKey(key), row))
    }

    /// The number of keys of one slot that this index owns.
    pub(crate) fn slot_len(&self, slot: usize) -> usize {
        self.slots[slot - self.first_slot].len()
    }

    #[inline(always)]
    fn position(&self, key: FeatureKey) -> usize {
        key.slot() - self.first_slot
    }
}

#[cfg(test)]
mod tests;
