//! The interface of the line formats. A line is a cache line that holds a few keys of a slot.

use zillion_device::lines::CacheLine;

/// The index of the last word of a line. In every format, this word marks the entries in use and
/// counts passing keys.
pub(super) const META: usize = 15;

/// The format of a cache line that holds keys and the words that they lead to. A line of zeros
/// holds no key.
///
/// # The implementer must
/// * compare only the low 52 bits of a key. The other bits are the slot's number, which all keys of
///   a slot share;
/// * leave the bits of the last word from [`Line::PASSED`] on to this trait. They count the keys
///   that passed the line because it was full. A count that has reached its largest value does not
///   change any more. Searches then always continue after this line, until its slot is rebuilt.
pub(crate) trait Line {
    /// The number of keys that fit into a line.
    const KEYS: usize;
    /// The largest share of a slot's entries that may be in use, as a fraction. A slot grows before
    /// the share is exceeded.
    const FULLEST: (usize, usize);
    /// The index in a line of the first word that a key leads to.
    const ROWS: usize;
    /// The position in the last word of the lowest bit that marks an entry in use.
    const USED: u32;
    /// The position in the last word of the lowest bit of the count of passing keys. The count
    /// takes all higher bits.
    const PASSED: u32;

    /// Returns the index of the entry that holds `key`, or `None` if the line does not have the
    /// key.
    fn find(line: &CacheLine, key: u64) -> Option<usize>;

    /// Returns the word of an entry. The low bits of the word are the low bits of the key.
    fn word(line: &CacheLine, entry: usize) -> u64;

    /// Writes the word and the row of an entry.
    fn set(line: &mut CacheLine, entry: usize, word: u64, row: u32);

    /// Returns a mask in which bit `i` is set if entry `i` is in use.
    #[inline(always)]
    fn used(line: &CacheLine) -> u32 {
        line.0[META] >> Self::USED & ((1 << Self::KEYS) - 1)
    }

    #[inline(always)]
    fn row(line: &CacheLine, entry: usize) -> u32 {
        line.0[Self::ROWS + entry]
    }

    fn row_mut(line: &mut CacheLine, entry: usize) -> &mut u32 {
        &mut line.0[Self::ROWS + entry]
    }

    /// Writes a word and its row into a free entry. The low bits of the word are the low bits of
    /// the key. Returns `false` if no entry is free.
    #[inline(always)]
    fn put(line: &mut CacheLine, word: u64, row: u32) -> bool {
        let entry = Self::used(line).trailing_ones();
        if entry as usize == Self::KEYS {
            return false;
        }
        Self::set(line, entry as usize, word, row);
        line.0[META] |= 1 << (Self::USED + entry);
        true
    }

    /// Frees an entry and returns its row.
    fn take(line: &mut CacheLine, entry: usize) -> u32 {
        line.0[META] &= !(1 << (Self::USED + entry as u32));
        Self::row(line, entry)
    }

    /// Returns whether a search must continue in the next line.
    #[inline(always)]
    fn is_passed(line: &CacheLine) -> bool {
        line.0[META] >> Self::PASSED != 0
    }

    /// Counts a key that found the line full.
    #[inline(always)]
    fn pass(line: &mut CacheLine) {
        if line.0[META] >> Self::PASSED < u32::MAX >> Self::PASSED {
            line.0[META] += 1 << Self::PASSED;
        }
    }

    /// Undoes one call of [`Line::pass`].
    fn unpass(line: &mut CacheLine) {
        if line.0[META] >> Self::PASSED < u32::MAX >> Self::PASSED {
            line.0[META] -= 1 << Self::PASSED;
        }
    }

    /// Returns the word and the row of each entry in use, as they were written.
    fn entries(line: &CacheLine) -> impl Iterator<Item = (u64, u32)> {
        (0..Self::KEYS)
            .filter(|entry| Self::used(line) >> entry & 1 != 0)
            .map(|entry| (Self::word(line, entry), Self::row(line, entry)))
    }
}
