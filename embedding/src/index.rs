//! The index of one table in one shard, which maps keys to index entries. Each slot has a small
//! index of its own.
//!
//! # Invariants
//! * A key is in the sub-index of its slot and nowhere else, at most once.
//! * The index computes no hash: the top bits of a key are its slot, and the bits below choose the
//!   bucket.
//! * A lookup reads at most a fixed number of buckets for any keys. Keys that find no room in these
//!   buckets are in a sorted map beside the slots.
//! * Growth changes one slot. Slots grow at different sizes. So the index as a whole grows in small
//!   steps, although the keys of all slots arrive at the same pace.

mod compact;
mod counted;
mod entry;
mod line;
mod overflow;
mod slot;

use std::ops::Range;

use zillion_device::DeviceError;
use zillion_device::lines::LineArena;
use zillion_device::prefetch::prefetch_read;
use zillion_feature::{FeatureKey, SLOTS};

use crate::groups::ByGroup;
pub(crate) use crate::index::compact::Compact;
pub(crate) use crate::index::counted::Counted;
pub(crate) use crate::index::entry::Entry;
use crate::index::line::Line;
use crate::index::overflow::Overflow;
pub(crate) use crate::index::slot::AtHome;
use crate::index::slot::SlotIndex;

/// The number of low bits of a key, below the bits that are its slot.
const LOW_BITS: u32 = u64::BITS - SLOTS.trailing_zeros();

/// An index of the keys in one shard's part of a table.
///
/// The top bits of all keys of a slot are the slot's number, so these bits need not be stored. A
/// [`Compact`] line leaves them out, and a [`Counted`] line stores a count in their place.
#[derive(Debug)]
pub(crate) struct Index<L = Compact> {
    first_slot: usize,
    slots: Vec<SlotIndex<L>>,
    overflow: Overflow,
    arena: LineArena,
    keys: usize,
    /// The number of keys of each group of slots.
    by_group: ByGroup<u64>,
    moves: u64,
}

impl<L: Line> Index<L> {
    /// Creates an empty index of the slots in `range`.
    pub(crate) fn new(range: Range<usize>) -> Self {
        debug_assert!(range.end <= SLOTS, "slots are numbered below {SLOTS}");
        let arena = LineArena::new();
        Self {
            first_slot: range.start,
            by_group: ByGroup::new(&range),
            slots: range.map(|_| SlotIndex::new(&arena)).collect(),
            overflow: Overflow::default(),
            arena,
            keys: 0,
            moves: 0,
        }
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys
    }

    /// Returns the numbers of keys of the groups that the index has slots of. Each number comes
    /// with the number of its group in a table of `groups` groups, which can occur several times.
    pub(crate) fn group_lens(&self, groups: usize) -> impl Iterator<Item = (usize, u64)> {
        self.by_group.values(groups).map(|(group, &keys)| (group, keys))
    }

    /// Returns the number of changes that can make an earlier found entry invalid: removals and
    /// possible redirections of keys. All found entries stay valid until this number changes.
    pub(crate) fn moves(&self) -> u64 {
        self.moves
    }

    /// Returns the slots that this index owns.
    pub(crate) fn slots(&self) -> Range<usize> {
        self.first_slot..self.first_slot + self.slots.len()
    }

    /// Returns the bytes of memory: the memory that the arena has mapped, the list of slots, and
    /// the map of keys beside the slots.
    pub(crate) fn bytes(&self) -> usize {
        let slots = self.slots.capacity() * size_of::<SlotIndex<L>>();
        self.arena.bytes().reserved + slots + self.overflow.bytes()
    }

    /// Returns the bytes of the buckets, without the free memory of the arena.
    #[cfg(test)]
    pub(crate) fn used_bytes(&self) -> usize {
        self.arena.bytes().used
    }

    /// Prefetches the bucket in which the search for `key` begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key: FeatureKey) {
        let slot = &self.slots[self.position(key)];
        prefetch_read(slot.buckets(), slot.home(key.0));
    }

    /// Looks for `key` in the bucket that [`Index::prefetch`] has prefetched. If the key may be in
    /// a later bucket, prefetches the next bucket. The caller must then call [`Index::get`] a
    /// little later.
    #[inline(always)]
    pub(crate) fn get_at_home(&self, key: FeatureKey) -> AtHome {
        let slot = &self.slots[self.position(key)];
        let found = slot.at_home(key.0);
        if found == AtHome::Beyond {
            prefetch_read(slot.buckets(), slot.home(key.0) + 1);
        }
        found
    }

    /// Returns the entry of `key`, or `None` if the index does not have the key.
    #[inline(always)]
    pub(crate) fn get(&self, key: FeatureKey) -> Option<Entry> {
        self.slots[self.position(key)].get(key.0, &self.overflow).map(Entry::from_word)
    }

    /// Adds a key that is not in the index yet.
    ///
    /// # Errors
    /// Returns an error if there is no memory; the index is then unchanged.
    pub(crate) fn insert(&mut self, key: FeatureKey, entry: Entry) -> Result<(), DeviceError> {
        let position = self.position(key);
        let memory = (&self.arena, &mut self.overflow);
        self.slots[position].insert(memory, key.0, entry.word(), key.slot())?;
        self.keys += 1;
        *self.by_group.of_slot(key.slot()) += 1;
        Ok(())
    }

    /// Removes a key and returns its entry, or `None` if the index does not have the key.
    pub(crate) fn remove(&mut self, key: FeatureKey) -> Option<Entry> {
        let position = self.position(key);
        let word = self.slots[position].remove(key.0, &mut self.overflow)?;
        self.keys -= 1;
        *self.by_group.of_slot(key.slot()) -= 1;
        self.moves += 1;
        Some(Entry::from_word(word))
    }

    /// Replaces the entry of a key that is in the index.
    pub(crate) fn redirect(&mut self, key: FeatureKey, entry: Entry) {
        self.moves += 1;
        let position = self.position(key);
        if let Some(word) = self.slots[position].row_mut(key.0, &mut self.overflow) {
            *word = entry.word();
        }
    }

    /// Gives memory back and keeps searches short. The caller must call this function after it has
    /// removed keys from a slot.
    pub(crate) fn tidy(&mut self, slot: usize) {
        self.slots[slot - self.first_slot].tidy((&self.arena, &mut self.overflow), slot);
    }

    /// Returns the number of keys of one slot that this index owns.
    pub(crate) fn slot_len(&self, slot: usize) -> usize {
        self.slots[slot - self.first_slot].len()
    }

    #[inline(always)]
    fn position(&self, key: FeatureKey) -> usize {
        key.slot() - self.first_slot
    }
}

impl Index {
    /// Returns the keys and entries of one slot that this index owns, in no particular order.
    pub(crate) fn slot_entries(&self, slot: usize) -> impl Iterator<Item = (FeatureKey, Entry)> {
        let top = (slot as u64) << LOW_BITS;
        let entries =
            self.slots[slot - self.first_slot].entries().chain(self.overflow.slot_entries(slot));
        entries.map(move |(low, word)| (FeatureKey(top | low), Entry::from_word(word)))
    }
}

impl Index<Counted> {
    /// Returns the word of a key, including its tag, and the number that the key leads to. Returns
    /// `None` if the index does not have the key.
    pub(crate) fn entry(&self, key: FeatureKey) -> Option<(u64, u32)> {
        self.slots[self.position(key)].entry(key.0, &self.overflow)
    }

    /// Writes the word and the number of a key that is in the index. The bits of the word below its
    /// tag must be the bits of the key.
    pub(crate) fn set(&mut self, key: FeatureKey, word: u64, number: u32) {
        let position = self.position(key);
        self.slots[position].set(key.0, (word, number), &mut self.overflow);
    }

    /// Adds a key that is not in the index yet. The top bits of `word` are a tag in place of the
    /// slot's number.
    ///
    /// # Panics
    /// Panics if there is no memory, as a vector does when it grows.
    pub(crate) fn insert_tagged(&mut self, key: FeatureKey, word: u64, number: u32) {
        let position = self.position(key);
        let memory = (&self.arena, &mut self.overflow);
        let inserted = self.slots[position].insert(memory, word, number, key.slot());
        inserted.expect("memory for the keys that wait");
        self.keys += 1;
        *self.by_group.of_slot(key.slot()) += 1;
    }

    /// Returns the words of all keys of one slot, each with the number that the key leads to, in no
    /// particular order. The index must own the slot.
    pub(crate) fn slot_entries(&self, slot: usize) -> impl Iterator<Item = (FeatureKey, u32)> {
        let entries =
            self.slots[slot - self.first_slot].entries().chain(self.overflow.slot_entries(slot));
        entries.map(|(word, number)| (FeatureKey(word), number))
    }
}

#[cfg(test)]
mod tests;
