//! The line formats of a sub-index: cache lines that hold a few keys each.

use zillion_device::lines::CacheLine;

/// The format of a cache line that holds keys and the words that they lead to. A line of zeros
/// holds no key.
///
/// # The implementer must
/// * compare the low 52 bits of a key and nothing else: the other bits are the slot's number, which
///   all keys of a slot share;
/// * count how many keys passed a line because it was full, as exactly as the bits allow: a count
///   at its largest value stays there, and probes then pass the line until its slot is rebuilt.
pub(crate) trait Line {
    /// The number of keys that fit into a line.
    const KEYS: usize;
    /// The largest part of a slot's entries that may be in use, as a fraction; the slot is rebuilt
    /// before more are used.
    const FULLEST: (usize, usize);

    /// Returns the entry that holds `key`.
    fn find(line: &CacheLine, key: u64) -> Option<usize>;

    fn row(line: &CacheLine, entry: usize) -> u32;

    fn row_mut(line: &mut CacheLine, entry: usize) -> &mut u32;

    /// Writes a word, whose low bits are a key, and its row into a free entry. Returns `false` if
    /// no entry is free.
    fn put(line: &mut CacheLine, word: u64, row: u32) -> bool;

    /// Frees an entry and returns its row.
    fn take(line: &mut CacheLine, entry: usize) -> u32;

    /// Returns whether a probe must go on to the next line.
    fn is_passed(line: &CacheLine) -> bool;

    /// Counts a key that found the line full.
    fn pass(line: &mut CacheLine);

    /// Undoes one call of [`Line::pass`].
    fn unpass(line: &mut CacheLine);

    /// Returns the words and rows of the entries in use, as they were written.
    fn entries(line: &CacheLine) -> impl Iterator<Item = (u64, u32)>;
}
