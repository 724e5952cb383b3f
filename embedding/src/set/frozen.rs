//! The freezing of tables. The rows of a frozen table are read, but no step changes, creates or
//! evicts them.
//!
//! # Invariants
//! * A frozen table has no part in a step: no gradient is applied or counted, no key is counted, no
//!   whole-table rule and no regulariser is applied, and no row is removed.
//! * The bytes of a frozen table in a checkpoint do not change.

use zillion_feature::TableId;

use crate::error::Result;
use crate::set::TableSet;

impl TableSet {
    /// Freezes these tables, and unfreezes all other tables.
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

    /// Returns whether the table has a whole-table rule and is not frozen, for each table. A step
    /// sweeps the rows of such a table.
    pub(crate) fn moving_swept(&self) -> Vec<bool> {
        let tables = self.swept.iter().zip(&self.frozen);
        tables.map(|(&swept, &frozen)| swept && !frozen).collect()
    }
}
