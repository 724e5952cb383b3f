//! The permits of a step in a table at its limit: the keys that may get a row.

use crate::index::Entry;
use std::ops::Range;

/// The keys of a step that may get a row, and the index entries that the decision has looked up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Permits {
    /// The positions in the plan of the keys that may get a row, in ascending order; `None` if all
    /// keys may get a row.
    pub(crate) positions: Option<Vec<u32>>,
    /// The index entry of the key at each position of the plan, or [`Entry::NONE`] for a key
    /// without a row. The whole list is `None` if the keys have not been looked up. With these
    /// entries a push needs no lookup of its own.
    pub(crate) rows: Option<Vec<Entry>>,
}

impl Permits {
    pub(crate) fn is_limited(&self) -> bool {
        self.positions.is_some()
    }

    /// Returns whether the key at a position of the plan may get a row.
    #[inline(always)]
    pub(crate) fn has(&self, position: usize) -> bool {
        match &self.positions {
            None => true,
            Some(positions) => positions.binary_search(&(position as u32)).is_ok(),
        }
    }

    /// Returns the index entries of the keys at these positions of the plan, or `None` if the keys
    /// have not been looked up.
    pub(crate) fn rows(&self, positions: Range<usize>) -> Option<&[Entry]> {
        self.rows.as_ref().map(|rows| &rows[positions])
    }
}
