//! The free list of a table: rows without a key that the slabs keep for the next new keys.
//!
//! A table at its limit evicts rows at the end of each step and makes about as many in the next.
//! Giving the rows back to the slabs and taking them again would clear and search two bitmaps for
//! each row. With this list, the row that was evicted last is the first that is used again. For the
//! limit these rows count as free; in the report of memory they are slack.
//!
//! # Invariants
//! * A step that evicts no row for the limit gives all rows of the list back to the slabs; a step
//!   that evicts some keeps at most twice that number.
//! * The list keeps no row whose number is higher than the table needs, so chunks become empty as
//!   they do without the list.

mod table;

/// The number of rows by which a prefetch runs ahead of the row that is handed out.
pub(crate) const AHEAD: usize = 8;

/// A list of the numbers of free rows: full rows that are live in both slabs and belong to no key.
/// The last row of the list is handed out first.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    pub(crate) rows: Vec<u32>,
}

impl FreeList {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the bytes that the list takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<u32>()
    }
}
