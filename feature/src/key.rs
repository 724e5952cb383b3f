//! The keys of raw values, and the slots of keys.
//!
//! A key is mixed only once, when it is made. The index of a table, the slot, the shard and the
//! order of a file use its bits directly and do not hash it again. Integers are mixed by a
//! bijection, so that two ids never have the same key, and the id can be computed from the key.
//! Strings are hashed by xxh3-64. Test vectors below fix both functions, because every checkpoint
//! depends on them.

use std::hash::{BuildHasherDefault, Hasher};

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

use crate::random::mix64;

/// The number of virtual slots. The top 12 bits of a key are its slot. Shards and servers own
/// ranges of slots.
pub const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;

/// The name of the hashing rules. Manifests store it, and a file that was written under other rules
/// is refused.
pub const HASH_ID: &str = "splitmix64+xxh3-64/1";

const MISSING_TAG: &[u8] = b"zillion:missing:";

/// A mixed 64-bit key in a table. Every `u64` is a valid key, and no value has a special meaning.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Pod,
    Zeroable,
    Serialize,
    Deserialize,
)]
#[repr(transparent)]
#[serde(transparent)]
pub struct FeatureKey(pub u64);

impl FeatureKey {
    /// Returns the key of a signed id. The key of a non-negative id is the same as with
    /// [`FeatureKey::from_u64`].
    #[inline(always)]
    pub fn from_i64(id: i64) -> Self {
        Self::from_u64(id as u64)
    }

    /// Returns the key of an unsigned id. The function is the splitmix64 finaliser (Steele, Lea,
    /// Flood 2014), which is a bijection.
    #[inline(always)]
    pub fn from_u64(id: u64) -> Self {
        Self(mix64(id))
    }

    /// Returns the key of a string, which is a hash of its UTF-8 bytes.
    #[inline]
    pub fn from_text(text: &str) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
    }

    /// Returns the key that stands for a missing value of a feature. `feature` is the name of the
    /// feature.
    pub fn missing(feature: &str) -> Self {
        let mut bytes = MISSING_TAG.to_vec();
        bytes.extend_from_slice(feature.as_bytes());
        Self(xxhash_rust::xxh3::xxh3_64(&bytes))
    }

    /// Returns the integer id of this key: the inverse of [`FeatureKey::from_u64`].
    pub fn unmix(self) -> u64 {
        let z = self.0;
        let z = z ^ (z >> 31) ^ (z >> 62);
        let z = z.wrapping_mul(0x3196_42b2_d24d_8ec3);
        let z = z ^ (z >> 27) ^ (z >> 54);
        let z = z.wrapping_mul(0x96de_1b17_3f11_9089);
        let z = z ^ (z >> 30) ^ (z >> 60);
        z.wrapping_sub(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the virtual slot of the key, from 0 to `SLOTS - 1`.
    #[inline(always)]
    pub fn slot(self) -> usize {
        (self.0 >> (64 - SLOT_BITS)) as usize
    }
}

/// A builder of hashers for the maps and sets of the standard library. It does not mix keys again.
pub type MixedHasher = BuildHasherDefault<KeyHasher>;

/// The hasher of [`MixedHasher`], which returns the bits of a key unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        // A `FeatureKey` never calls this function, because its hash is one `u64`.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}

/// The position of a table in [`Schema::tables`](crate::Schema).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableId(pub u16);

impl TableId {
    /// Returns the position as an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The number of a training step, counted from 1. Step 0 means that training has not started.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Step(pub u64);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_vectors_pin_the_hashing_rules() {
        assert_eq!(FeatureKey::from_u64(0).0, 0xe220_a839_7b1d_cdaf);
        assert_eq!(FeatureKey::from_u64(1).0, 0x910a_2dec_8902_5cc1);
        assert_eq!(FeatureKey::from_i64(-1).0, 0xe4d9_7177_1b65_2c20);
        assert_eq!(FeatureKey::from_text("").0, 0x2d06_8005_38d3_94c2);
        assert_eq!(FeatureKey::from_text("a").0, 0xe6c6_32b6_1e96_4e1f);
        assert_eq!(FeatureKey::missing("user"), FeatureKey::from_text("zillion:missing:user"));
    }

    proptest! {
        #[test]
        fn unmixing_recovers_the_id(id in any::<u64>()) {
            prop_assert_eq!(FeatureKey::from_u64(id).unmix(), id);
            prop_assert!(FeatureKey::from_u64(id).slot() < SLOTS);
        }
    }
}
