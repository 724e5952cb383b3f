//! The source that scores get their rows from: live tables, a checkpoint, or the layers of a
//! version.

use zillion_feature::{LookupPlan, RowBuffer};

use crate::error::{Error, Result};
use crate::layout::TableLayout;

pub mod conformance;

/// A source of rows for evaluation and serving.
///
/// # The implementer must
/// * fill one row for each unique key of the plan, in the plan's order, at the stride of
///   [`RowSource::tables`]; floats after the last segment are zero;
/// * read an unknown key as its table declares ([`Unknown`](crate::Unknown)), count it, and never
///   insert it;
/// * give the buffer the shape of the plan, whatever it held before;
/// * return the same bits for the same key, whatever else the plan asks for.
///
/// [`conformance::check`] tests all of it.
pub trait RowSource {
    /// Returns the layouts of the rows; a plan's table id is a position here.
    fn tables(&self) -> &[TableLayout];

    /// Fills `rows` with the plan's rows.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) where the plan asks for a table that is not
    /// there, and the errors of the implementation.
    fn lookup(&mut self, plan: &LookupPlan, rows: &mut RowBuffer) -> Result<LookupReport>;
}

/// The number of keys that a lookup did not find.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookupReport {
    /// The number of unique keys that the source does not have, by table of the source.
    pub missing: Vec<u64>,
}

impl LookupReport {
    /// Returns the number of missing keys over all tables.
    pub fn total_missing(&self) -> u64 {
        self.missing.iter().sum()
    }
}

/// Gives `rows` the shape that the rows of `plan` have.
///
/// # Errors
/// [`Error::Mismatch`](crate::Error::Mismatch) where the plan asks for a table that is not there.
pub fn shape_rows(layouts: &[TableLayout], plan: &LookupPlan, rows: &mut RowBuffer) -> Result<()> {
    if let Some(table) = plan.tables.iter().find(|t| t.table.index() >= layouts.len()) {
        let reason =
            format!("the plan looks up this table, and there are {} tables", layouts.len());
        return Err(Error::mismatch(&table.table.0.to_string(), reason));
    }
    let shapes = plan.tables.iter().map(|t| (t.keys.len(), layouts[t.table.index()].stride));
    rows.reshape(shapes);
    Ok(())
}
