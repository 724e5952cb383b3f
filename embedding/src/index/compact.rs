//! Six keys and their rows in one cache line.
//!
//! A key costs ten and a half bytes: the 52 bits below its slot and the number of its row. Six instead of
//! five to a line is what lets a slot stay a fifth empty at the same bytes a key, so that nine keys in ten
//! are found in the line where they are looked for first.

use zillion_device::simd::equal_lanes;

use super::line::Line;

const KEYS: usize = 6;
/// Where in `meta` the bits begin that say which entries are in use.
const USED: u32 = 24;
const ALL_USED: u32 = ((1 << KEYS) - 1) << USED;
/// Where in `meta` the count of keys that went past begins, and the largest that it has room for.
const PASSED: u32 = 30;
const MOST_PASSED: u32 = 3;
/// Bits of a key that lie in `meta`.
const TOP_BITS: u32 = 4;

/// Six keys of 52 bits, cut in three, and their rows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct CompactLine {
    /// Bits 0 to 31 of each key, then the rows.
    words: [u32; 2 * KEYS],
    /// Bits 32 to 47 of each key.
    middle: [u16; KEYS],
    /// From the lowest bit: bits 48 to 51 of each key; which entries are in use; keys that went past.
    meta: u32,
}

impl CompactLine {
    /// Bits 32 to 51 of an entry's key.
    #[inline(always)]
    fn high(&self, entry: usize) -> u32 {
        let top = self.meta >> (TOP_BITS as usize * entry) & ((1 << TOP_BITS) - 1);
        top << u16::BITS | u32::from(self.middle[entry])
    }

    #[inline(always)]
    fn used(&self) -> u32 {
        (self.meta & ALL_USED) >> USED
    }

    #[inline(always)]
    fn passed(&self) -> u32 {
        self.meta >> PASSED
    }
}

/// Bits 32 to 51 of a key.
#[inline(always)]
fn high_of(key: u64) -> u32 {
    (key >> 32) as u32 & ((1 << (u16::BITS + TOP_BITS)) - 1)
}

impl Line for CompactLine {
    const EMPTY: Self = Self { words: [0; 2 * KEYS], middle: [0; KEYS], meta: 0 };
    const KEYS: usize = KEYS;
    /// At eight tenths, the worst moment before a slot grows, one key in eight is not at home; over a whole
    /// step of growth it is one in twelve.
    const FULLEST: (usize, usize) = (8, 10);

    #[inline(always)]
    fn find(&self, key: u64) -> Option<usize> {
        let lanes = self.words.first_chunk().expect("twelve words are more than eight");
        // The last two lanes are rows, which no entry in use stands for.
        let mut hits = equal_lanes(lanes, key as u32) & self.used();
        let high = high_of(key);
        while hits != 0 {
            let entry = hits.trailing_zeros() as usize;
            if self.high(entry) == high {
                return Some(entry);
            }
            hits &= hits - 1;
        }
        None
    }

    #[inline(always)]
    fn row(&self, entry: usize) -> u32 {
        self.words[KEYS + entry]
    }

    fn row_mut(&mut self, entry: usize) -> &mut u32 {
        &mut self.words[KEYS + entry]
    }

    #[inline(always)]
    fn put(&mut self, word: u64, row: u32) -> bool {
        let used = self.used();
        let entry = used.trailing_ones() as usize;
        if entry == KEYS {
            return false;
        }
        let high = high_of(word);
        self.words[entry] = word as u32;
        self.words[KEYS + entry] = row;
        self.middle[entry] = high as u16;
        let shift = TOP_BITS as usize * entry;
        self.meta &= !(((1 << TOP_BITS) - 1) << shift);
        self.meta |= high >> u16::BITS << shift | 1 << (USED as usize + entry);
        true
    }

    fn take(&mut self, entry: usize) -> u32 {
        self.meta &= !(1 << (USED as usize + entry));
        self.row(entry)
    }

    #[inline(always)]
    fn is_passed(&self) -> bool {
        self.passed() != 0
    }

    #[inline(always)]
    fn pass(&mut self) {
        if self.passed() < MOST_PASSED {
            self.meta += 1 << PASSED;
        }
    }

    fn unpass(&mut self) {
        if self.passed() < MOST_PASSED {
            self.meta -= 1 << PASSED;
        }
    }

    fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        (0..KEYS).filter(|entry| self.used() >> entry & 1 != 0).map(|entry| {
            let key = u64::from(self.high(entry)) << 32 | u64::from(self.words[entry]);
            (key, self.row(entry))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_cache_line() {
        assert_eq!(size_of::<CompactLine>(), 64);
        assert_eq!(align_of::<CompactLine>(), 64);
    }

    #[test]
    fn every_key_is_legal_and_an_empty_line_holds_none() {
        const LOW: u64 = (1 << 52) - 1;
        let mut line = CompactLine::EMPTY;
        assert_eq!(line.find(0), None);
        let keys = [0, u64::MAX, 1 << 51, 1 << 48, 1 << 47, 1 << 31];
        for (row, key) in (10..).zip(keys) {
            assert_eq!(line.find(key), None);
            assert!(line.put(key, row));
        }
        assert!(!line.put(5, 5), "it is full");
        for (row, key) in (10..).zip(keys) {
            assert_eq!(line.find(key).map(|e| line.row(e)), Some(row));
        }
        let stored: Vec<_> = keys.iter().map(|key| key & LOW).zip(10..).collect();
        assert_eq!(line.entries().collect::<Vec<_>>(), stored);
        assert_eq!(line.take(1), 11);
        assert_eq!(line.find(u64::MAX), None);
        assert!(line.put(LOW - 1, 3) && line.find(LOW).is_none());
        assert_eq!(line.find(LOW - 1), Some(1));
    }

    #[test]
    fn keys_that_went_past_are_counted_as_far_as_there_is_room() {
        let mut line = CompactLine::EMPTY;
        line.put(u64::MAX, u32::MAX);
        line.pass();
        line.pass();
        line.unpass();
        assert!(line.is_passed());
        line.unpass();
        assert!(!line.is_passed());
        (0..5).for_each(|_| line.pass());
        (0..9).for_each(|_| line.unpass());
        assert!(line.is_passed(), "how many it was is not known any more");
        assert_eq!(line.entries().collect::<Vec<_>>(), [((1 << 52) - 1, u32::MAX)]);
    }
}
