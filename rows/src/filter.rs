//! The shape of the counting Bloom filter in which keys without a row are counted.
//!
//! Each slot has a filter, which consists of blocks of one cache line. A key has one block in the
//! filter of its slot, and several counters in this block. The count of the key is the smallest of
//! these counters. Blocks are not filled evenly, so the number of blocks is computed from the
//! Poisson distribution of the keys over the blocks (Putze, Sanders, Singler 2007). With this
//! number of blocks, the share of keys with a count that is too large stays within the given error.

use zillion_feature::random::mix64;
use zillion_feature::{FeatureKey, SLOTS};

/// The largest admission threshold that a counter of eight bits can reach.
pub const LARGEST_THRESHOLD: u32 = u8::MAX as u32;
/// The largest number of expected keys that a job may set. A larger number is refused, because it
/// must be a mistake.
pub const MOST_KEYS: u64 = 100_000_000_000;
/// The largest admission threshold that a counter of four bits can reach.
const LARGEST_NIBBLE: u32 = 15;
/// The largest number of counters of one key.
const MOST_PROBES: u32 = 8;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();

/// The number of bytes of a block.
pub const BLOCK_BYTES: usize = 64;
/// The number of words of a block in a checkpoint.
pub const BLOCK_WORDS: usize = BLOCK_BYTES / 8;

/// The number of bytes of a slot's filter in memory in addition to its blocks.
pub const SLOT_FILTER_BYTES: usize = 32;

/// The sizes of a filter, which are computed from the settings of an admission.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilterShape {
    /// The number of occurrences at which a key is admitted.
    pub at_least: u32,
    /// The number of bits of a counter: 4 or 8.
    pub counter_bits: u32,
    /// The number of counters that each key has in its block.
    probes: u32,
    /// The number of blocks in the filter of one slot.
    pub blocks: usize,
    /// The number of counters above zero at which the filter of a slot is full. All counters of a
    /// full filter are halved.
    pub fullest: u32,
}

impl FilterShape {
    /// Computes the shape of a filter for thresholds up to `at_least`. When `keys` keys wait, a
    /// share of at most `error` of the keys has a count that is too large. The arguments must be in
    /// the ranges that [`Admission`](crate::Admission) allows.
    pub fn new(at_least: u32, keys: u64, error: f64) -> Self {
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

    /// Returns a text with the number of bits of a counter, of counters of a key and of blocks of a
    /// slot. Checkpoints record this text, because the meaning of the counters depends on these
    /// numbers.
    pub fn describe(&self) -> String {
        let Self { counter_bits, probes, blocks, .. } = self;
        format!("{counter_bits} bits, {probes} counters a key, {blocks} blocks a slot")
    }

    /// Returns the number of bytes that the filters of all slots take in memory when every slot is
    /// in use.
    pub fn bytes(&self) -> u64 {
        (SLOTS * (self.blocks * BLOCK_BYTES + SLOT_FILTER_BYTES)) as u64
    }

    /// Returns the largest number that a counter can hold.
    #[inline(always)]
    pub fn largest(&self) -> u32 {
        (1 << self.counter_bits) - 1
    }

    /// Returns the index of a key's block in the filter of its slot. The index is computed by
    /// multiply-shift from the bits of the key below the slot bits.
    #[inline(always)]
    pub fn block(&self, key: FeatureKey) -> usize {
        ((u128::from(key.0 << SLOT_BITS) * self.blocks as u128) >> 64) as usize
    }

    /// Yields the positions of a key's counters in its block. All bits of the key are mixed first,
    /// because the keys of one block have equal values in the bits that choose the block.
    #[inline(always)]
    pub fn counters(self, key: FeatureKey) -> impl Iterator<Item = usize> {
        let bits_each = (BLOCK_BYTES as u32 * 8 / self.counter_bits).trailing_zeros();
        let bits = mix64(key.0);
        (0..self.probes).map(move |i| (bits >> (i * bits_each)) as usize & ((1 << bits_each) - 1))
    }
}

/// Returns the largest allowed load of a filter: the mean number of keys per block. With this load,
/// all counters are already above zero for a share of at most `error` of the new keys.
fn largest_load(counters: f64, probes: u32, error: f64) -> f64 {
    let (mut low, mut high) = (0.0, counters);
    for _ in 0..40 {
        let load = (low + high) / 2.0;
        if share_in_use(load, counters, probes) <= error { low = load } else { high = load }
    }
    low
}

/// Returns the probability that all counters of a new key are already above zero, if blocks have
/// `load` keys on average.
fn share_in_use(load: f64, counters: f64, probes: u32) -> f64 {
    let mut chance = (-load).exp();
    let mut sum = 0.0;
    // The probability beyond twelve standard deviations is negligible.
    for keys in 1..(load + 12.0 * load.sqrt() + 20.0) as i32 {
        chance *= load / f64::from(keys);
        let in_use = 1.0 - (1.0 - 1.0 / counters).powi(keys * probes as i32);
        sum += chance * in_use.powi(probes as i32);
    }
    sum
}
