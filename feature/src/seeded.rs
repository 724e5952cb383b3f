//! The hash of keys in memory, with a secret seed.
//!
//! A key is a public function of its id, so that a client can compute ids whose keys agree in any
//! bits. A set that reads its position from the bits of a key puts such keys into one place, and a
//! lookup walks over all of them. The hash here depends on a seed that a client does not know.
//!
//! One multiplication by a secret odd number would not be enough: the keys `i << 26` would then be
//! equal steps around the table, and for one multiplier in `k` the steps lie so near to each other
//! that a lookup walks over about `k` keys. Keys that differ in their top bits alone keep equal
//! steps through two multiplications as well. The third one breaks this order.
//!
//! # Invariants
//! No result depends on the seed: a user of the hash must not read the order of its cells.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

use crate::key::FeatureKey;
use crate::random::{combine, mix64};

/// A hash of keys with a secret seed.
#[derive(Clone, Copy)]
pub(crate) struct SeededHash {
    seed: u64,
    factors: [u64; 3],
}

impl SeededHash {
    /// Creates the hash of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        // A product with an odd number loses no bits of the key.
        Self { seed, factors: [1, 2, 3].map(|word| combine(seed, word) | 1) }
    }

    /// Creates the hash of a seed that follows from the seed of this hash.
    pub(crate) fn next(self) -> Self {
        Self::new(mix64(self.seed))
    }

    /// Returns the hash of a key. The top bits of the result are the best ones.
    #[inline(always)]
    pub(crate) fn hash(self, key: FeatureKey) -> u64 {
        let [first, second, third] = self.factors;
        let x = (key.0 ^ self.seed).wrapping_mul(first);
        let x = (x ^ (x >> 32)).wrapping_mul(second);
        (x ^ (x >> 29)).wrapping_mul(third)
    }

    /// Creates a hash that leaves small keys almost as they are, the worst one.
    #[cfg(test)]
    pub(crate) fn worst() -> Self {
        Self { seed: 0, factors: [1; 3] }
    }
}

impl Default for SeededHash {
    /// Creates the hash of a random seed.
    fn default() -> Self {
        Self::new(RandomState::new().build_hasher().finish())
    }
}

impl fmt::Debug for SeededHash {
    /// Writes the name of the type without the seed, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededHash").finish_non_exhaustive()
    }
}

/// The hasher of a map or set of the standard library that [`SeededHash`] makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeededHasher {
    hash: SeededHash,
    state: u64,
}

impl BuildHasher for SeededHash {
    type Hasher = SeededHasher;

    #[inline]
    fn build_hasher(&self) -> SeededHasher {
        SeededHasher { hash: *self, state: 0 }
    }
}

impl Hasher for SeededHasher {
    #[inline]
    fn finish(&self) -> u64 {
        // The maps of the standard library read the low bits first.
        self.state.rotate_left(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        // A `FeatureKey` does not use this function: it hashes as one `u64`.
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.state = self.hash.hash(FeatureKey(self.state ^ word));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns groups of keys that agree in many bits, as a client can make them.
    pub(crate) fn crafted_keys(count: u64) -> Vec<(&'static str, Vec<FeatureKey>)> {
        let keys = |of: fn(u64) -> u64| (0..count).map(|i| FeatureKey(of(i))).collect();
        vec![
            ("equal low 26 bits", keys(|i| i << 26)),
            ("equal low 40 bits", keys(|i| i << 40)),
            ("equal high bits", keys(|i| i)),
            ("equal high and low bits", keys(|i| 7 << 52 | i << 20)),
            ("equal middle bits", keys(|i| (i & 0xff) << 56 | i >> 8)),
            ("equal steps", keys(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
        ]
    }

    #[test]
    fn crafted_keys_spread_like_random_ones() {
        let cells = 1 << 12;
        for seed in 0..8 {
            let hash = SeededHash::new(seed);
            for (name, keys) in crafted_keys(cells) {
                let fullest = |place: fn(u64) -> usize| {
                    let mut counts = vec![0; cells as usize];
                    keys.iter().for_each(|&key| counts[place(hash.hash_one(key))] += 1);
                    counts.into_iter().max().unwrap()
                };
                // Random keys put 6 to 9 of 4096 into the fullest of 4096 cells.
                assert!(fullest(|hash| hash as usize % (1 << 12)) <= 12, "{name}, low bits");
                assert!(fullest(|hash| (hash >> 20) as usize % (1 << 12)) <= 12, "{name}, middle");
            }
        }
    }

    #[test]
    fn random_seeds_differ() {
        let key = FeatureKey(1);
        assert_ne!(SeededHash::default().hash(key), SeededHash::default().hash(key));
        assert_ne!(SeededHash::new(1).hash(key), SeededHash::new(1).next().hash(key));
    }
}
