//! A hash with a secret seed, for keys in memory.
//!
//! A key is a public function of its id. So a client can compute ids whose keys agree in any chosen
//! bits. If the bits of a key gave its position in a set, such keys would all have the same
//! position, and a lookup would visit all of them. The hash of this module depends on a seed that a
//! client does not know.
//!
//! One multiplication by a secret odd number would not be enough. The hashes of the keys `i << 26`
//! would then have equal distances. For one multiplier in `k`, the distances are so small that a
//! lookup visits about `k` keys. If keys differ only in their top bits, their hashes have equal
//! distances even after two multiplications. Only after the third multiplication are the distances
//! irregular.
//!
//! # Invariants
//! No result depends on the seed. The user of the hash must not use the order of its cells for a
//! result.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

use crate::key::FeatureKey;
use crate::random::{combine, mix64};

/// A hash function of keys with a secret seed.
#[derive(Clone, Copy)]
pub(crate) struct SeededHash {
    seed: u64,
    factors: [u64; 3],
}

impl SeededHash {
    /// Creates the hash function with a given seed.
    pub(crate) fn new(seed: u64) -> Self {
        // A product with an odd number keeps all bits of the key.
        Self { seed, factors: [1, 2, 3].map(|word| combine(seed, word) | 1) }
    }

    /// Creates a hash function with another seed, which is computed from the present seed.
    pub(crate) fn next(self) -> Self {
        Self::new(mix64(self.seed))
    }

    /// Returns the hash of a key. The top bits of the hash are the most random ones.
    #[inline(always)]
    pub(crate) fn hash(self, key: FeatureKey) -> u64 {
        let [first, second, third] = self.factors;
        let x = (key.0 ^ self.seed).wrapping_mul(first);
        let x = (x ^ (x >> 32)).wrapping_mul(second);
        (x ^ (x >> 29)).wrapping_mul(third)
    }

    /// Creates a bad hash function for tests, which leaves small keys almost unchanged.
    #[cfg(test)]
    pub(crate) fn worst() -> Self {
        Self { seed: 0, factors: [1; 3] }
    }
}

impl Default for SeededHash {
    /// Creates a hash function with a random seed.
    fn default() -> Self {
        Self::new(RandomState::new().build_hasher().finish())
    }
}

impl fmt::Debug for SeededHash {
    /// Formats only the name of the type, because the seed is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededHash").finish_non_exhaustive()
    }
}

/// A hasher for the maps and sets of the standard library, with the function of a [`SeededHash`].
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
        // The maps of the standard library use the low bits first.
        self.state.rotate_left(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        // A `FeatureKey` never calls this function, because its hash is one `u64`.
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

    /// Returns named groups of `count` keys that agree in many bits, as an attacker could choose
    /// them.
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
                // Of 4096 random keys, 6 to 9 fall into the fullest of 4096 cells.
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
