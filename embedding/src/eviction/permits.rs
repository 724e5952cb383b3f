//! The keys of a step that may get a row in a table at its limit.

use crate::index::Entry;
use std::ops::Range;

/// The permits of a step: the keys that may get a row, and the entries that were found for this
/// decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Permits {
    /// The positions in the plan of the keys that may get a row, in ascending order; `None` if all
    /// keys may.
    pub(crate) positions: Option<Vec<u32>>,
    /// The entry of the key at each position of the plan, or [`Entry::NONE`]; `None` if the keys
    /// have not been looked up. With these entries a push needs no lookup of its own.
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

    /// Returns the entries of the keys at these positions of the plan, if they are known.
    pub(crate) fn rows(&self, positions: Range<usize>) -> Option<&[Entry]> {
        self.rows.as_ref().map(|rows| &rows[positions])
    }
}
