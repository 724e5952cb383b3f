//! The index of one slot: buckets of one cache line each, in the order of the key bits.
//!
//! The search for a key begins in its home bucket, which is the multiply-shift of the key's bits
//! below the slot. So any number of buckets is possible, and a slot can grow by a fifth. A key
//! whose home bucket is full goes to the next bucket with a free entry. Every full bucket that it
//! passes counts the key. So a search ends at the first bucket that no key has passed.
//!
//! Removing a key decreases these counts, so no markers of deleted keys are needed. A key may stay
//! in its bucket although buckets before it have become empty. The counts of such keys remain, and
//! after some time every bucket of a small slot can have a count. So a search also ends when it
//! comes back to the bucket where it began. A slot in which most buckets have a count is rebuilt
//! after keys were removed.

use std::marker::PhantomData;

use zillion_device::DeviceError;
use zillion_device::lines::{CacheLine, LineArena, Run};

use crate::index::entry::Entry;
use crate::index::line::Line;

/// The factor from one size of a slot to the next.
const GROWTH: f64 = 1.2;
/// The number of buckets below which a slot grows by only one bucket at a time.
const SMALL: usize = 6;
/// The number of top bits of a key that are its slot. The bits below them choose the bucket.
const SLOT_BITS: u32 = zillion_feature::SLOTS.trailing_zeros();

/// The index of one slot.
#[derive(Debug)]
pub(super) struct SlotIndex<L> {
    buckets: Run,
    len: usize,
    format: PhantomData<L>,
}

/// The result of a search for a key in its home bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtHome {
    /// The key is in its home bucket and has this entry.
    Found(Entry),
    /// The key is not in the slot.
    Absent,
    /// The key may be in a later bucket.
    Beyond,
}

impl<L: Line> SlotIndex<L> {
    /// Creates an index without keys, which takes no memory.
    pub(super) fn new(arena: &LineArena) -> Self {
        Self { buckets: arena.empty(), len: 0, format: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(super) fn buckets(&self) -> &[CacheLine] {
        &self.buckets
    }

    #[inline(always)]
    pub(super) fn home(&self, key: u64) -> usize {
        home(key, self.buckets.len())
    }

    #[inline(always)]
    pub(super) fn get(&self, key: u64) -> Option<u32> {
        let home = self.home(key);
        let mut at = home;
        // An empty slot has no buckets, so its home bucket 0 does not exist.
        let mut bucket = self.buckets.get(at)?;
        loop {
            if let Some(entry) = L::find(bucket, key) {
                return Some(L::row(bucket, entry));
            }
            if !L::is_passed(bucket) {
                return None;
            }
            at = self.after(at);
            if at == home {
                return None;
            }
            bucket = &self.buckets[at];
        }
    }

    /// Looks for a key only in the bucket that [`SlotIndex::home`] returns.
    #[inline(always)]
    pub(super) fn at_home(&self, key: u64) -> AtHome {
        let Some(bucket) = self.buckets.get(self.home(key)) else { return AtHome::Absent };
        match L::find(bucket, key) {
            Some(entry) => AtHome::Found(Entry::from_word(L::row(bucket, entry))),
            None if L::is_passed(bucket) => AtHome::Beyond,
            None => AtHome::Absent,
        }
    }

    /// Adds a key that is not in the slot yet. `slot` is the number of the slot, which decides at
    /// which sizes the slot grows.
    ///
    /// # Errors
    /// Returns an error if there is no memory to grow; the slot is then unchanged.
    pub(super) fn insert(
        &mut self,
        arena: &LineArena,
        key: u64,
        row: u32,
        slot: usize,
    ) -> Result<(), DeviceError> {
        if (self.len + 1) * L::FULLEST.1 > self.buckets.len() * L::KEYS * L::FULLEST.0 {
            self.resize(arena, next_size(self.buckets.len(), slot))?;
        }
        self.place(key, row);
        self.len += 1;
        Ok(())
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<u32> {
        let (at, entry) = self.locate(key)?;
        let row = L::take(&mut self.buckets[at], entry);
        let mut passed = self.home(key);
        while passed != at {
            L::unpass(&mut self.buckets[passed]);
            passed = self.after(passed);
        }
        self.len -= 1;
        Some(row)
    }

    /// Returns the word that a key leads to, for writing, or `None` if the slot does not have the
    /// key.
    pub(super) fn row_mut(&mut self, key: u64) -> Option<&mut u32> {
        let (at, entry) = self.locate(key)?;
        Some(L::row_mut(&mut self.buckets[at], entry))
    }

    /// Returns the bucket that holds a key and the index of the key's entry in this bucket, or
    /// `None` if the slot does not have the key.
    pub(super) fn entry(&self, key: u64) -> Option<(&CacheLine, usize)> {
        let (at, entry) = self.locate(key)?;
        Some((&self.buckets[at], entry))
    }

    /// Returns, for writing, the bucket that holds a key and the index of the key's entry in this
    /// bucket, or `None` if the slot does not have the key.
    pub(super) fn entry_mut(&mut self, key: u64) -> Option<(&mut CacheLine, usize)> {
        let (at, entry) = self.locate(key)?;
        Some((&mut self.buckets[at], entry))
    }

    /// Gives memory back if less than half of the slot's capacity is used, and moves keys closer to
    /// their home buckets. The caller must call this function after it has removed keys. If there
    /// is no memory for the work, the slot stays as it is.
    pub(super) fn tidy(&mut self, arena: &LineArena, slot: usize) {
        self.shrink(arena, slot);
        // If a quarter of the arena is free, slots move to its beginning, so that its end can be
        // given back.
        let bytes = arena.bytes();
        if bytes.used + bytes.reserved / 4 < bytes.reserved
            && let Some(mut lower) = arena.allocate_below(&self.buckets)
        {
            lower.copy_from_slice(&self.buckets);
            self.buckets = lower;
        }
    }

    fn shrink(&mut self, arena: &LineArena, slot: usize) {
        if self.len * L::FULLEST.1 * 2 >= self.buckets.len() * L::KEYS * L::FULLEST.0 {
            if self.buckets.iter().filter(|b| L::is_passed(b)).count() * 2 > self.buckets.len() {
                let _ = self.resize(arena, self.buckets.len());
            }
            return;
        }
        // The new size has room for a quarter more keys, so that a slot whose size varies a little
        // is not rebuilt each time.
        let room = self.len + self.len.div_ceil(4);
        let wanted = (room * L::FULLEST.1).div_ceil(L::KEYS * L::FULLEST.0);
        let size = if wanted == 0 { 0 } else { next_size(wanted - 1, slot) };
        if size < self.buckets.len() {
            let _ = self.resize(arena, size);
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        self.buckets.iter().flat_map(L::entries)
    }

    /// Returns the index of the bucket that holds a key and the index of the key's entry in this
    /// bucket, or `None` if the slot does not have the key.
    fn locate(&self, key: u64) -> Option<(usize, usize)> {
        let home = self.home(key);
        let mut at = home;
        loop {
            let bucket = self.buckets.get(at)?;
            if let Some(entry) = L::find(bucket, key) {
                return Some((at, entry));
            }
            at = self.after(at);
            if !L::is_passed(bucket) || at == home {
                return None;
            }
        }
    }

    fn place(&mut self, key: u64, row: u32) {
        let mut at = self.home(key);
        // The loop ends, because a slot is never full.
        while !L::put(&mut self.buckets[at], key, row) {
            L::pass(&mut self.buckets[at]);
            at = self.after(at);
        }
    }

    fn resize(&mut self, arena: &LineArena, size: usize) -> Result<(), DeviceError> {
        let fresh = arena.allocate(size)?;
        let old = std::mem::replace(&mut self.buckets, fresh);
        for (key, row) in old.iter().flat_map(L::entries) {
            self.place(key, row);
        }
        Ok(())
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        let next = at + 1;
        if next == self.buckets.len() { 0 } else { next }
    }
}

/// Returns the index of the home bucket of a key, which is below `buckets`. It is the
/// multiply-shift of the key's bits below the slot, so it never decreases from one key to a greater
/// one.
#[inline(always)]
fn home(key: u64, buckets: usize) -> usize {
    ((u128::from(key << SLOT_BITS) * buckets as u128) >> 64) as usize
}

/// Returns the next size of a slot after `buckets` buckets. The sizes of a slot follow `SMALL *
/// GROWTH^(k + phase)`. The phase is the slot's number with its bits reversed. So the sizes of
/// neighbouring slots, and of the slots of one shard, are spread evenly over a whole step of
/// growth.
fn next_size(buckets: usize, slot: usize) -> usize {
    if buckets < SMALL {
        return buckets + 1;
    }
    let phase = slot.reverse_bits() as f64 / (usize::MAX as f64);
    let mut size = SMALL as f64 * (1.0 + (GROWTH - 1.0) * phase);
    while size as usize <= buckets {
        size *= GROWTH;
    }
    size as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_by_about_a_fifth_and_differ_from_slot_to_slot() {
        for slot in [0, 1, 2, 77, 4095] {
            let mut size = 0;
            while size < 100_000 {
                let next = next_size(size, slot);
                assert!(next > size);
                if size > 20 {
                    assert!((next as f64) < size as f64 * 1.26, "{size} -> {next}");
                }
                size = next;
            }
        }
        // At any load, only few slots are about to grow.
        let mut sizes: Vec<usize> = (0..4096).map(|slot| next_size(600, slot)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.len() > 90, "{} different sizes", sizes.len());
    }

    #[test]
    fn homes_are_in_key_order_and_in_range() {
        let keys = [0u64, 1, 1 << 51, (1 << 52) - 1, u64::MAX >> 13, u64::MAX];
        for buckets in [1, 2, 3, 7, 600] {
            assert!(keys.iter().all(|&k| home(k, buckets) < buckets));
        }
        assert_eq!(home(u64::MAX, 600), 599);
        assert_eq!(home(0, 600), 0);
    }
}
