//! The key of an impression: 128 bits that stand for the bytes of a join key.

use xxhash_rust::xxh3::xxh3_128;

/// The odd constants of the finaliser of splitmix64.
const MIX: [u64; 2] = [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB];

/// The xxh3-128 of the bytes of a join key. Two join keys with equal hashes are the same key here:
/// among 10^9 keys that nobody chose for this, the probability of one such pair is about 10^-21.
/// The hash has no secret, so whoever chooses join keys can make such pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) u128);

impl Key {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        // The value 0 marks vacant places of the index.
        Self(xxh3_128(bytes).max(1))
    }

    /// Returns 64 bits that decide about sampling. They are mixed again, so that they do not depend
    /// on the bits that the index uses.
    pub(crate) fn sample_bits(self) -> u64 {
        let mut bits = (self.0 as u64) ^ (self.0 >> 64) as u64;
        bits = (bits ^ (bits >> 30)).wrapping_mul(MIX[0]);
        bits = (bits ^ (bits >> 27)).wrapping_mul(MIX[1]);
        bits ^ (bits >> 31)
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }
}
