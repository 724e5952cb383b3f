//! The free list of a table: rows without a key, which stay allocated in the slabs for the next new
//! keys.
//!
//! A table at its limit evicts rows at the end of each step, and creates about the same number of
//! rows in the next step. Freeing and allocating these rows in the slabs would clear and search two
//! bitmaps for each row. The list avoids this, and hands out the most recently evicted row first.
//! These rows count as free for the limit of the table. In the report of memory they are slack.
//!
//! # Invariants
//! * A step that visits no row of the table for the limit frees all rows of the list in the slabs.
//!   A step that visits some rows of a shard keeps at most twice the number of rows that it evicts.
//! * The list has no row with a higher number than the table needs. So chunks become empty in the
//!   same way as without the list.

mod table;

/// The number of rows between the prefetch of a row and its use.
pub(crate) const AHEAD: usize = 8;

/// A list of the numbers of free rows. They are full rows that are allocated in both slabs and
/// belong to no key. The last row of the list is handed out first.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    pub(crate) rows: Vec<u32>,
}

impl FreeList {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the bytes of memory that the list takes.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<u32>()
    }
}
