//! The index of one slot: buckets of one cache line each, in the order of the key bits.
//!
//! The search for a key begins in its home bucket, which is the multiply-shift of the key's bits
//! below the slot. So any number of buckets is possible, and a slot can grow by a fifth. A key
//! whose home bucket is full goes to the next bucket with a free entry. Every full bucket that it
//! passes counts the key. So a search ends at the first bucket that no key has passed.
//!
//! Removing a key decreases these counts, so no markers of deleted keys are needed. But a key can
//! stay in its bucket while the buckets before it become empty. The counts of these buckets then
//! stay, in the end in every bucket of a small slot. For this reason, a probe also ends where it
//! began, and a slot is rebuilt after a removal if most of its buckets have a count.
//!
//! Ids can be chosen so that all their keys have one home. So a probe reads at most [`REACH`]
//! buckets. A key that finds no free entry in them goes to the [`Overflow`] of the index, a sorted
//! map. For random keys this practically never happens: at the highest load of a slot, one key in
//! ten million lies that far from its home. A secret seed would make the map unnecessary, but the
//! order of keys in memory would then differ from run to run.

use std::marker::PhantomData;

use zillion_device::DeviceError;
use zillion_device::lines::{CacheLine, LineArena, Run};

use crate::index::entry::Entry;
use crate::index::line::Line;
use crate::index::overflow::Overflow;

/// The largest number of buckets that a probe reads.
const REACH: usize = 32;
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
    /// The number of keys, including those in the overflow.
    len: u32,
    /// The number of keys in the overflow.
    outside: u32,
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
        Self { buckets: arena.empty(), len: 0, outside: 0, format: PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
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
    pub(super) fn get(&self, key: u64, overflow: &Overflow) -> Option<u32> {
        let found = self.probe(key, |_, line| Some(L::row(line, L::find(line, key)?)));
        if found.is_none() && self.outside > 0 {
            return overflow.get(key).map(|(_, row)| row);
        }
        found
    }

    /// Calls `look` with the index and the contents of each bucket in which the key can be, at most
    /// [`REACH`] buckets. Returns the first result that is not `None`, or `None` if all results
    /// are.
    #[inline(always)]
    fn probe<T>(
        &self,
        key: u64,
        mut look: impl FnMut(usize, &CacheLine) -> Option<T>,
    ) -> Option<T> {
        let home = self.home(key);
        let mut at = home;
        // An empty slot has no buckets, so its home bucket 0 does not exist.
        let mut bucket = self.buckets.get(at)?;
        for _ in 0..REACH {
            if let Some(found) = look(at, bucket) {
                return Some(found);
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
        None
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
        (arena, overflow): (&LineArena, &mut Overflow),
        word: u64,
        row: u32,
        slot: usize,
    ) -> Result<(), DeviceError> {
        // Keys in the overflow need no buckets.
        let inside = (self.len - self.outside) as usize;
        if (inside + 1) * L::FULLEST.1 > self.buckets.len() * L::KEYS * L::FULLEST.0 {
            let size = next_size(self.buckets.len(), slot);
            self.resize((arena, &mut *overflow), size, slot)?;
        }
        self.place(word, row, slot, overflow);
        self.len += 1;
        Ok(())
    }

    pub(super) fn remove(&mut self, key: u64, overflow: &mut Overflow) -> Option<u32> {
        let home = self.home(key);
        let (end, row) = match self.locate(key) {
            Some((at, entry)) => (at, L::take(&mut self.buckets[at], entry)),
            None if self.outside > 0 => {
                let row = overflow.remove(key)?;
                self.outside -= 1;
                // The key has passed every bucket in reach.
                ((home + REACH) % self.buckets.len(), row)
            }
            None => return None,
        };
        let mut passed = home;
        while passed != end {
            L::unpass(&mut self.buckets[passed]);
            passed = self.after(passed);
        }
        self.len -= 1;
        Some(row)
    }

    /// Returns the row of a key for writing, or `None` if the slot does not have the key.
    pub(super) fn row_mut<'a>(
        &'a mut self,
        key: u64,
        overflow: &'a mut Overflow,
    ) -> Option<&'a mut u32> {
        match self.locate(key) {
            Some((at, entry)) => Some(L::row_mut(&mut self.buckets[at], entry)),
            None => overflow.get_mut(key).map(|(_, row)| row),
        }
    }

    /// Returns the word and the row of a key, or `None` if the slot does not have the key.
    pub(super) fn entry(&self, key: u64, overflow: &Overflow) -> Option<(u64, u32)> {
        match self.locate(key) {
            Some((at, entry)) => {
                let line = &self.buckets[at];
                Some((L::word(line, entry), L::row(line, entry)))
            }
            None => overflow.get(key),
        }
    }

    /// Writes the word and the row of a key that is in the slot. The low bits of the word must be
    /// the low bits of the key.
    pub(super) fn set(&mut self, key: u64, (word, row): (u64, u32), overflow: &mut Overflow) {
        if let Some((at, entry)) = self.locate(key) {
            L::set(&mut self.buckets[at], entry, word, row);
        } else if let Some(entry) = overflow.get_mut(key) {
            *entry = (word, row);
        }
    }

    /// Gives memory back if less than half of the slot's capacity is used, and moves keys back near
    /// their home buckets. The function must be called when keys have been removed. If there is no
    /// memory for this, the slot stays as it is.
    pub(super) fn tidy(&mut self, (arena, overflow): (&LineArena, &mut Overflow), slot: usize) {
        self.shrink((arena, overflow), slot);
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

    fn shrink(&mut self, memory: (&LineArena, &mut Overflow), slot: usize) {
        let len = self.len();
        if len * L::FULLEST.1 * 2 >= self.buckets.len() * L::KEYS * L::FULLEST.0 {
            if self.buckets.iter().filter(|b| L::is_passed(b)).count() * 2 > self.buckets.len() {
                let _ = self.resize(memory, self.buckets.len(), slot);
            }
            return;
        }
        // The new size has room for a quarter more keys, so that a slot whose size varies a little
        // is not rebuilt each time.
        let room = len + len.div_ceil(4);
        let wanted = (room * L::FULLEST.1).div_ceil(L::KEYS * L::FULLEST.0);
        let size = if wanted == 0 { 0 } else { next_size(wanted - 1, slot) };
        if size < self.buckets.len() {
            let _ = self.resize(memory, size, slot);
        }
    }

    /// Yields the words and rows of the keys in buckets.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        self.buckets.iter().flat_map(L::entries)
    }

    /// Returns the index of the bucket that holds a key and the index of the key's entry in this
    /// bucket, or `None` if the slot does not have the key.
    fn locate(&self, key: u64) -> Option<(usize, usize)> {
        self.probe(key, |at, line| Some((at, L::find(line, key)?)))
    }

    /// Writes a word and its row into the first bucket in reach that has room, or into the
    /// overflow. All buckets are in the reach of a small slot, and a slot is never full.
    fn place(&mut self, word: u64, row: u32, slot: usize, overflow: &mut Overflow) {
        let mut at = self.home(word);
        for _ in 0..REACH {
            if L::put(&mut self.buckets[at], word, row) {
                return;
            }
            L::pass(&mut self.buckets[at]);
            at = self.after(at);
        }
        overflow.insert(slot, word, row);
        self.outside += 1;
    }

    fn resize(
        &mut self,
        (arena, overflow): (&LineArena, &mut Overflow),
        size: usize,
        slot: usize,
    ) -> Result<(), DeviceError> {
        let fresh = arena.allocate(size)?;
        let old = std::mem::replace(&mut self.buckets, fresh);
        let outside = if self.outside > 0 { overflow.take_slot(slot) } else { Vec::new() };
        self.outside = 0;
        for (word, row) in old.iter().flat_map(L::entries).chain(outside) {
            self.place(word, row, slot, overflow);
        }
        Ok(())
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        let next = at + 1;
        if next == self.buckets.len() { 0 } else { next }
    }
}

/// Returns the index of the home bucket of a key, which is below `buckets`. The index is the
/// multiply-shift of the key's bits below the slot, so a greater key never has a lower home bucket.
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
    use crate::index::{Compact, Counted};

    /// Puts keys into slot 5. Returns the largest number of buckets that a search reads: first for
    /// these keys, then for absent keys near them.
    fn most_buckets_read<L: Line>(keys: &[u64]) -> [usize; 2] {
        let (arena, mut overflow) = (LineArena::new(), Overflow::default());
        let mut slot = SlotIndex::<L>::new(&arena);
        for (row, &key) in (0..).zip(keys) {
            slot.insert((&arena, &mut overflow), key, row, 5).unwrap();
        }
        let read = |key: u64| {
            let mut buckets = 0;
            slot.probe(key, |_, line| {
                buckets += 1;
                L::find(line, key)
            });
            buckets
        };
        for (row, &key) in (0..).zip(keys) {
            assert_eq!(slot.get(key, &overflow), Some(row));
            assert_eq!(slot.get(key ^ 1 << 40, &overflow), None);
        }
        let most = |change: u64| keys.iter().map(|&key| read(key ^ change)).max().unwrap_or(0);
        [most(0), most(1 << 40)]
    }

    #[test]
    fn a_search_reads_a_bounded_number_of_buckets() {
        let one_home: Vec<u64> = (0..30_000).map(|i| 5 << 52 | 77 << 44 | i).collect();
        for [present, absent] in
            [most_buckets_read::<Compact>(&one_home), most_buckets_read::<Counted>(&one_home)]
        {
            assert!(present <= REACH && absent <= REACH, "{present} and {absent} buckets");
        }
        // Random keys have a reach to spare.
        let random = (0..30_000).map(|i| 5 << 52 | zillion_feature::random::mix64(i) >> 12);
        let [present, _] = most_buckets_read::<Compact>(&random.collect::<Vec<_>>());
        assert!(present <= REACH / 2, "{present} buckets");
    }

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
