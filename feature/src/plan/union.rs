//! The union of several lookup plans, which looks up the keys of all of them at once.

use std::collections::BTreeSet;

use super::{ColumnPlan, LookupPlan, PlanScratch};
use crate::batch::{Batch, KeyColumn};
use crate::key::TableId;

impl LookupPlan {
    /// Makes the plan of the keys of several plans. The union has every table of the plans once, in
    /// ascending order, and one column for each table of each plan: first the tables of the first
    /// plan, in its order. The values of a column are the unique keys of that table, so
    /// [`ColumnPlan::inverse`] gives the place of each key of the plan in the union.
    ///
    /// # Panics
    /// Panics if the plans have 2³¹ keys or more for one table.
    pub fn union<'a>(plans: impl IntoIterator<Item = &'a Self>, scratch: &mut PlanScratch) -> Self {
        let mut batch = Batch::default();
        let mut owners: Vec<TableId> = Vec::new();
        for plan in plans {
            batch.rows += plan.rows;
            for table in &plan.tables {
                owners.push(table.table);
                batch.sparse.push(KeyColumn { keys: table.keys.clone(), ..KeyColumn::default() });
            }
        }
        let mut columns = vec![ColumnPlan::default(); owners.len()];
        let ids: BTreeSet<TableId> = owners.iter().copied().collect();
        let plan_table = |(position, table): (usize, TableId)| {
            let members: Vec<usize> = (0..owners.len()).filter(|&c| owners[c] == table).collect();
            let planned = scratch.plan_table(table, &batch, &members, &mut columns);
            for column in members {
                columns[column].table = position;
            }
            planned
        };
        let tables = ids.into_iter().enumerate().map(plan_table).collect();
        Self { rows: batch.rows, tables, columns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::FeatureKey;
    use crate::plan::{Occurrences, TablePlan};

    fn plan(tables: &[(u16, &[u64])]) -> LookupPlan {
        let tables = tables.iter().map(|&(table, ids)| {
            let mut keys: Vec<FeatureKey> =
                ids.iter().map(|&id| FeatureKey::from_u64(id)).collect();
            keys.sort_by_key(|key| key.slot());
            let occurrences = Occurrences::default();
            TablePlan { table: TableId(table), keys, slots: Vec::new(), occurrences }
        });
        LookupPlan { rows: 1, tables: tables.collect(), columns: Vec::new() }
    }

    #[test]
    fn a_union_has_each_key_once_and_knows_its_place() {
        let many: Vec<u64> = (0..400).collect();
        let plans = [
            plan(&[(0, &[1, 2, 3]), (2, &[])]),
            plan(&[(2, &[7, 1]), (0, &[3, 9])]),
            plan(&[]),
            plan(&[(0, &many)]),
        ];
        let union = LookupPlan::union(&plans, &mut PlanScratch::default());
        assert_eq!(union.rows, 4);
        let ids: Vec<u16> = union.tables.iter().map(|table| table.table.0).collect();
        assert_eq!(ids, [0, 2]);
        for table in &union.tables {
            let unique: BTreeSet<FeatureKey> = table.keys.iter().copied().collect();
            assert_eq!(unique.len(), table.keys.len());
            assert!(table.keys.is_sorted_by_key(|key| key.slot()));
            let wanted = plans.iter().flat_map(|plan| &plan.tables);
            let wanted = wanted.filter(|other| other.table == table.table);
            let wanted: Vec<FeatureKey> = wanted.flat_map(|table| table.keys.clone()).collect();
            assert_eq!(unique, wanted.iter().copied().collect());
            // The other fields are those of a plan too.
            assert_eq!(table.occurrences.offsets.len(), table.keys.len() + 1);
            assert_eq!(table.occurrences.positions.len(), wanted.len());
            for (i, &(slot, first)) in table.slots.iter().enumerate() {
                let end = table.slots.get(i + 1).map_or(table.keys.len(), |&(_, end)| end as usize);
                let run = &table.keys[first as usize..end];
                assert!(run.iter().all(|key| key.slot() == usize::from(slot)) && !run.is_empty());
            }
        }
        let tables = plans.iter().flat_map(|plan| &plan.tables);
        assert_eq!(union.columns.len(), tables.clone().count());
        for (table, column) in tables.zip(&union.columns) {
            let found = &union.tables[column.table];
            assert_eq!(found.table, table.table);
            let keys = column.inverse.iter().map(|&place| found.keys[place as usize]);
            assert_eq!(keys.collect::<Vec<_>>(), table.keys);
        }
    }
}
