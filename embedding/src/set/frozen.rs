//! The freezing of tables: the rows of a frozen table are read, and no step changes, creates or
//! evicts them.
//!
//! # Invariants
//! A frozen table has no part in a step: no gradient is applied or counted, no key is counted, no
//! whole-table rule and no regulariser runs, and no row is removed. Its bytes in a checkpoint do
//! not change.

use zillion_feature::TableId;

use crate::error::Result;
use crate::set::TableSet;

impl TableSet {
    /// Freezes exactly these tables from now on.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if a table is unknown.
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
