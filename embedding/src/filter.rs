//! A counting Bloom filter: how often keys without a row occurred, in memory that does not grow with the keys.
//!
//! A key has a block of one cache line in the filter of its slot, and some counters in that block; its count is
//! the least of them. Only those that are at the least are raised (Cohen and Matias 2003, "minimal increase"), so
//! that a count is never too small and seldom too large. The load that keeps the share of too large counts
//! within the error is found from the Poisson distribution of keys over blocks, because blocks are not filled
//! evenly (Putze, Sanders, Singler 2007).
//!
//! # Ageing
//! A filter for ever fills up. When a slot has as many counters in use as the load allows, its counters are
//! halved (as TinyLFU does, Einziger et al. 2017): keys that came once are forgotten. That depends on the keys of
//! the slot and their order alone, and so not on the number of shards.
//!
//! # Concurrency
//! A plain value, owned by one shard's part of a table.

mod before;

use std::ops::Range;

use before::Before;
use zillion_device::prefetch::prefetch_read;
use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, SLOTS};

/// The largest threshold that counters of eight bits can tell.
pub(crate) const LARGEST_THRESHOLD: u32 = u8::MAX as u32;
/// More expected keys are taken for a mistake.
pub(crate) const MOST_KEYS: u64 = 100_000_000_000;
/// Counters of four bits do up to here.
const LARGEST_NIBBLE: u32 = 15;
/// Counters of one key at most.
const MOST_PROBES: u32 = 8;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 64;
/// Words of a block in a checkpoint.
pub(crate) const BLOCK_WORDS: usize = BLOCK_BYTES / 8;

/// What follows from an admission's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FilterShape {
    at_least: u32,
    /// Bits of a counter, 4 or 8.
    counter_bits: u32,
    /// Counters of one key.
    probes: u32,
    /// Blocks of one slot.
    pub(crate) blocks: usize,
    /// Counters of one slot that are in use when it is full.
    fullest: u32,
}

/// The counts of one shard's part of a table.
#[derive(Debug)]
pub(crate) struct Filter {
    shape: FilterShape,
    first_slot: usize,
    slots: Vec<SlotFilter>,
    /// Present while a snapshot is written.
    before: Option<Before>,
}

#[derive(Debug, Default)]
struct SlotFilter {
    /// Empty until the slot's first key.
    blocks: Vec<Block>,
    /// Counters above zero.
    used: u32,
    /// Blocks that count anything.
    counting: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
struct Block([u8; BLOCK_BYTES]);

impl FilterShape {
    /// A filter for thresholds up to `at_least`, in which `keys` keys wait and the share `error` of counts is too
    /// large. The arguments are as [`Admission`](crate::Admission) allows them.
    pub(crate) fn new(at_least: u32, keys: u64, error: f64) -> Self {
        let counter_bits = if at_least <= LARGEST_NIBBLE { 4 } else { 8 };
        let counters = (BLOCK_BYTES * 8) as f64 / f64::from(counter_bits);
        let loads = (1..=MOST_PROBES).map(|probes| (largest_load(counters, probes, error), probes));
        let best = loads.max_by(|a, b| a.0.total_cmp(&b.0));
        let (load, probes) = best.unwrap_or((1.0, 1));
        let blocks = (keys as f64 / SLOTS as f64 / load).ceil().max(1.0);
        let in_use = 1.0 - (-load * f64::from(probes) / counters).exp();
        let fullest = (blocks * counters * in_use) as u32;
        Self { at_least, counter_bits, probes, blocks: blocks as usize, fullest: fullest.max(1) }
    }

    /// Everything that decides what counters mean, as checkpoints say it.
    pub(crate) fn describe(&self) -> String {
        let Self { counter_bits, probes, blocks, .. } = self;
        format!("{counter_bits} bits, {probes} counters a key, {blocks} blocks a slot")
    }

    /// Bytes of a whole filter, all slots in use.
    pub(crate) fn bytes(&self) -> u64 {
        (SLOTS * (self.blocks * BLOCK_BYTES + size_of::<SlotFilter>())) as u64
    }

    #[inline(always)]
    fn largest(&self) -> u32 {
        (1 << self.counter_bits) - 1
    }

    /// The block of a key: multiply-shift of the bits below its slot.
    #[inline(always)]
    fn block(&self, key: FeatureKey) -> usize {
        ((u128::from(key.0 << SLOT_BITS) * self.blocks as u128) >> 64) as usize
    }

    /// The counters of a key in its block. The bits that chose the block are mixed with the others, because all
    /// keys of a block have them in common.
    #[inline(always)]
    fn counters(self, key: FeatureKey) -> impl Iterator<Item = usize> {
        let bits_each = (BLOCK_BYTES as u32 * 8 / self.counter_bits).trailing_zeros();
        let bits = mix64(key.0);
        (0..self.probes).map(move |i| (bits >> (i * bits_each)) as usize & ((1 << bits_each) - 1))
    }
}

/// The most keys a block, on average, with which no more than `error` of other keys find all of their counters
/// in use.
fn largest_load(counters: f64, probes: u32, error: f64) -> f64 {
    let (mut low, mut high) = (0.0, counters);
    for _ in 0..40 {
        let load = (low + high) / 2.0;
        if share_in_use(load, counters, probes) <= error { low = load } else { high = load }
    }
    low
}

/// The chance that all counters of a new key are in use.
fn share_in_use(load: f64, counters: f64, probes: u32) -> f64 {
    let mut chance = (-load).exp();
    let mut sum = 0.0;
    // Beyond twelve standard deviations nothing is left.
    for keys in 1..(load + 12.0 * load.sqrt() + 20.0) as i32 {
        chance *= load / f64::from(keys);
        let in_use = 1.0 - (1.0 - 1.0 / counters).powi(keys * probes as i32);
        sum += chance * in_use.powi(probes as i32);
    }
    sum
}

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

    /// The count of a key, which is not too small unless counts have been halved.
    #[inline(always)]
    fn count(&self, key: FeatureKey) -> u32 {
        let slot = &self.slots[key.slot() - self.first_slot];
        let Some(block) = slot.blocks.get(self.shape.block(key)) else { return 0 };
        let counts = self.shape.counters(key).map(|at| block.get(at, self.shape.counter_bits));
        counts.min().unwrap_or(0)
    }

    /// Whether `times` more occurrences are enough.
    pub(crate) fn would_admit(&self, key: FeatureKey, times: u32) -> bool {
        self.count(key).saturating_add(times) >= self.shape.at_least
    }

    /// Counts `times` more occurrences of a key without a row. True where it now has enough.
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
        if let Some(before) = &mut self.before {
            before.keep(key.slot(), number, shape.blocks, *block);
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
            if let Some(before) = &mut self.before {
                for (number, block) in slot.blocks.iter().enumerate() {
                    before.keep(key.slot(), number, shape.blocks, *block);
                }
            }
            slot.blocks.iter_mut().for_each(|block| block.halve(shape.counter_bits));
            slot.used = slot.blocks.iter().map(|block| block.used(shape.counter_bits)).sum();
            slot.count_blocks();
        }
        false
    }

    /// The blocks of one slot that count anything: their numbers and contents.
    pub(crate) fn in_slot(
        &self,
        slot: usize,
    ) -> impl Iterator<Item = (usize, [u64; BLOCK_WORDS])> + '_ {
        counting(self.slots[slot - self.first_slot].blocks.iter().copied())
    }

    /// How many they are.
    pub(crate) fn slot_len(&self, slot: usize) -> usize {
        self.slots[slot - self.first_slot].counting as usize
    }

    /// Keeps from now on what blocks are before they change.
    pub(crate) fn begin_snapshot(&mut self) {
        self.before = Some(Before::new(self.first_slot..self.first_slot + self.slots.len()));
    }

    /// The blocks of one slot that counted anything when the snapshot began. The slot is not written yet.
    pub(crate) fn before_in_slot(
        &self,
        slot: usize,
    ) -> impl Iterator<Item = (usize, [u64; BLOCK_WORDS])> + use<> {
        let mut blocks = self.slots[slot - self.first_slot].blocks.clone();
        if let Some(before) = &self.before {
            before.restore(slot, &mut blocks);
        }
        counting(blocks.into_iter())
    }

    /// Notes that a slot is written: nothing of it is kept any more.
    pub(crate) fn slot_written(&mut self, slot: usize) {
        self.before.iter_mut().for_each(|before| before.forget(slot));
    }

    pub(crate) fn end_snapshot(&mut self) {
        self.before = None;
    }

    /// Bytes of what is kept for a snapshot.
    pub(crate) fn snapshot_bytes(&self) -> usize {
        self.before.as_ref().map_or(0, Before::bytes)
    }

    /// Puts a block back as a checkpoint kept it. Its number is below the shape's.
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

impl SlotFilter {
    fn count_blocks(&mut self) {
        let counts = |block: &&Block| **block != Block::EMPTY;
        self.counting = self.blocks.iter().filter(counts).count() as u32;
    }
}

/// The blocks of a slot that count anything: their numbers, and their words in a checkpoint.
fn counting(
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

    use super::*;

    /// A filter of the first 64 slots, and keys that fall into them.
    fn small(at_least: u32, keys: u64, error: f64) -> (Filter, impl Iterator<Item = FeatureKey>) {
        let shape = FilterShape::new(at_least, keys, error);
        let keys = (0..).map(FeatureKey::from_u64).filter(|key| key.slot() < 64);
        (Filter::new(0..64, shape), keys)
    }

    #[test]
    fn the_error_is_as_asked_for_when_the_filter_is_full() {
        for (at_least, error) in [(2, 0.01), (5, 0.001), (15, 0.05), (40, 0.01)] {
            // As many keys of 64 slots as there are to be of all 4096.
            let each = 50_000;
            let (mut filter, mut keys) = small(at_least, each * SLOTS as u64 / 64, error);
            for _ in 0..each {
                // Often enough to be in the way of others, too seldom to be let in.
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
            // What a checkpoint keeps is all that there is.
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
