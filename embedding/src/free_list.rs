//! Rows that nobody has and whose places the slabs keep, for the keys that come next.
//!
//! A table at its limit takes rows out at the end of each step and makes about as many in the next.
//! Handing them back to the slabs and out again clears and searches two maps of bits a row; kept
//! here, the last that went is the first that is made again. To the limit they are free, in the
//! accounts they are slack.
//!
//! # Invariants
//! * A step that takes no row out for the limit hands all of them back, and one that does keeps no
//!   more than twice what it took.
//! * None is kept whose number lies beyond what the table needs: chunks empty as they do without
//!   this.

mod table;

/// Rows that are asked for before they are handed out.
pub(crate) const AHEAD: usize = 8;

/// Numbers of full rows that are live in both slabs and that no key leads to; the last is handed
/// out first.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    pub(crate) rows: Vec<u32>,
}

impl FreeList {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of this list.
    pub(crate) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<u32>()
    }
}
