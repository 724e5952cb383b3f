//! The keys of an index that found no room near their home buckets.
//!
//! The map is empty unless ids were chosen so that many keys have one home.

use std::collections::BTreeMap;

use crate::index::LOW_BITS;

/// The bits of a key below its slot.
const LOW: u64 = (1 << LOW_BITS) - 1;

/// The map from keys to their words and rows.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    entries: BTreeMap<u64, (u64, u32)>,
}

impl Overflow {
    /// Returns an upper bound of the bytes of the map, whose nodes are at least half full.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * 2 * size_of::<(u64, (u64, u32))>()
    }

    /// Returns the word and the row of a key, or `None` if the map does not have the key.
    #[cold]
    pub(super) fn get(&self, key: u64) -> Option<(u64, u32)> {
        self.entries.get(&key).copied()
    }

    /// Returns the word and the row of a key for writing, or `None` if the map does not have the
    /// key.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut (u64, u32)> {
        self.entries.get_mut(&key)
    }

    /// Adds a key. The number of the slot and the low bits of the word form the key.
    #[cold]
    pub(super) fn insert(&mut self, slot: usize, word: u64, row: u32) {
        self.entries.insert((slot as u64) << LOW_BITS | word & LOW, (word, row));
    }

    /// Removes a key and returns its row, or `None` if the map does not have the key.
    #[cold]
    pub(super) fn remove(&mut self, key: u64) -> Option<u32> {
        self.entries.remove(&key).map(|(_, row)| row)
    }

    /// Yields the words and rows of a slot.
    pub(super) fn slot_entries(&self, slot: usize) -> impl Iterator<Item = (u64, u32)> {
        let first = (slot as u64) << LOW_BITS;
        self.entries.range(first..=first | LOW).map(|(_, &entry)| entry)
    }

    /// Removes the keys of a slot and returns their words and rows.
    #[cold]
    pub(super) fn take_slot(&mut self, slot: usize) -> Vec<(u64, u32)> {
        let first = (slot as u64) << LOW_BITS;
        let keys: Vec<u64> = self.entries.range(first..=first | LOW).map(|(&key, _)| key).collect();
        keys.iter().filter_map(|key| self.entries.remove(key)).collect()
    }
}
