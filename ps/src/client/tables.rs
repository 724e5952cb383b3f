//! The part of the contract for access to tables outside of a step.

use zillion_embedding::{Adopted, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};
use zillion_rows::layer::WholeRow;
use zillion_rows::{LookupReport, TableLayout};

use crate::error::Result;

/// The part of a client that reads and fills tables outside of a step, and reports their
/// statistics.
pub trait TableAccess: Send {
    /// Returns the layouts of the tables' rows. The table ids of a plan are positions in this list.
    fn layouts(&self) -> &[TableLayout];

    /// Reads rows for evaluation: an unknown key reads the values that its table declares for
    /// unknown keys, and the counters of training do not change.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, or if the plan does not fit the
    /// tables.
    fn lookup(&mut self, plan: &LookupPlan, buffer: RowBuffer)
    -> Result<(RowBuffer, LookupReport)>;

    /// Fills a dense table with its vocabulary, sorted by key and without duplicates, and returns
    /// the number of rows that were added. Existing rows stay as they are.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if the table is dynamic, or if it
    /// would have more rows than its limit.
    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64>;

    /// Copies the rows of a version's table as the initial rows of a new training: weights and
    /// counts, with segments matched by name. The optimizer state is initial. `rows` are in key
    /// order and have the layout `from`. A table with a fixed vocabulary takes only rows of its own
    /// keys.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if segments have different
    /// lengths, or if the table would have more rows than its limit.
    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted>;

    /// Returns the contents and counters of each table.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached.
    fn stats(&mut self) -> Result<Vec<TableStatistics>>;
}
