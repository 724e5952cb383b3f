//! Rows that nobody has and whose places the slabs keep, for the keys that come next.
//!
//! A table at its limit takes rows out at the end of each step and makes about as many in the next. Were they handed back
//! to the slabs, each would be looked for twice in two maps of bits; kept here, the last that went is the first that
//! is made again. To the limit they are free, in the accounts they are slack.
//!
//! # Invariant
//! A step that takes no row out for the limit hands all of them back, and one that does keeps no more than twice what it
//! took: memory goes back to the system as it does without this.

use super::Table;

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
    /// Whether rows that go for the limit stay here. Rows of two widths and rows that leave memory have other ways.
    pub(super) fn keeps_vacant(&self) -> bool {
        self.narrow.is_none() && self.spill.is_none()
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

    /// Hands rows back to the slabs, those that went first, until `most` are left.
    pub(crate) fn keep_vacant(&mut self, most: usize) {
        let more = self.vacant.rows.len().saturating_sub(most);
        for row in self.vacant.rows.drain(..more) {
            self.weights.free(row);
            self.companion.free(row);
        }
        if most == 0 {
            self.vacant = Vacant::default();
        }
    }
}
