//! The index of pending rows in memory: from a key to the time and the place of its row.
//!
//! The index consists of shards with linear probing. A shard grows by a fifth when it is four
//! fifths full, so that memory follows the number of rows closely: an entry has 28 bytes, which is
//! at most [`ROW_BYTES`] a row while the index grows. A map that doubles would need up to twice as
//! much, and three times as much while it doubles. A shard that is less than two fifths full
//! becomes smaller.
//!
//! Keys are hashes already, so they are not hashed again. Nothing ever goes through the index in
//! its order, so no output depends on it.

use super::key::Key;

/// The largest number of bytes of memory for each row while the index grows: 28 bytes an entry, and
/// at least two thirds of the entries in use.
pub(crate) const ROW_BYTES: u64 = 42;
/// The number of shards, a power of two.
const SHARDS: usize = 64;
/// The smallest number of entries of a shard.
const SMALLEST: usize = 16;
/// The key of a vacant entry.
const VACANT: Key = Key(0);

/// The time and the place of a pending row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The event time, less than 2^47.
    pub(crate) time: i64,
    /// Whether feedback was joined to the row.
    pub(crate) has_feedback: bool,
    /// The number of the segment's slot.
    pub(crate) slot: u16,
    /// The position of the record in the segment.
    pub(crate) offset: u32,
}

/// A [`Place`] in 12 bytes: 47 bits of time, the flag of feedback, the slot, the offset.
type Packed = [u32; 3];

/// The map from the keys of pending rows to their places.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Vec<Shard>,
    rows: u64,
}

#[derive(Debug, Default)]
struct Shard {
    /// The keys apart from the places: a probe reads four keys in one cache line.
    keys: Vec<Key>,
    places: Vec<Packed>,
    rows: usize,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect(), rows: 0 }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> u64 {
        self.rows
    }

    /// Returns the number of bytes of memory that the index has allocated.
    #[cfg(test)]
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let entry = size_of::<Key>() + size_of::<Packed>();
        self.shards.iter().map(|shard| (shard.keys.capacity() * entry) as u64).sum()
    }

    pub(crate) fn get(&self, key: Key) -> Option<Place> {
        let shard = &self.shards[shard_of(key)];
        shard.find(key).map(|at| unpack(shard.places[at]))
    }

    /// Adds a key, or replaces the place of a known key.
    pub(crate) fn insert(&mut self, key: Key, place: Place) {
        let shard = &mut self.shards[shard_of(key)];
        if let Some(at) = shard.find(key) {
            shard.places[at] = pack(place);
            return;
        }
        if (shard.rows + 1) * 5 > shard.keys.len() * 4 {
            shard.resize((shard.keys.len() + shard.keys.len() / 5 + 1).max(SMALLEST));
        }
        shard.put(key, pack(place));
        self.rows += 1;
    }

    /// Removes a key and returns its place.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Place> {
        let shard = &mut self.shards[shard_of(key)];
        let at = shard.find(key)?;
        let place = unpack(shard.places[at]);
        shard.vacate(at);
        self.rows -= 1;
        if shard.rows * 5 < shard.keys.len() * 2 && shard.keys.len() > SMALLEST {
            shard.resize((shard.rows + shard.rows / 2 + 1).max(SMALLEST));
        }
        Some(place)
    }
}

impl Shard {
    /// Returns the entry where the search for a key begins.
    fn home(&self, key: Key) -> usize {
        ((u128::from(key.0 as u64) * self.keys.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.keys.len() { 0 } else { at + 1 }
    }

    fn find(&self, key: Key) -> Option<usize> {
        if self.keys.is_empty() {
            return None;
        }
        let mut at = self.home(key);
        while self.keys[at] != key {
            if self.keys[at] == VACANT {
                return None;
            }
            at = self.next(at);
        }
        Some(at)
    }

    /// Adds a key that the shard does not have. At least one entry is vacant.
    fn put(&mut self, key: Key, place: Packed) {
        let mut at = self.home(key);
        while self.keys[at] != VACANT {
            at = self.next(at);
        }
        (self.keys[at], self.places[at]) = (key, place);
        self.rows += 1;
    }

    /// Removes the entry `hole`. The entries after it move back, so that no search ends too early.
    fn vacate(&mut self, mut hole: usize) {
        let size = self.keys.len();
        let mut at = self.next(hole);
        while self.keys[at] != VACANT {
            // The entry may move if the hole lies between its home and its present place.
            let distance = (at + size - self.home(self.keys[at])) % size;
            if distance >= (at + size - hole) % size {
                (self.keys[hole], self.places[hole]) = (self.keys[at], self.places[at]);
                hole = at;
            }
            at = self.next(at);
        }
        self.keys[hole] = VACANT;
        self.rows -= 1;
    }

    fn resize(&mut self, size: usize) {
        let keys = std::mem::replace(&mut self.keys, vec![VACANT; size]);
        let places = std::mem::replace(&mut self.places, vec![[0; 3]; size]);
        self.rows = 0;
        for (key, place) in keys.into_iter().zip(places) {
            if key != VACANT {
                self.put(key, place);
            }
        }
    }
}

fn shard_of(key: Key) -> usize {
    (key.0 >> 64) as usize % SHARDS
}

fn pack(place: Place) -> Packed {
    let head =
        (place.time as u64) << 17 | u64::from(place.has_feedback) << 16 | u64::from(place.slot);
    [head as u32, (head >> 32) as u32, place.offset]
}

fn unpack([low, high, offset]: Packed) -> Place {
    let head = u64::from(low) | u64::from(high) << 32;
    Place {
        time: (head >> 17) as i64,
        has_feedback: head >> 16 & 1 == 1,
        slot: head as u16,
        offset,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn place(number: u32) -> Place {
        Place {
            time: (1 << 47) - 1 - i64::from(number),
            has_feedback: number % 2 == 1,
            slot: number as u16,
            offset: number,
        }
    }

    proptest! {
        #[test]
        fn an_index_is_a_map(
            operations in prop::collection::vec((0..300u64, 0..3u8, any::<u32>()), 0..2_000),
        ) {
            let (mut index, mut model) = (Index::new(), BTreeMap::new());
            for (number, operation, value) in operations {
                // Few homes in one shard: the runs of entries are long and wrap around.
                let key = Key(u128::from(number + 1) << 70 | u128::from(number % 7) << 61);
                match operation {
                    0 => prop_assert_eq!(index.remove(key), model.remove(&key)),
                    _ => {
                        index.insert(key, place(value));
                        model.insert(key, place(value));
                    }
                }
                prop_assert_eq!(index.len(), model.len() as u64);
            }
            for number in 0..300u64 {
                let key = Key(u128::from(number + 1) << 70 | u128::from(number % 7) << 61);
                prop_assert_eq!(index.get(key), model.get(&key).copied());
            }
        }
    }

    #[test]
    fn memory_follows_the_number_of_rows() {
        let mut index = Index::new();
        let keys: Vec<Key> = (0..200_000u32).map(|n| Key::of(&n.to_le_bytes())).collect();
        for (number, key) in keys.iter().enumerate() {
            index.insert(*key, place(number as u32));
            let least = 28 * (SHARDS * 2 * SMALLEST) as u64;
            assert!(index.allocated_bytes() <= (index.len() * ROW_BYTES).max(least) + 28 * 64);
        }
        for key in &keys[1_000..] {
            index.remove(*key);
        }
        assert_eq!(index.get(keys[999]), Some(place(999)));
        assert!(index.allocated_bytes() < 1_000 * 28 * 5 / 2 + 28 * (SHARDS * SMALLEST) as u64);
    }
}
