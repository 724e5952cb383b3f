//! The functions of a table that add rows to the free list and take them from it.

use crate::eviction::schedule::is_loose;
use crate::free_list::AHEAD;
use crate::table::Table;

impl Table {
    /// Returns whether rows that are evicted for the limit go to the free list. Tables with narrow
    /// rows have more slabs and do not use the list. Tables that spill have no limit.
    pub(crate) fn keeps_free_rows(&self) -> bool {
        debug_assert!(self.spill.is_none(), "a table that spills evicts nothing");
        self.narrow.is_none()
    }

    /// Returns whether memory is allocated for the free list.
    pub(crate) fn has_free_list(&self) -> bool {
        self.free_list.rows.capacity() > 0
    }

    /// Takes the row that was added last from the free list, or returns `None` if the list is
    /// empty. The row still has its old contents.
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        let row = self.free_list.rows.pop()?;
        // The rows are spread over memory, and the caller writes to a row at once.
        if let Some(at) = self.free_list.rows.len().checked_sub(AHEAD) {
            let soon = self.free_list.rows[at];
            self.slabs.prefetch_mut(soon);
        }
        Some(row)
    }

    /// Frees rows of the list in the slabs. First frees the oldest rows of the list until `most`
    /// rows are left. Then frees the rows with a higher number than the table needs, because they
    /// would keep their chunks in memory.
    pub(crate) fn trim_free_list(&mut self, most: usize) {
        let more = self.free_list.rows.len().saturating_sub(most);
        let needed = self.rows() + most.min(self.free_list.rows.len()) as u64;
        let Self { free_list, slabs, .. } = self;
        let mut at = 0;
        free_list.rows.retain(|&row| {
            let stays = at >= more && !is_loose(row, needed);
            at += 1;
            if !stays {
                slabs.free(row);
            }
            stays
        });
        free_list.rows.shrink_to(2 * most);
    }
}
