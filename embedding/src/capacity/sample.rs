//! The sample of keys that are followed where not all can be: those whose bits are small.
//!
//! Sampling by a hash of the key, and not by draws, keeps or drops every occurrence of a key, so
//! that reuse is seen as it is (SHARDS: Waldspurger, Park, Garthwaite, Ahmad, *Efficient MRC
//! Construction with SHARDS*, FAST 2015). Keys are mixed already; the bits that are read here are
//! neither those of the slot nor those that a hash map of keys uses.

use zillion_feature::FeatureKey;

/// Levels that keys have: as many halvings of the sample as there can be.
pub(super) const LEVELS: usize = 25;
/// The bits that are read, and where they begin.
const BITS: u32 = LEVELS as u32 - 1;
const SHIFT: u32 = 24;

/// Returns the number of halvings of the sample that a key survives: half of all keys none, a
/// quarter one, and so on.
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
