//! The sample of the keys that are followed if there are too many keys to follow all. A key is in
//! the sample if certain bits of the key are small.
//!
//! The bits of the key decide, and not a random draw. So either every occurrence of a key is in the
//! sample or no occurrence is, and the reuse of a key is measured correctly (SHARDS: Waldspurger,
//! Park, Garthwaite, Ahmad, *Efficient MRC Construction with SHARDS*, FAST 2015). Keys are already
//! mixed. The bits that this module reads differ from the bits of the slot and from the bits that a
//! hash map of keys uses.

use zillion_feature::FeatureKey;

/// The number of levels, which is one more than the number of times that the sample can be halved.
pub(super) const LEVELS: usize = 25;
/// The number of bits of a key that determine its level.
const BITS: u32 = LEVELS as u32 - 1;
/// The position of the lowest of these bits in a key.
const SHIFT: u32 = 24;

/// Returns the level of a key: the number of times that the sample can be halved before the key is
/// dropped. Half of all keys have level 0, a quarter have level 1, and so on.
#[inline]
pub(super) fn level(key: FeatureKey) -> usize {
    let bits = (key.0 >> SHIFT) as u32 & ((1 << BITS) - 1);
    (bits.leading_zeros() - (u32::BITS - BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_half_the_keys_of_the_one_below() {
        let mut keys = [0u64; LEVELS];
        let texts = (0..50_000).map(|i| FeatureKey::from_text(&format!("user {i}")));
        for key in (0..50_000).map(FeatureKey::from_u64).chain(texts) {
            keys[level(key)] += 1;
        }
        let mut left = 100_000.0f64;
        for (level, &found) in keys.iter().enumerate().take(8) {
            let expected = left / 2.0;
            let spread = 5.0 * (left / 4.0).sqrt();
            assert!((found as f64 - expected).abs() < spread, "level {level}: {found}");
            left = expected;
        }
        assert_eq!(level(FeatureKey(0)), LEVELS - 1);
        assert_eq!(level(FeatureKey(u64::MAX)), 0);
    }
}
