//! Five keys with a small number each, and what they lead to, in one cache line.
//!
//! The bits of a key that its slot knows are free to say something else about it: here, how often a key that
//! waits for its row has been seen.

use zillion_feature::SLOTS;

use super::line::Line;

/// Five of eight bytes with rows of four fill a line of 64 with four bytes to spare.
const KEYS: usize = 5;
/// Bits on top of a word that are no part of the key.
const TAG: u32 = SLOTS.trailing_zeros();

/// Five words, each a tag above the low bits of a key, and a number for each.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct CountedLine {
    keys: [u64; KEYS],
    rows: [u32; KEYS],
    /// Bit `i` is set where entry `i` is in use. Every `u64` is a legal key, so none can say "empty".
    used: u8,
    /// Keys that belong here or before and were put into a later line because this one was full. Stays at
    /// 255 once there.
    passed: u8,
}

const FULL: u8 = (1 << KEYS) - 1;

impl CountedLine {
    /// The word of an entry, tag included.
    pub(super) fn word(&self, entry: usize) -> u64 {
        self.keys[entry]
    }

    /// The word, tag included, and the number of an entry.
    pub(super) fn entry_mut(&mut self, entry: usize) -> (&mut u64, &mut u32) {
        (&mut self.keys[entry], &mut self.rows[entry])
    }
}

impl Line for CountedLine {
    const EMPTY: Self = Self { keys: [0; KEYS], rows: [0; KEYS], used: 0, passed: 0 };
    const KEYS: usize = KEYS;
    /// At nine tenths a hit costs 1.2 lines on average (Knuth, TAOCP 3, 6.4, buckets of five): keys that wait
    /// are many, and small is what they must be.
    const FULLEST: (usize, usize) = (9, 10);

    #[inline(always)]
    fn find(&self, key: u64) -> Option<usize> {
        let mut hits = 0u8;
        for (i, &k) in self.keys.iter().enumerate() {
            hits |= u8::from((k ^ key) << TAG == 0) << i;
        }
        hits &= self.used;
        (hits != 0).then(|| hits.trailing_zeros() as usize)
    }

    #[inline(always)]
    fn row(&self, entry: usize) -> u32 {
        self.rows[entry]
    }

    fn row_mut(&mut self, entry: usize) -> &mut u32 {
        &mut self.rows[entry]
    }

    #[inline(always)]
    fn put(&mut self, word: u64, row: u32) -> bool {
        if self.used == FULL {
            return false;
        }
        let entry = (!self.used).trailing_zeros() as usize;
        self.keys[entry] = word;
        self.rows[entry] = row;
        self.used |= 1 << entry;
        true
    }

    fn take(&mut self, entry: usize) -> u32 {
        self.used &= !(1 << entry);
        self.rows[entry]
    }

    #[inline(always)]
    fn is_passed(&self) -> bool {
        self.passed != 0
    }

    #[inline(always)]
    fn pass(&mut self) {
        self.passed = self.passed.saturating_add(1);
    }

    fn unpass(&mut self) {
        if self.passed != u8::MAX {
            self.passed -= 1;
        }
    }

    fn entries(&self) -> impl Iterator<Item = (u64, u32)> {
        (0..KEYS)
            .filter(|entry| self.used & (1 << entry) != 0)
            .map(|entry| (self.keys[entry], self.rows[entry]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_cache_line() {
        assert_eq!(size_of::<CountedLine>(), 64);
        assert_eq!(align_of::<CountedLine>(), 64);
    }

    #[test]
    fn every_key_is_legal_and_an_empty_line_holds_none() {
        let mut line = CountedLine::EMPTY;
        assert_eq!(line.find(0), None);
        assert!(line.put(0, 9));
        assert!(line.put(u64::MAX, 8));
        assert_eq!(line.find(0).map(|e| line.row(e)), Some(9));
        assert_eq!(line.take(0), 9);
        assert_eq!(line.find(0), None);
        assert_eq!(line.entries().collect::<Vec<_>>(), [(u64::MAX, 8)]);
    }
}
