//! The sources from which scoring reads rows: live tables, a checkpoint, or the layers of a
//! version.

use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TableId, TablePlan, TableRows};

use crate::error::{Error, Result};
use crate::layout::TableLayout;

pub mod conformance;
mod fetched;

pub use fetched::FetchedRows;

/// A source of rows for evaluation and serving.
///
/// # The implementer must
/// * write one row for each unique key of the plan, in the plan's order, at the stride of
///   [`RowSource::tables`]. Floats after the last segment must be zero;
/// * write the row that the table declares for an unknown key ([`Unknown`](crate::Unknown)), count
///   the key, and never insert it;
/// * give the buffer the shape of the plan; the earlier contents of the buffer must not matter;
/// * return the same bits for the same key in every plan.
///
/// [`conformance::check`] tests all of these rules.
pub trait RowSource {
    /// Returns the layout of the rows of each table. The table ids of a plan are positions in this
    /// list, counted from 0.
    fn tables(&self) -> &[TableLayout];

    /// Writes the rows of the plan to `rows`, and reports the keys that were not found. The layers
    /// of a version also take plans for scoring ([`LookupPlan::for_scoring`]), in which keys occur
    /// several times; missing keys are still counted once.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the plan has a table that the source
    /// does not have. The implementation can return further errors.
    fn lookup(&mut self, plan: &LookupPlan, rows: &mut RowBuffer) -> Result<LookupReport>;

    /// Returns whether a table has a row for a key, or `None` if the source tells that only by the
    /// counts of a lookup. Evaluation asks it for the keys of a lookup that did not find all keys.
    fn has_row(&self, table: TableId, key: FeatureKey) -> Option<bool> {
        let _not_known = (table, key);
        None
    }
}

/// The numbers of keys that a lookup did not find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupReport {
    /// The number of unique keys that were not found, for each table of the source.
    pub missing: Vec<u64>,
}

impl LookupReport {
    /// Returns the sum of the missing keys of all tables.
    pub fn total_missing(&self) -> u64 {
        self.missing.iter().sum()
    }
}

/// Gives `rows` the shape of the rows of `plan`.
///
/// # Errors
/// Returns [`Error::Mismatch`](crate::Error::Mismatch) if the plan has a table that `layouts` does
/// not have.
pub fn shape_rows(layouts: &[TableLayout], plan: &LookupPlan, rows: &mut RowBuffer) -> Result<()> {
    if let Some(table) = plan.tables.iter().find(|t| t.table.index() >= layouts.len()) {
        let reason = format!(
            "the plan has this table, but the source has {} tables; make the plan for this source",
            layouts.len()
        );
        return Err(Error::mismatch(&table.table.0.to_string(), reason));
    }
    let shapes = plan.tables.iter().map(|t| (t.keys.len(), layouts[t.table.index()].stride));
    rows.reshape(shapes);
    Ok(())
}

/// Gives the buffer the shape of the plan, and calls `read` for each table of the plan. `read` gets
/// the index of the table, writes the rows, and returns the number of missing keys.
pub(crate) fn lookup_tables(
    layouts: &[TableLayout],
    plan: &LookupPlan,
    rows: &mut RowBuffer,
    mut read: impl FnMut(usize, &TablePlan, &mut TableRows) -> u64,
) -> Result<LookupReport> {
    shape_rows(layouts, plan, rows)?;
    let mut report = LookupReport { missing: vec![0; layouts.len()] };
    for (table, rows) in plan.tables.iter().zip(&mut rows.tables) {
        rows.counts = None;
        let index = table.table.index();
        report.missing[index] += read(index, table, rows);
    }
    Ok(report)
}
