//! The side tables of a job in memory.

use std::sync::Arc;

use zillion_feature::{SideColumn, SideIndex, SideTable};

/// The side tables of a schema with their values. Clones are cheap because they share the tables;
/// the datasets of a job use clones.
#[derive(Clone, Debug, Default)]
pub struct SideTables(Arc<Vec<Arc<SideTable>>>);

impl SideTables {
    /// Returns the side tables of a schema. `tables` must have the order of the schema.
    pub(crate) fn new(tables: Vec<Arc<SideTable>>) -> Self {
        Self(Arc::new(tables))
    }

    /// Returns the side tables in the order of the schema.
    pub fn tables(&self) -> &[Arc<SideTable>] {
        &self.0
    }

    /// Returns the index from keys to rows of a side table.
    pub(crate) fn index(&self, side: usize) -> Arc<SideIndex> {
        self.0[side].index.clone()
    }

    /// Returns the column of a side table that a feature reads.
    pub(crate) fn column(&self, side: usize, feature: usize) -> &SideColumn {
        // The function `load` reads a column for every feature that uses the side table.
        self.0[side].column(feature).expect("a side table has its features' columns")
    }
}
