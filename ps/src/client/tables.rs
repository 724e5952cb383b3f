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
    /// The layouts of the tables' rows. A plan's table ids are positions here.
    fn layouts(&self) -> &[TableLayout];

    /// Reads rows as evaluation does: an unknown key reads as its table declares, and nothing is counted
    /// as training.
    ///
    /// # Errors
    /// While gradients wait to be applied, or for a plan that is not for these tables.
    fn lookup(
        &mut self,
        plan: &LookupPlan,
        buffer: RowBuffer,
    ) -> Result<Pending<(RowBuffer, LookupReport)>>;

    /// Fills a dense table with its vocabulary, sorted by key and without duplicates. Keys that are there
    /// stay as they are. Returns the number of rows that were added.
    ///
    /// # Errors
    /// While gradients wait to be applied; for a dynamic table; for more rows than the table may have.
    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64>;

    /// Takes the rows of a version's table over as the beginning of new training: weights and counts, segments
    /// by name; optimizers begin anew. Rows come in key order, with their layout in the version. A table with a
    /// fixed vocabulary takes those that it has.
    ///
    /// # Errors
    /// While gradients wait to be applied; for segments of other lengths; for more rows than the table may have.
    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted>;

    /// What the tables hold and what happened to them.
    ///
    /// # Errors
    /// Where a server cannot be reached.
    fn stats(&mut self) -> Result<Vec<TableStatistics>>;
}
