//! The part of the contract for access to tables outside of a step.

use zillion_embedding::{Adopted, Pruned, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};
use zillion_rows::layer::WholeRow;
use zillion_rows::{LookupReport, TableLayout};

use crate::error::Result;

/// The part of a client that reads and fills tables outside of a step, and reports their
/// statistics.
pub trait TableAccess: Send {
    /// Returns the layout of the rows of each table. The table ids of a plan are positions in this
    /// list, counted from 0.
    fn layouts(&self) -> &[TableLayout];

    /// Reads the rows of a plan for evaluation. An unknown key reads the values that its table
    /// declares for unknown keys. The call does not change the counters of training.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, or if the plan does not fit the
    /// tables.
    fn lookup(&mut self, plan: &LookupPlan, buffer: RowBuffer)
    -> Result<(RowBuffer, LookupReport)>;

    /// Adds the keys of a vocabulary to a dense table, and returns the number of rows that were
    /// added. `keys` must be in ascending order and without duplicates. Existing rows do not
    /// change.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if the table is dynamic, or if the
    /// table would exceed its largest number of rows.
    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64>;

    /// Copies the rows of a version's table as the initial rows of a new training run. The call
    /// copies the weights, with segments matched by name, and the numbers of pushes. The optimizer
    /// state gets its initial values. `rows` must be in key order and have the layout `from`. A
    /// table with a fixed vocabulary takes only rows of its own keys.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if segments of the same name have
    /// different lengths, or if the table would exceed its largest number of rows.
    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted>;

    /// Sets the weights with the smallest magnitudes of each segment of a table to zero, so that at
    /// least the given share of the segment's weights over all rows is zero. A frozen table does
    /// not change. Returns the counts of weights and of zeros.
    ///
    /// # Errors
    /// Returns an error if staged gradients are not applied yet, if the share is not in `0..=1`, if
    /// the table has rows on disk, narrow rows, or weights that cannot be zero, or if the tables
    /// are on servers, none of which knows the rows of the others.
    fn prune(&mut self, table: TableId, share: f64) -> Result<Pruned>;

    /// Returns the sizes and the event counters of each table.
    ///
    /// # Errors
    /// Returns an error if a server cannot be reached.
    fn stats(&mut self) -> Result<Vec<TableStatistics>>;
}
