//! The side tables of a job, in memory.

use std::sync::Arc;

use zillion_feature::{SideColumn, SideIndex, SideTable};

/// The side tables of a schema, with the values of their files. A clone is cheap, because the
/// datasets of one job share the tables.
#[derive(Clone, Debug, Default)]
pub struct SideTables(Arc<Vec<Arc<SideTable>>>);

impl SideTables {
    /// Returns the side tables of a schema, in its order.
    pub(crate) fn new(tables: Vec<Arc<SideTable>>) -> Self {
        Self(Arc::new(tables))
    }

    /// Returns the tables, in the schema's order.
    pub fn tables(&self) -> &[Arc<SideTable>] {
        &self.0
    }

    /// Returns the keys of a side table.
    pub(crate) fn index(&self, side: usize) -> Arc<SideIndex> {
        self.0[side].index.clone()
    }

    /// Returns a feature's values in its side table.
    pub(crate) fn column(&self, side: usize, feature: usize) -> &SideColumn {
        // The function `load` reads a column for every feature that names the side table.
        self.0[side].column(feature).expect("a side table has its features' columns")
    }
}
