//! The rows of several plans, which one lookup has fetched into memory.
//!
//! A source can be far away, so that each lookup costs a round trip. Work that scores many small
//! batches therefore fetches the rows of all of them at once, and then takes the rows of each batch
//! from memory. These rows are no [`RowSource`]: they answer only the plans for which they were
//! fetched, and the report of the one lookup does not say which of the plans had a missing key.

use std::ops::Range;

use zillion_feature::{LookupPlan, PlanScratch, RowBuffer};

use super::RowSource;
use crate::error::{Error, Result};

/// The rows that one lookup has fetched for several plans.
#[derive(Debug)]
pub struct FetchedRows {
    union: LookupPlan,
    rows: RowBuffer,
    /// The columns of `union` that stand for the tables of each plan.
    columns: Vec<Range<usize>>,
}

impl FetchedRows {
    /// Looks up the keys of all plans in `source`, with one lookup. A key of several plans is
    /// looked up once.
    ///
    /// # Errors
    /// Returns the errors of [`RowSource::lookup`].
    pub fn fetch<'a>(
        source: &mut dyn RowSource,
        plans: impl Iterator<Item = &'a LookupPlan> + Clone,
    ) -> Result<Self> {
        let mut next = 0;
        let columns = plans.clone().map(|plan| {
            let first = next;
            next += plan.tables.len();
            first..next
        });
        let columns = columns.collect();
        let union = LookupPlan::union(plans, &mut PlanScratch::default());
        let mut rows = RowBuffer::default();
        source.lookup(&union, &mut rows)?;
        Ok(Self { union, rows, columns })
    }

    /// Writes the rows of plan `plan`, counted from 0, to `rows`. They are the same bits that a
    /// lookup of the plan alone writes.
    ///
    /// # Errors
    /// Returns [`Error::Misuse`] if there were fewer plans.
    pub fn copy_rows(&self, plan: usize, rows: &mut RowBuffer) -> Result<()> {
        let columns = self.columns.get(plan).ok_or_else(|| {
            let plans = self.columns.len();
            Error::misuse(format!(
                "plan {plan} has no rows, because the rows of {plans} plans were fetched; count \
                 the plans from 0"
            ))
        })?;
        let columns = &self.union.columns[columns.clone()];
        let of = |table: usize| &self.rows.tables[table];
        rows.reshape(columns.iter().map(|c| (c.inverse.len(), of(c.table).stride)));
        for (column, target) in columns.iter().zip(&mut rows.tables) {
            target.counts = None;
            let fetched = of(column.table);
            let targets = target.values.chunks_exact_mut(fetched.stride.max(1));
            for (&place, target) in column.inverse.iter().zip(targets) {
                target.copy_from_slice(fetched.row(place as usize));
            }
        }
        Ok(())
    }
}
