//! A source of rows for validation, which reads the tables of a training client.

use zillion_embedding::Error as TableError;
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::{LookupReport, RowSource, TableLayout};

use crate::client::TableAccess;

/// A [`RowSource`] that reads the tables of a training client as evaluation does. Reading never
/// inserts a row.
pub struct PulledRows<'a> {
    client: &'a mut dyn TableAccess,
}

impl<'a> PulledRows<'a> {
    /// Creates a source from a client that is between two steps.
    pub fn new(client: &'a mut dyn TableAccess) -> Self {
        Self { client }
    }
}

impl RowSource for PulledRows<'_> {
    fn tables(&self) -> &[TableLayout] {
        self.client.layouts()
    }

    fn lookup(
        &mut self,
        plan: &LookupPlan,
        rows: &mut RowBuffer,
    ) -> zillion_embedding::Result<LookupReport> {
        let buffer = std::mem::take(rows);
        let answer = self.client.lookup(plan, buffer);
        let (buffer, report) = answer.map_err(|e| match e {
            crate::Error::Tables(e) => e,
            other => TableError::Source(Box::new(other)),
        })?;
        *rows = buffer;
        Ok(report)
    }
}
