//! The keys of a step that may get a row in a table at its limit.

use crate::index::Entry;
use std::ops::Range;

/// The keys of a step that may get a row, and the entries that were found when that was decided.
#[derive(Clone, Debug, Default)]
pub(crate) struct Permits {
    /// Positions in the plan, ascending; `None`: all of them.
    pub(crate) positions: Option<Vec<u32>>,
    /// By position in the plan, the entry of a key or [`Entry::NONE`]; `None` where nobody has
    /// looked. A push need not look again.
    pub(crate) rows: Option<Vec<Entry>>,
}

impl Permits {
    /// Permits for the keys at these positions of the plan, ascending, and no other.
    pub(crate) fn at(positions: Vec<u32>) -> Self {
        Self { positions: Some(positions), rows: None }
    }

    /// Takes down the rows that the plan's keys have.
    pub(crate) fn know(&mut self, rows: Vec<Entry>) {
        self.rows = Some(rows);
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.positions.is_some()
    }

    /// Whether the key at a position of the plan may get a row.
    #[inline(always)]
    pub(crate) fn has(&self, position: usize) -> bool {
        match &self.positions {
            None => true,
            Some(positions) => positions.binary_search(&(position as u32)).is_ok(),
        }
    }

    /// The rows of the keys at these positions of the plan, if they are known.
    pub(crate) fn rows(&self, positions: Range<usize>) -> Option<&[Entry]> {
        self.rows.as_ref().map(|rows| &rows[positions])
    }
}
