//! The line format for rows: six keys and their index entries in one cache line.
//!
//! A key takes ten and a half bytes: the 52 bits of the key below its slot, and the 32 bits of its
//! entry. Six keys per line are better than five, because a slot can then leave a fifth of its
//! entries free in the same memory. With this free space, eleven keys in twelve are found in the
//! line where the search begins.
//!
//! | words | hold |
//! |---|---|
//! | 0 to 5 | bits 0 to 31 of each key |
//! | 6 to 11 | the rows |
//! | 12 to 14 | bits 32 to 47 of each key, two keys to a word |
//! | 15 | from the lowest bit: bits 48 to 51 of each key; entries in use; count of passing keys |

use zillion_device::lines::CacheLine;
use zillion_device::simd::equal_lanes;

use crate::index::line::{Line, META};

const KEYS: usize = 6;
/// The index in a line of the first word that holds middle bits of keys.
const MIDDLE: usize = 2 * KEYS;
/// The number of middle bits of each key.
const MIDDLE_BITS: u32 = 16;
/// The number of bits of each key that the last word holds.
const TOP_BITS: u32 = 4;

/// The line format of six keys of 52 bits.
#[derive(Debug)]
pub(crate) enum Compact {}

/// Returns bits 32 to 51 of an entry's key.
#[inline(always)]
fn high(line: &CacheLine, entry: usize) -> u32 {
    let top = line.0[META] >> (TOP_BITS * entry as u32) & ((1 << TOP_BITS) - 1);
    let middle = line.0[MIDDLE + entry / 2] >> (MIDDLE_BITS * (entry as u32 % 2));
    top << MIDDLE_BITS | middle & ((1 << MIDDLE_BITS) - 1)
}

/// Returns bits 32 to 51 of a key.
#[inline(always)]
fn high_of(key: u64) -> u32 {
    (key >> 32) as u32 & ((1 << (MIDDLE_BITS + TOP_BITS)) - 1)
}

/// Overwrites the `bits` bits of a word that begin at bit `shift`, counted from the lowest bit.
#[inline(always)]
fn set_bits(word: &mut u32, shift: u32, bits: u32, value: u32) {
    let mask = (1 << bits) - 1;
    *word = *word & !(mask << shift) | (value & mask) << shift;
}

impl Line for Compact {
    const KEYS: usize = KEYS;
    /// The share of entries in use at which a slot grows: eight tenths. With this share, one key in
    /// eight is not in its home bucket, which is the worst case. On average over a step of growth,
    /// it is one key in twelve.
    const FULLEST: (usize, usize) = (8, 10);
    const ROWS: usize = KEYS;
    const USED: u32 = 24;
    const PASSED: u32 = 30;

    #[inline(always)]
    fn find(line: &CacheLine, key: u64) -> Option<usize> {
        let lanes = line.0.first_chunk().expect("sixteen words are more than eight");
        // The last two lanes hold row numbers; the mask of entries in use leaves them out.
        let mut hits = equal_lanes(lanes, key as u32) & Self::used(line);
        let wanted = high_of(key);
        while hits != 0 {
            let entry = hits.trailing_zeros() as usize;
            if high(line, entry) == wanted {
                return Some(entry);
            }
            hits &= hits - 1;
        }
        None
    }

    fn word(line: &CacheLine, entry: usize) -> u64 {
        u64::from(high(line, entry)) << 32 | u64::from(line.0[entry])
    }

    #[inline(always)]
    fn set(line: &mut CacheLine, entry: usize, word: u64, row: u32) {
        let (at, high) = (entry as u32, high_of(word));
        line.0[entry] = word as u32;
        line.0[Self::ROWS + entry] = row;
        set_bits(&mut line.0[MIDDLE + entry / 2], MIDDLE_BITS * (at % 2), MIDDLE_BITS, high);
        set_bits(&mut line.0[META], TOP_BITS * at, TOP_BITS, high >> MIDDLE_BITS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_legal_and_an_empty_line_holds_none() {
        const LOW: u64 = (1 << 52) - 1;
        let mut line = CacheLine::ZERO;
        assert_eq!(Compact::find(&line, 0), None);
        let keys = [0, u64::MAX, 1 << 51, 1 << 48, 1 << 47, 1 << 31];
        for (row, key) in (10..).zip(keys) {
            assert_eq!(Compact::find(&line, key), None);
            assert!(Compact::put(&mut line, key, row));
        }
        assert!(!Compact::put(&mut line, 5, 5), "it is full");
        for (row, key) in (10..).zip(keys) {
            assert_eq!(Compact::find(&line, key).map(|e| Compact::row(&line, e)), Some(row));
        }
        let stored: Vec<_> = keys.iter().map(|key| key & LOW).zip(10..).collect();
        assert_eq!(Compact::entries(&line).collect::<Vec<_>>(), stored);
        assert_eq!(Compact::take(&mut line, 1), 11);
        assert_eq!(Compact::find(&line, u64::MAX), None);
        assert!(Compact::put(&mut line, LOW - 1, 3) && Compact::find(&line, LOW).is_none());
        assert_eq!(Compact::find(&line, LOW - 1), Some(1));
    }

    #[test]
    fn keys_that_went_past_are_counted_as_far_as_there_is_room() {
        let mut line = CacheLine::ZERO;
        Compact::put(&mut line, u64::MAX, u32::MAX);
        Compact::pass(&mut line);
        Compact::pass(&mut line);
        Compact::unpass(&mut line);
        assert!(Compact::is_passed(&line));
        Compact::unpass(&mut line);
        assert!(!Compact::is_passed(&line));
        (0..5).for_each(|_| Compact::pass(&mut line));
        (0..9).for_each(|_| Compact::unpass(&mut line));
        assert!(Compact::is_passed(&line), "the count of passing keys is not exact any more");
        assert_eq!(Compact::entries(&line).collect::<Vec<_>>(), [((1 << 52) - 1, u32::MAX)]);
    }
}
