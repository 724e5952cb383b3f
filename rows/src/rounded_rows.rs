//! A source whose rows are rounded as published versions have them.

use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId};

use crate::error::Result;
use crate::layout::TableLayout;
use crate::source::{LookupReport, RowSource};

/// The rows of another source, rounded as a version publishes them.
pub struct RoundedRows<'a> {
    inner: &'a mut dyn RowSource,
    /// The layouts of the tables, whose types say how rows are rounded.
    layouts: Vec<TableLayout>,
}

impl<'a> RoundedRows<'a> {
    /// Creates a source of the rows of `inner`. `layouts` are those of the published tables.
    pub fn new(inner: &'a mut dyn RowSource, layouts: Vec<TableLayout>) -> Self {
        Self { inner, layouts }
    }
}

impl RowSource for RoundedRows<'_> {
    fn tables(&self) -> &[TableLayout] {
        &self.layouts
    }

    fn lookup(&mut self, plan: &LookupPlan, rows: &mut RowBuffer) -> Result<LookupReport> {
        let report = self.inner.lookup(plan, rows)?;
        for (table, rows) in plan.tables.iter().zip(&mut rows.tables) {
            let Some(layout) = self.layouts.get(table.table.index()) else { continue };
            if layout.published.is_f32() {
                continue;
            }
            let width = layout.width();
            for row in rows.values.chunks_exact_mut(layout.stride) {
                layout.published.round(layout, &mut row[..width]);
            }
        }
        Ok(report)
    }

    fn has_row(&self, table: TableId, key: FeatureKey) -> Option<bool> {
        self.inner.has_row(table, key)
    }
}
