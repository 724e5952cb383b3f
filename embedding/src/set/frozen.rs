//! Tables that training leaves as they are: their rows are read, and no step moves, makes or evicts
//! one.
//!
//! # Invariants
//! A frozen table has no part in a step: no gradient is applied or counted for it, none of its keys
//! is counted, no whole-table rule and no regulariser runs, no row goes. Its bytes in a checkpoint
//! stay what they are.

use zillion_feature::TableId;

use crate::error::Result;
use crate::set::TableSet;

impl TableSet {
    /// Leaves these tables as they are from now on, and no others.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) for a table that is not there.
    pub fn freeze(&mut self, tables: &[TableId]) -> Result<()> {
        for &table in tables {
            self.shape(table)?;
        }
        for (index, frozen) in self.frozen.iter_mut().enumerate() {
            *frozen = tables.iter().any(|table| table.index() == index);
        }
        Ok(())
    }

    /// Returns, for each table, whether a step ends with a sweep of its rows.
    pub(crate) fn moving_swept(&self) -> Vec<bool> {
        let tables = self.swept.iter().zip(&self.frozen);
        tables.map(|(&swept, &frozen)| swept && !frozen).collect()
    }
}
