//! The implementation of [`TableAccess`] for local tables.

use zillion_embedding::{Adopted, Pruned, TableStatistics};
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};
use zillion_rows::layer::WholeRow;
use zillion_rows::{LookupReport, TableLayout};

use super::LocalClient;
use crate::client::TableAccess;
use crate::error::Result;

#[cfg(feature = "server")]
impl LocalClient {
    /// Returns the number of keys of a vocabulary that a dense table does not have.
    pub(crate) fn count_new(&self, table: TableId, keys: &[FeatureKey]) -> Result<u64> {
        self.check_settled("prefill")?;
        Ok(self.tables.count_unknown(table, keys)?)
    }
}

impl TableAccess for LocalClient {
    fn layouts(&self) -> &[TableLayout] {
        self.tables.layouts()
    }

    fn lookup(
        &mut self,
        plan: &LookupPlan,
        mut buffer: RowBuffer,
    ) -> Result<(RowBuffer, LookupReport)> {
        self.check_settled("lookup")?;
        self.settle()?;
        let report = self.tables.lookup(&self.workers, plan, &mut buffer)?;
        Ok((buffer, report))
    }

    fn prefill(&mut self, table: TableId, keys: &[FeatureKey]) -> Result<u64> {
        self.check_settled("prefill")?;
        self.take_back()?;
        Ok(self.tables.prefill(&self.workers, table, keys)?)
    }

    fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted> {
        self.check_settled("adopt")?;
        self.take_back()?;
        let adopted = self.tables.adopt(table, from, rows);
        self.note_failure(adopted)
    }

    fn prune(&mut self, table: TableId, share: f64) -> Result<Pruned> {
        self.check_settled("prune")?;
        self.take_back()?;
        Ok(self.tables.prune(&self.workers, table, share)?)
    }

    fn stats(&mut self) -> Result<Vec<TableStatistics>> {
        self.count_steps()?;
        Ok(self.tables.statistics())
    }
}
