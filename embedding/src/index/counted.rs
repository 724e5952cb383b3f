//! The line format for candidates: five keys, a small number for each key, and the word that each
//! key leads to, in one cache line.
//!
//! The top bits of a key are the number of its slot, so they need not be stored. This format uses
//! them for other data: the number of times that a candidate has been seen. Words 0 to 9 are the
//! five keys with these numbers in their top bits, the low half of each key first. Words 10 to 14
//! are the words that the keys lead to. The last word says which entries are in use and how many
//! keys passed the line.

use zillion_device::lines::CacheLine;
use zillion_feature::SLOTS;

use crate::index::line::Line;

const KEYS: usize = 5;
/// The number of top bits of a stored key that hold other data.
const TAG: u32 = SLOTS.trailing_zeros();

/// The line format of five keys, each with a tag and a 32-bit word. A stored key has its tag in the
/// top bits and the low bits of the key below.
#[derive(Debug)]
pub(crate) enum Counted {}

impl Line for Counted {
    const KEYS: usize = KEYS;
    /// The share of entries in use at which a slot grows: nine tenths. With this share, a search
    /// for a key of the slot reads 1.2 lines on average (Knuth, TAOCP 3, 6.4, buckets of five).
    /// There are many candidates, so memory matters more than for rows.
    const FULLEST: (usize, usize) = (9, 10);
    const ROWS: usize = 2 * KEYS;
    const USED: u32 = 0;
    const PASSED: u32 = 8;

    #[inline(always)]
    fn find(line: &CacheLine, key: u64) -> Option<usize> {
        let mut hits = 0;
        for entry in 0..KEYS {
            hits |= u32::from((Self::word(line, entry) ^ key) << TAG == 0) << entry;
        }
        hits &= Self::used(line);
        (hits != 0).then(|| hits.trailing_zeros() as usize)
    }

    #[inline(always)]
    fn word(line: &CacheLine, entry: usize) -> u64 {
        u64::from(line.0[2 * entry + 1]) << 32 | u64::from(line.0[2 * entry])
    }

    #[inline(always)]
    fn set(line: &mut CacheLine, entry: usize, word: u64, row: u32) {
        line.0[2 * entry] = word as u32;
        line.0[2 * entry + 1] = (word >> 32) as u32;
        line.0[Self::ROWS + entry] = row;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_legal_and_tags_are_no_part_of_one() {
        let mut line = CacheLine::ZERO;
        assert_eq!(Counted::find(&line, 0), None);
        assert!(Counted::put(&mut line, 7 << 52, 9));
        assert!(Counted::put(&mut line, u64::MAX, 8));
        assert_eq!(Counted::find(&line, 0).map(|e| Counted::row(&line, e)), Some(9));
        assert_eq!(Counted::find(&line, u64::MAX >> 12), Some(1));
        assert_eq!(Counted::take(&mut line, 0), 9);
        assert_eq!(Counted::find(&line, 0), None);
        assert_eq!(Counted::entries(&line).collect::<Vec<_>>(), [(u64::MAX, 8)]);
        Counted::set(&mut line, 1, u64::MAX >> 1, 5);
        assert_eq!((Counted::word(&line, 1), Counted::row(&line, 1)), (u64::MAX >> 1, 5));
        assert!(
            (2..6).all(|key| Counted::put(&mut line, key, 0)) && !Counted::put(&mut line, 9, 0)
        );
    }
}
