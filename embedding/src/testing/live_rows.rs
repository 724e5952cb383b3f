//! A [`RowSource`] of live tables, for the conformance suite of that trait.

use zillion_device::Workers;
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::{LookupReport, RowSource, TableLayout};

use crate::error::Result;
use crate::set::TableSet;

/// A source of the rows of live tables, which reads them as evaluation does.
#[derive(Debug)]
pub struct LiveRows<'a> {
    set: &'a mut TableSet,
    workers: &'a Workers,
}

impl<'a> LiveRows<'a> {
    /// Returns a source of the rows of `set`. The threads of `workers` read the rows.
    pub fn new(set: &'a mut TableSet, workers: &'a Workers) -> Self {
        Self { set, workers }
    }
}

impl RowSource for LiveRows<'_> {
    fn tables(&self) -> &[TableLayout] {
        self.set.layouts()
    }

    fn lookup(&mut self, plan: &LookupPlan, rows: &mut RowBuffer) -> Result<LookupReport> {
        self.set.lookup(self.workers, plan, rows)
    }
}
