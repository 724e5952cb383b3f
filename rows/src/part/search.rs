//! The search for a key among sorted keys by interpolation.

use std::ops::Range;

use zillion_feature::{FeatureKey, SLOTS};

/// Returns the index of a key among `len` sorted keys, or `None` if the key is not among them. All
/// keys lie in `slots`, and `at` returns the key at an index. Keys are mixed, so the index can be
/// guessed from the key itself with an error of about the square root of `len`.
#[inline]
pub(super) fn search(
    key: FeatureKey,
    slots: &Range<usize>,
    len: usize,
    at: impl Fn(usize) -> u64,
) -> Option<usize> {
    let guess = position(key, slots, len).min(len);
    let (mut low, mut high) = (guess, guess);
    // Gallop from the guess to a window that must hold the key.
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
