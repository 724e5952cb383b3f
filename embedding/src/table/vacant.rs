//! Rows that nobody has and whose places the slabs keep, for the keys that come next.
//!
//! A table at its limit takes rows out at the end of each step and makes about as many in the next. Handing them back to the
//! slabs and out again clears and searches two maps of bits a row; kept here, the last that went is the first that
//! is made again. To the limit they are free, in the accounts they are slack.
//!
//! # Invariants
//! * A step that takes no row out for the limit hands all of them back, and one that does keeps no more than twice what it
//!   took.
//! * None is kept whose number lies beyond what the table needs: chunks empty as they do without this.

use super::Table;
use super::evict::is_loose;

/// Rows that are asked for before they are handed out.
const AHEAD: usize = 8;

/// Numbers of full rows that are live in both slabs and that no key leads to; the last is handed out first.
#[derive(Debug, Default)]
pub(super) struct Vacant {
    rows: Vec<u32>,
}

impl Vacant {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of this list.
    pub(super) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<u32>()
    }
}

impl Table {
    /// Whether rows that go for the limit stay here. Rows of two widths have slabs of their own, and tables that spill
    /// have no limit.
    pub(super) fn keeps_vacant(&self) -> bool {
        debug_assert!(self.spill.is_none(), "a table that spills evicts nothing");
        self.narrow.is_none()
    }

    /// Whether there are any, or a list that had some.
    pub(crate) fn has_vacant(&self) -> bool {
        self.vacant.rows.capacity() > 0
    }

    /// Keeps the place of a row that no key leads to any more.
    pub(super) fn vacate(&mut self, row: u32) {
        self.vacant.rows.push(row);
    }

    /// A row that was vacated, the last one, as it was left.
    pub(super) fn take_vacant(&mut self) -> Option<u32> {
        let row = self.vacant.rows.pop()?;
        // They lie here and there, and who makes a row writes to it at once.
        if let Some(at) = self.vacant.rows.len().checked_sub(AHEAD) {
            let soon = self.vacant.rows[at];
            self.weights.prefetch_mut(soon);
            self.companion.prefetch_mut(soon);
        }
        Some(row)
    }

    /// Hands rows back to the slabs: those that went first, until `most` are left, and those whose number lies beyond what the
    /// table needs, which would keep their chunks from going.
    pub(crate) fn keep_vacant(&mut self, most: usize) {
        let more = self.vacant.rows.len().saturating_sub(most);
        let needed = self.rows() + most.min(self.vacant.rows.len()) as u64;
        let Self { vacant, weights, companion, .. } = self;
        let mut at = 0;
        vacant.rows.retain(|&row| {
            let stays = at >= more && !is_loose(row, needed);
            at += 1;
            if !stays {
                weights.free(row);
                companion.free(row);
            }
            stays
        });
        vacant.rows.shrink_to(2 * most);
    }
}
