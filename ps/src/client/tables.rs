//! Access to tables outside of a step.

use zillion_embedding::{Adopted, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};
use zillion_rows::layer::WholeRow;
use zillion_rows::{LookupReport, TableLayout};

use crate::error::Result;
use crate::pending::Pending;

/// Access to tables outside of a step: their layouts, their rows as evaluation reads them, their
/// contents before the first step, and their statistics.
pub trait TableAccess: Send {
    /// Returns the layouts of the tables' rows. A plan's table ids are positions in this list.
    fn layouts(&self) -> &[TableLayout];

    /// Reads rows as evaluation does: an unknown key reads as its table declares, and nothing is
    /// counted as training.
    ///
    /// # Errors
    /// While gradients wait to be applied, or for a plan that is not for these tables.
    fn lookup(
        &mut self,
        plan: &LookupPlan,
        buffer: RowBuffer,
    ) -> Result<Pending<(RowBuffer, LookupReport)>>;

    /// Fills a dense table with its vocabulary, sorted by key and without duplicates, and returns
    /// the number of rows that were added. Existing rows stay as they are.
    ///
    /// # Errors
    /// While gradients wait to be applied; for a dynamic table; for more rows than the table may
    /// have.
    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64>;

    /// Copies the rows of a version's table as the beginning of a new training: weights and counts,
    /// with segments matched by name. Optimizers begin anew. Rows come in key order, with their
    /// layout in the version. A table with a fixed vocabulary takes only the keys that it has.
    ///
    /// # Errors
    /// While gradients wait to be applied; for segments of other lengths; for more rows than the
    /// table may have.
    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted>;

    /// Returns the contents and counters of each table.
    ///
    /// # Errors
    /// Where a server cannot be reached.
    fn stats(&mut self) -> Result<Vec<TableStatistics>>;
}
