//! Plans for scoring, which look up the values of a batch in their order.
//!
//! Training needs the unique keys of a batch, because each row gets one gradient, and their
//! occurrences. Scoring needs neither. In a request for many candidates almost all ids of a column
//! differ, or all are the same. To find repeated ids in a set takes longer than to look them up
//! again while their rows are in the cache.

use super::{ColumnPlan, LookupPlan, Occurrences, PlanScratch, TablePlan};
use crate::batch::Batch;
use crate::key::TableId;
use crate::schema::Schema;

impl LookupPlan {
    /// Makes a plan of a batch for scoring alone. It has no slots and no occurrences.
    ///
    /// The keys of a table without lists are those of its columns, one column after the other. A
    /// key that follows itself in a column occurs once in the plan, but further occurrences are not
    /// searched. The lists of rows often repeat each other, so a table with lists has unique keys,
    /// as in [`LookupPlan::build`]. Otherwise the rows of all lists would need too much memory.
    ///
    /// # Panics
    /// Panics for the same reasons as [`LookupPlan::build`].
    pub fn for_scoring(batch: &Batch, schema: &Schema, scratch: &mut PlanScratch) -> Self {
        Self::of_tables(batch, schema, |table, members, columns| {
            let has_lists = members.iter().any(|&column| batch.sparse[column].offsets.is_some());
            if has_lists {
                scratch.plan_table(table, batch, members, columns)
            } else {
                direct_table(table, batch, members, columns)
            }
        })
    }
}

/// Makes the plan of a table whose columns have one value in each row.
fn direct_table(
    table: TableId,
    batch: &Batch,
    members: &[usize],
    columns: &mut [ColumnPlan],
) -> TablePlan {
    let values: usize = members.iter().map(|&column| batch.sparse[column].keys.len()).sum();
    assert!(values < 1 << 31, "a batch holds fewer than 2^31 values a table");
    let mut keys = Vec::with_capacity(values);
    let mut base = 0;
    for &column in members {
        let of_column = &batch.sparse[column].keys;
        let mut inverse = Vec::with_capacity(of_column.len());
        let mut last = None;
        for &key in of_column {
            if last != Some(key) {
                keys.push(key);
                last = Some(key);
            }
            inverse.push(keys.len() as u32 - 1);
        }
        columns[column] = ColumnPlan { table: table.index(), inverse, base };
        base += of_column.len() as u32;
    }
    TablePlan { table, keys, slots: Vec::new(), occurrences: Occurrences::default() }
}
