//! The lines of a sub-index: cache lines that hold a few keys each.

use zillion_device::lines::CacheLine;

/// The format of a cache line that holds keys and the words that they lead to. A line of zeros
/// holds no key.
///
/// # The implementer must
/// * compare the low 52 bits of a key and nothing else: the slot, whose number is the top of all
///   its keys, knows the others;
/// * count how many keys passed a line because it was full, as exactly as the bits allow: a count
///   at its largest number stays there, and the line is then probed past until its slot is rebuilt.
pub(crate) trait Line {
    /// The number of keys that fit into a line.
    const KEYS: usize;
    /// A slot is rebuilt before more than this part of its entries is used.
    const FULLEST: (usize, usize);

    /// The entry that holds `key`.
    fn find(line: &CacheLine, key: u64) -> Option<usize>;

    fn row(line: &CacheLine, entry: usize) -> u32;

    fn row_mut(line: &mut CacheLine, entry: usize) -> &mut u32;

    /// Puts a word whose low bits are a key into a free entry; false where there is none.
    fn put(line: &mut CacheLine, word: u64, row: u32) -> bool;

    /// Frees an entry; returns its row.
    fn take(line: &mut CacheLine, entry: usize) -> u32;

    /// Whether a probe must go on to the next line.
    fn is_passed(line: &CacheLine) -> bool;

    /// Counts a key that found the line full.
    fn pass(line: &mut CacheLine);

    /// Undoes one call of [`Line::pass`].
    fn unpass(line: &mut CacheLine);

    /// Words and rows, as they were put.
    fn entries(line: &CacheLine) -> impl Iterator<Item = (u64, u32)>;
}
