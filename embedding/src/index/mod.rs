//! The index of one table in one shard: key to row number, one small sub-index a virtual slot.
//!
//! # Invariants
//! * A key is in the sub-index of its slot and nowhere else, at most once.
//! * Nothing is hashed: the top bits of a key are its slot, the bits below choose the bucket.
//! * Growing touches one slot. Slots grow at different sizes, so that the index as a whole grows in
//!   small steps although the keys of all slots arrive at the same pace.

mod compact;
mod counted;
mod line;
mod slot;

use std::ops::Range;

use zillion_device::prefetch::prefetch_read;
use zillion_feature::{FeatureKey, SLOTS};

pub(crate) use compact::CompactLine;
pub(crate) use counted::CountedLine;
use line::Line;
pub(crate) use slot::AtHome;
use slot::SlotIndex;

/// Bits of a key below its slot.
const LOW_BITS: u32 = u64::BITS - SLOTS.trailing_zeros();

/// Where keys lead to in one shard's part of a table.
///
/// A slot's number is the top of all its keys, so that those bits need not be stored: a [`CompactLine`] saves
/// them, a [`CountedLine`] says something else there.
#[derive(Debug)]
pub(crate) struct Index<L = CompactLine> {
    first_slot: usize,
    slots: Vec<SlotIndex<L>>,
    keys: usize,
}

impl<L: Line> Index<L> {
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
        self.slots.iter().map(SlotIndex::<L>::bytes).sum::<usize>()
            + self.slots.capacity() * size_of::<SlotIndex<L>>()
    }

    /// Asks for the bucket where `key` is looked for first.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key: FeatureKey) {
        let slot = &self.slots[self.position(key)];
        prefetch_read(slot.buckets(), slot.home(key.0));
    }

    /// The row of `key` where one look at the bucket of [`Index::prefetch`] tells it; else asks for the bucket
    /// after that one, and [`Index::get`] must be asked a little later.
    #[inline(always)]
    pub(crate) fn get_at_home(&self, key: FeatureKey) -> AtHome {
        let slot = &self.slots[self.position(key)];
        let found = slot.at_home(key.0);
        if found == AtHome::Beyond {
            prefetch_read(slot.buckets(), slot.home(key.0) + 1);
        }
        found
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

    /// The row of a key, to write.
    pub(crate) fn row_mut(&mut self, key: FeatureKey) -> Option<&mut u32> {
        let position = self.position(key);
        self.slots[position].row_mut(key.0)
    }

    /// To be called when keys have left a slot: gives memory back, and keeps probes short.
    pub(crate) fn tidy(&mut self, slot: usize) {
        self.slots[slot - self.first_slot].tidy(slot);
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

impl Index {
    /// The keys and rows of one slot that this index owns, in no particular order.
    pub(crate) fn slot_entries(&self, slot: usize) -> impl Iterator<Item = (FeatureKey, u32)> {
        let top = (slot as u64) << LOW_BITS;
        let entries = self.slots[slot - self.first_slot].entries();
        entries.map(move |(low, row)| (FeatureKey(top | low), row))
    }
}

impl Index<CountedLine> {
    /// The word of a key, tag included.
    pub(crate) fn stored(&self, key: FeatureKey) -> Option<u64> {
        let (line, entry) = self.slots[self.position(key)].entry(key.0)?;
        Some(line.word(entry))
    }

    /// The word, tag included, and the number of a key, to write. What is written into the word must leave the
    /// bits below the tag as they are.
    pub(crate) fn entry_mut(&mut self, key: FeatureKey) -> Option<(&mut u64, &mut u32)> {
        let position = self.position(key);
        let (line, entry) = self.slots[position].entry_mut(key.0)?;
        Some(line.entry_mut(entry))
    }

    /// Adds a key that is not there yet, its tag in place of its slot.
    pub(crate) fn insert_tagged(&mut self, key: FeatureKey, word: u64, number: u32) {
        let position = self.position(key);
        self.slots[position].insert(word, number, key.slot());
        self.keys += 1;
    }

    /// The words and numbers of one slot that this index owns, in no particular order.
    pub(crate) fn slot_entries(&self, slot: usize) -> impl Iterator<Item = (FeatureKey, u32)> {
        let entries = self.slots[slot - self.first_slot].entries();
        entries.map(|(word, number)| (FeatureKey(word), number))
    }
}

#[cfg(test)]
mod tests;
