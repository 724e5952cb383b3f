//! What a sub-index is made of: cache lines that hold a few keys each.

/// One cache line of keys and what they lead to.
///
/// # The implementer must
/// * be 64 bytes, aligned to 64, so that a look costs one line;
/// * compare the low 52 bits of a key and nothing else: the slot, whose number is the top of all its keys,
///   knows the others;
/// * count how many keys passed a line because it was full, as exactly as it can: a count that has no room
///   for more stays where it is, and the line is then probed past until its slot is rebuilt.
pub(crate) trait Line: Copy {
    /// A line without keys.
    const EMPTY: Self;
    /// Keys that fit.
    const KEYS: usize;
    /// A slot is rebuilt before more than this part of its entries is used.
    const FULLEST: (usize, usize);

    /// The entry that holds `key`.
    fn find(&self, key: u64) -> Option<usize>;

    fn row(&self, entry: usize) -> u32;

    fn row_mut(&mut self, entry: usize) -> &mut u32;

    /// Puts a word whose low bits are a key into a free entry; false where there is none.
    fn put(&mut self, word: u64, row: u32) -> bool;

    /// Frees an entry; returns its row.
    fn take(&mut self, entry: usize) -> u32;

    /// Whether a probe must go on to the next line.
    fn is_passed(&self) -> bool;

    /// Counts a key that found the line full.
    fn pass(&mut self);

    /// Undoes one [`Line::pass`].
    fn unpass(&mut self);

    /// Words and rows, as they were put.
    fn entries(&self) -> impl Iterator<Item = (u64, u32)>;
}
