//! Keeping and handing out the free rows of a table.

use crate::eviction::schedule::is_loose;
use crate::free_list::AHEAD;
use crate::table::Table;

impl Table {
    /// Whether rows that go for the limit stay here. Rows of two widths have slabs of their own,
    /// and tables that spill have no limit.
    pub(crate) fn keeps_free_rows(&self) -> bool {
        debug_assert!(self.spill.is_none(), "a table that spills evicts nothing");
        self.narrow.is_none()
    }

    /// Whether there are any, or a list that had some.
    pub(crate) fn has_free_list(&self) -> bool {
        self.free_list.rows.capacity() > 0
    }

    /// Keeps the place of a row that no key leads to any more.
    pub(crate) fn keep_free(&mut self, row: u32) {
        self.free_list.rows.push(row);
    }

    /// A row that was vacated, the last one, as it was left.
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        let row = self.free_list.rows.pop()?;
        // They lie here and there, and who makes a row writes to it at once.
        if let Some(at) = self.free_list.rows.len().checked_sub(AHEAD) {
            let soon = self.free_list.rows[at];
            self.weights.prefetch_mut(soon);
            self.companion.prefetch_mut(soon);
        }
        Some(row)
    }

    /// Hands rows back to the slabs: those that went first, until `most` are left, and those whose
    /// number lies beyond what the table needs, which would keep their chunks from going.
    pub(crate) fn trim_free_list(&mut self, most: usize) {
        let more = self.free_list.rows.len().saturating_sub(most);
        let needed = self.rows() + most.min(self.free_list.rows.len()) as u64;
        let Self { free_list, weights, companion, .. } = self;
        let mut at = 0;
        free_list.rows.retain(|&row| {
            let stays = at >= more && !is_loose(row, needed);
            at += 1;
            if !stays {
                weights.free(row);
                companion.free(row);
            }
            stays
        });
        free_list.rows.shrink_to(2 * most);
    }
}
