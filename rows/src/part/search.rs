//! The search for a key among sorted keys by interpolation.

use std::ops::Range;

use zillion_feature::{FeatureKey, SLOTS};

/// Returns the position of `key` among `len` sorted keys of some slots, or `None` if the key is
/// missing. Keys are mixed, so the position that follows from the key itself has an error of about
/// the square root of `len`. For crafted ids the error can be larger. So the steps of the search
/// double, and at most about `3 * log2(len)` keys are read.
#[inline]
pub(super) fn search(
    key: FeatureKey,
    slots: &Range<usize>,
    len: usize,
    at: impl Fn(usize) -> u64,
) -> Option<usize> {
    let guess = position(key, slots, len).min(len);
    let (mut low, mut high) = (guess, guess);
    // The search gallops from the guess to a window that must contain the key.
    let mut step = 8;
    while high < len && at(high) <= key.0 {
        low = high;
        high = (high + step).min(len);
        step *= 2;
    }
    while low > 0 && (low == len || at(low) > key.0) {
        high = (low + 1).min(len);
        low = low.saturating_sub(step);
        step *= 2;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        match at(middle).cmp(&key.0) {
            std::cmp::Ordering::Equal => return Some(middle),
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    None
}

fn position(key: FeatureKey, slots: &Range<usize>, len: usize) -> usize {
    let shift = 64 - SLOTS.trailing_zeros();
    let first = (slots.start as u64) << shift;
    let span = (slots.len() as u128) << shift;
    ((u128::from(key.0.wrapping_sub(first)) * len as u128) / span) as usize
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn keys_far_from_their_guess_are_found_in_few_steps() {
        let slots = 0..SLOTS;
        let crafted: [fn(u64) -> u64; 4] =
            [|i| i, |i| u64::MAX - 2 * i, |i| (7 << 52) | (2 * i), |i| (i & 1) << 63 | i];
        for of in crafted {
            let mut keys: Vec<u64> = (0..1 << 18).map(of).collect();
            keys.sort_unstable();
            let reads = Cell::new(0);
            let at = |position: usize| {
                reads.set(reads.get() + 1);
                keys[position]
            };
            for place in (0..keys.len()).step_by(997) {
                reads.set(0);
                assert_eq!(search(FeatureKey(keys[place]), &slots, keys.len(), at), Some(place));
                assert!(reads.get() <= 3 * 18, "{} reads", reads.get());
            }
        }
    }
}
