//! A counting Bloom filter, which counts the occurrences of keys without a row. Its memory does not
//! grow with the number of keys.
//!
//! Each slot has a filter, which consists of blocks of one cache line. A key has one block in the
//! filter of its slot, and several counters in this block. The count of the key is the smallest of
//! these counters. An occurrence raises only the counters that have this smallest value (Cohen and
//! Matias 2003, "minimal increase"). So a count is never too small, and seldom too large. The
//! number of blocks is computed from the Poisson distribution of the keys over the blocks, because
//! blocks are not filled evenly (Putze, Sanders, Singler 2007). With this number, the share of
//! counts that are too large stays within the given error.
//!
//! # Ageing
//! Without ageing, a filter would fill up. So all counters of a slot are halved when the slot has
//! the largest allowed number of counters above zero (as in TinyLFU, Einziger et al. 2017). This
//! clears the counts of keys that occurred only once. The moment of the halving depends only on the
//! keys of the slot and their order. It does not depend on the number of shards. If the table has
//! an `admission_window`, the counters of a slot are also halved once in this span of event time.
//!
//! # Concurrency
//! A filter is a plain value without locks. One shard's part of a table owns it.

mod before;

use std::ops::Range;

use crate::admission::before::Before;
use crate::admission::filter::before::Changed;
use zillion_device::prefetch::prefetch_read;
use zillion_feature::FeatureKey;
use zillion_rows::filter::{BLOCK_BYTES, BLOCK_WORDS, FilterShape, SLOT_FILTER_BYTES};

/// A counting Bloom filter for one shard's part of a table.
#[derive(Debug)]
pub(crate) struct Filter {
    shape: FilterShape,
    first_slot: usize,
    slots: Vec<SlotFilter>,
    /// The old contents of the blocks that have changed since a snapshot began; `None` if no
    /// snapshot is being written.
    pub(super) before: Option<Before<Changed>>,
}

#[derive(Debug, Default)]
struct SlotFilter {
    /// The blocks of the slot. The list is empty until the first key of the slot is counted.
    blocks: Vec<Block>,
    /// The number of counters above zero.
    used: u32,
    /// The number of blocks that have a counter above zero.
    counting: u32,
}

const _: () = assert!(size_of::<SlotFilter>() == SLOT_FILTER_BYTES, "limits are reckoned with it");

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Block([u8; BLOCK_BYTES]);

impl Block {
    const EMPTY: Self = Self([0; BLOCK_BYTES]);

    #[inline(always)]
    fn get(&self, counter: usize, bits: u32) -> u32 {
        match bits {
            4 => u32::from(self.0[counter / 2] >> (counter % 2 * 4) & 15),
            _ => u32::from(self.0[counter]),
        }
    }

    #[inline(always)]
    fn set(&mut self, counter: usize, bits: u32, value: u32) {
        match bits {
            4 => {
                let (byte, shift) = (&mut self.0[counter / 2], counter % 2 * 4);
                *byte = *byte & !(15 << shift) | (value as u8) << shift;
            }
            _ => self.0[counter] = value as u8,
        }
    }

    fn halve(&mut self, bits: u32) {
        let kept = if bits == 4 { 0x77 } else { 0x7f };
        self.0.iter_mut().for_each(|byte| *byte = *byte >> 1 & kept);
    }

    fn used(&self, bits: u32) -> u32 {
        let halves = |byte: u8| u32::from(byte & 15 != 0) + u32::from(byte >> 4 != 0);
        let used = |&byte: &u8| if bits == 4 { halves(byte) } else { u32::from(byte != 0) };
        self.0.iter().map(used).sum()
    }
}

impl Filter {
    pub(crate) fn new(slots: Range<usize>, shape: FilterShape) -> Self {
        let first_slot = slots.start;
        Self {
            shape,
            first_slot,
            slots: slots.map(|_| SlotFilter::default()).collect(),
            before: None,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let blocks: usize = self.slots.iter().map(|slot| slot.blocks.capacity()).sum();
        blocks * BLOCK_BYTES + self.slots.capacity() * size_of::<SlotFilter>()
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, key: FeatureKey) {
        prefetch_read(&self.slots[key.slot() - self.first_slot].blocks, self.shape.block(key));
    }

    /// Returns the count of a key. The count is never too small, unless counts have been halved.
    #[inline(always)]
    fn count(&self, key: FeatureKey) -> u32 {
        let slot = &self.slots[key.slot() - self.first_slot];
        let Some(block) = slot.blocks.get(self.shape.block(key)) else { return 0 };
        let counts = self.shape.counters(key).map(|at| block.get(at, self.shape.counter_bits));
        counts.min().unwrap_or(0)
    }

    /// Returns whether `times` more occurrences would be enough to admit the key.
    pub(crate) fn would_admit(&self, key: FeatureKey, times: u32) -> bool {
        self.count(key).saturating_add(times) >= self.shape.at_least
    }

    /// Counts `times` more occurrences of a key without a row. Returns `true` if the key now has
    /// enough occurrences.
    pub(crate) fn admit(&mut self, key: FeatureKey, times: u32) -> bool {
        let count = self.count(key).saturating_add(times);
        if count >= self.shape.at_least {
            return true;
        }
        let shape = self.shape;
        let count = count.min(shape.largest());
        let slot = &mut self.slots[key.slot() - self.first_slot];
        if slot.blocks.is_empty() {
            slot.blocks = vec![Block::EMPTY; shape.blocks];
        }
        let number = shape.block(key);
        let block = &mut slot.blocks[number];
        if let Some(changed) = self.before.as_mut().and_then(|before| before.pending(key.slot())) {
            changed.keep(number, shape.blocks, *block);
        }
        slot.counting += u32::from(*block == Block::EMPTY);
        for at in shape.counters(key) {
            let before = block.get(at, shape.counter_bits);
            if before < count {
                slot.used += u32::from(before == 0);
                block.set(at, shape.counter_bits, count);
            }
        }
        if slot.used > shape.fullest {
            self.halve(key.slot(), 1);
        }
        false
    }

    /// Halves all counters of a slot `times` times.
    pub(crate) fn halve(&mut self, slot: usize, times: u64) {
        let (shape, number) = (self.shape, slot);
        let slot = &mut self.slots[number - self.first_slot];
        if slot.counting == 0 || times == 0 {
            return;
        }
        if let Some(changed) = self.before.as_mut().and_then(|before| before.pending(number)) {
            for (number, block) in slot.blocks.iter().enumerate() {
                changed.keep(number, shape.blocks, *block);
            }
        }
        // A counter has at most eight bits.
        for _ in 0..times.min(u8::BITS.into()) {
            slot.blocks.iter_mut().for_each(|block| block.halve(shape.counter_bits));
        }
        slot.used = slot.blocks.iter().map(|block| block.used(shape.counter_bits)).sum();
        let counts = |block: &&Block| **block != Block::EMPTY;
        slot.counting = slot.blocks.iter().filter(counts).count() as u32;
    }

    /// Returns the blocks of one slot that have a counter above zero, each with its index in the
    /// slot.
    pub(crate) fn in_slot(
        &self,
        slot: usize,
    ) -> impl Iterator<Item = (usize, [u64; BLOCK_WORDS])> + '_ {
        used_blocks(self.slots[slot - self.first_slot].blocks.iter().copied())
    }

    /// Returns the number of blocks of one slot that have a counter above zero.
    pub(crate) fn slot_len(&self, slot: usize) -> usize {
        self.slots[slot - self.first_slot].counting as usize
    }

    /// Begins a snapshot. From this call on, a block is copied before its first change.
    pub(crate) fn begin_snapshot(&mut self) {
        self.before = Some(Before::new(self.first_slot..self.first_slot + self.slots.len()));
    }

    /// Returns the blocks of one slot that had a counter above zero when the snapshot began, each
    /// with its index in the slot. The slot must not have been written yet.
    pub(crate) fn before_in_slot(
        &self,
        slot: usize,
    ) -> impl Iterator<Item = (usize, [u64; BLOCK_WORDS])> + use<> {
        let mut blocks = self.slots[slot - self.first_slot].blocks.clone();
        if let Some(before) = &self.before {
            before.slot(slot).restore(&mut blocks);
        }
        used_blocks(blocks.into_iter())
    }

    /// Restores a block from a checkpoint. `number` is the index of the block in its slot, and must
    /// be below the number of blocks of a slot.
    pub(crate) fn restore(&mut self, slot: usize, number: usize, words: &[u64]) {
        let shape = self.shape;
        let slot = &mut self.slots[slot - self.first_slot];
        if slot.blocks.is_empty() {
            slot.blocks = vec![Block::EMPTY; shape.blocks];
        }
        let block = &mut slot.blocks[number];
        for (bytes, word) in block.0.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        slot.used += block.used(shape.counter_bits);
        slot.counting += u32::from(*block != Block::EMPTY);
    }
}

/// Returns the blocks that have a counter above zero, each with its index and with its words as a
/// checkpoint stores them.
fn used_blocks(
    blocks: impl Iterator<Item = Block>,
) -> impl Iterator<Item = (usize, [u64; BLOCK_WORDS])> {
    blocks.enumerate().filter(|(_, block)| *block != Block::EMPTY).map(|(number, block)| {
        let mut words = [0; BLOCK_WORDS];
        for (word, bytes) in words.iter_mut().zip(block.0.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        (number, words)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use zillion_feature::SLOTS;

    use super::*;

    /// Returns a filter of the first 64 slots, and an iterator over keys of these slots.
    fn small(at_least: u32, keys: u64, error: f64) -> (Filter, impl Iterator<Item = FeatureKey>) {
        let shape = FilterShape::new(at_least, keys, error);
        let keys = (0..).map(FeatureKey::from_u64).filter(|key| key.slot() < 64);
        (Filter::new(0..64, shape), keys)
    }

    #[test]
    fn the_error_is_as_asked_for_when_the_filter_is_full() {
        for (at_least, error) in [(2, 0.01), (5, 0.001), (15, 0.05), (40, 0.01)] {
            // The number of keys that 64 of the 4,096 slots have.
            let each = 50_000;
            let (mut filter, mut keys) = small(at_least, each * SLOTS as u64 / 64, error);
            for _ in 0..each {
                // The count is large enough to disturb other keys and too small to be admitted.
                filter.admit(keys.next().unwrap(), at_least - 1);
            }
            let fresh = keys.take(200_000).filter(|&key| filter.would_admit(key, 1)).count();
            let share = fresh as f64 / 2e5;
            assert!(share < 1.2 * error && share > error / 4.0, "{share} for {error}");
        }
    }

    #[test]
    fn a_filter_is_smaller_than_exact_counts() {
        let shape = FilterShape::new(5, 50_000_000, 0.01);
        let each = shape.bytes() as f64 / 50e6;
        assert!((4.0..8.0).contains(&each), "{each} bytes a key");
    }

    #[test]
    fn a_filter_runs_for_ever() {
        let (mut filter, mut keys) = small(3, 64_000, 0.01);
        let mut early = 0;
        for _ in 0..200_000 {
            early += u32::from(filter.admit(keys.next().unwrap(), 1));
        }
        assert_eq!(early, 0);
        let fresh = keys.take(100_000).filter(|&key| filter.would_admit(key, 2)).count();
        assert!(fresh < 2000, "{fresh} of 100000 keys count as seen");
        let bytes = filter.bytes();
        assert!(bytes <= FilterShape::new(3, 64_000, 0.01).bytes() as usize / 64, "{bytes}");
    }

    proptest! {
        #[test]
        fn no_key_waits_longer_than_by_exact_counts(
            at_least in prop_oneof![1u32..16, Just(16u32), Just(255)],
            seen in prop::collection::vec((0u64..50, 0u64..3, 1u32..4), 0..400),
        ) {
            let shape = FilterShape::new(at_least, 40_000_000, 0.01);
            let mut filter = Filter::new(0..SLOTS, shape);
            let mut exact: BTreeMap<FeatureKey, u32> = BTreeMap::new();
            for (low, slot, times) in seen {
                let key = FeatureKey(slot << 62 | low);
                let count = exact.entry(key).or_default();
                *count = count.saturating_add(times);
                let would = filter.would_admit(key, times);
                let admitted = filter.admit(key, times);
                prop_assert_eq!(would, admitted);
                prop_assert!(admitted || *count < at_least);
                if admitted {
                    exact.remove(&key);
                }
            }
            // The blocks of a checkpoint restore the whole state of the filter.
            let mut other = Filter::new(0..SLOTS, shape);
            for slot in 0..SLOTS {
                filter.in_slot(slot).for_each(|(number, words)| other.restore(slot, number, &words));
            }
            for slot in 0..SLOTS {
                prop_assert!(filter.in_slot(slot).eq(other.in_slot(slot)));
                prop_assert_eq!(filter.slots[slot].used, other.slots[slot].used);
                prop_assert_eq!(filter.slot_len(slot), filter.in_slot(slot).count());
                prop_assert_eq!(filter.slot_len(slot), other.slot_len(slot));
            }
        }
    }
}
