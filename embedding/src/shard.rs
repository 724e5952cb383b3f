//! A shard: a contiguous range of slots with the rows of every table. A shard is a plain value
//! without locks.

use std::ops::Range;
use std::sync::Arc;

use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, TablePlan, TableRows};

use crate::error::Result;
use crate::eviction::Due;
use crate::shape::{TableShape, TableStep};
use crate::table::Table;
use crate::table::push::Times;

/// The rows of all tables in one range of slots.
#[derive(Debug)]
pub(crate) struct Shard {
    slots: Range<usize>,
    pub(crate) tables: Vec<Table>,
}

impl Shard {
    pub(crate) fn new(shapes: &[Arc<TableShape>], slots: Range<usize>) -> Result<Self> {
        let tables = shapes
            .iter()
            .map(|shape| Table::new(shape.clone(), slots.clone()))
            .collect::<Result<_>>();
        Ok(Self { tables: tables?, slots })
    }

    pub(crate) fn slots(&self) -> Range<usize> {
        self.slots.clone()
    }

    /// Applies the gradients of all tables that have no whole-table rules.
    pub(crate) fn push(
        &mut self,
        plan: &LookupPlan,
        ranges: &[Range<usize>],
        gradients: &RowBuffer,
        steps: &[Option<TableStep>],
    ) -> Result<()> {
        for ((table, range), rows) in plan.tables.iter().zip(ranges).zip(&gradients.tables) {
            let index = table.table.index();
            let Some(step) = &steps[index] else { continue };
            let values = &rows.values[range.start * rows.stride..range.end * rows.stride];
            let times = times(table, rows, range.clone());
            self.tables[index].push(&table.keys[range.clone()], values, times, step)?;
        }
        Ok(())
    }

    /// Adds the gradients of tables with whole-table rules to the staged gradients of their rows. A
    /// sweep applies them.
    pub(crate) fn stage(
        &mut self,
        plan: &LookupPlan,
        ranges: &[Range<usize>],
        gradients: &RowBuffer,
        swept: &[bool],
    ) -> Result<()> {
        for ((table, range), rows) in plan.tables.iter().zip(ranges).zip(&gradients.tables) {
            let index = table.table.index();
            if swept[index] {
                let values = &rows.values[range.start * rows.stride..range.end * rows.stride];
                self.tables[index].stage(&table.keys[range.clone()], values)?;
            }
        }
        Ok(())
    }

    /// Applies staged gradients and whole-table rules in the tables for which `steps` has a step.
    /// Then does the scheduled work of each table, which `turns` lists.
    pub(crate) fn sweep(&mut self, steps: &[Option<TableStep>], turns: &[Vec<Due>]) -> Result<()> {
        for ((table, step), dues) in self.tables.iter_mut().zip(steps).zip(turns) {
            if let Some(step) = step {
                table.sweep(step)?;
            }
            dues.iter().try_for_each(|due| table.evict(*due))?;
        }
        Ok(())
    }
}

/// Returns the number of occurrences of each key in a run of a plan, and the shows and clicks of
/// their rows. The offsets are empty if the plan has no offsets. [`TableSet`](crate::TableSet)
/// refuses such a plan for tables that need occurrences.
pub(crate) fn times<'a>(
    plan: &'a TablePlan,
    gradients: &'a TableRows,
    run: Range<usize>,
) -> Times<'a> {
    Times {
        first: run.start,
        offsets: plan.occurrences.offsets.get(run.start..=run.end).unwrap_or_default(),
        uses: gradients.uses.as_ref().and_then(|uses| uses.get(run)),
    }
}

/// Calls `f` for each slot that has keys in `range`, in slot order. `f` gets the keys of the slot
/// and their positions in the plan. Returns the results.
pub(crate) fn slot_runs<R>(
    plan: &TablePlan,
    range: Range<usize>,
    mut f: impl FnMut(&[FeatureKey], Range<usize>) -> R,
) -> Vec<R> {
    let first = plan.slots.partition_point(|&(_, start)| (start as usize) < range.start);
    let runs = plan.slots[first..].iter().map(|&(_, start)| start as usize);
    let starts: Vec<usize> = runs.take_while(|&start| start < range.end).collect();
    let ends = starts.iter().skip(1).copied().chain([range.end]);
    starts.iter().zip(ends).map(|(&s, e)| f(&plan.keys[s..e], s..e)).collect()
}
