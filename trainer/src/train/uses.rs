//! The shows and clicks of a batch's rows, for tables that keep these statistics.
//!
//! The shows of a key are its occurrences in all features of the table. Its clicks are the sum of
//! the first label over these occurrences. Both are summed in the order of the batch, so they do
//! not depend on how the work is divided. If a row of the batch has no label, it counts as a show
//! without a click.

use zillion_feature::{Batch, LookupPlan, RowBuffer, TablePlan, Use};
use zillion_rows::TableSpec;

/// Writes the shows and clicks of each row into `grads`, for tables that keep these statistics.
pub(super) fn fill_uses(
    batch: &Batch,
    plan: &LookupPlan,
    specs: &[TableSpec],
    grads: &mut RowBuffer,
) {
    for (index, (table, rows)) in plan.tables.iter().zip(&mut grads.tables).enumerate() {
        if specs[table.table.index()].statistics.is_none() {
            rows.uses = None;
            continue;
        }
        let clicks = clicks_by_value(batch, plan, index);
        let uses = rows.uses.get_or_insert_default();
        uses.clear();
        uses.extend(uses_of(table, &clicks));
    }
}

fn uses_of(table: &TablePlan, clicks: &[f32]) -> impl Iterator<Item = Use> {
    table.occurrences.offsets.windows(2).map(|ends| {
        let positions = &table.occurrences.positions[ends[0] as usize..ends[1] as usize];
        let clicks = positions.iter().map(|&at| clicks[at as usize]).sum();
        Use { shows: positions.len() as f32, clicks }
    })
}

/// Returns one number for each value of a table, in the order of the table's values. The number is
/// the first label of the row that holds the value, or 0 if the row has no label.
fn clicks_by_value(batch: &Batch, plan: &LookupPlan, table: usize) -> Vec<f32> {
    let label = batch.labels.first();
    let click = |row: usize| -> f32 {
        let Some(label) = label else { return 0.0 };
        let is_there = label.mask.as_ref().is_none_or(|mask| mask.get(row) == Some(&true));
        let value = label.values.get(row).copied().unwrap_or(0.0);
        if is_there { value } else { 0.0 }
    };
    let mut clicks = Vec::new();
    let columns = plan.columns.iter().zip(&batch.sparse);
    for (_, column) in columns.filter(|(column, _)| column.table == table) {
        for row in 0..batch.rows {
            clicks.resize(clicks.len() + column.row(row).len(), click(row));
        }
    }
    clicks
}

#[cfg(test)]
mod tests {
    use zillion_feature::{FeatureKey, KeyColumn, LabelColumn};
    use zillion_rows::conformance::plan_of;

    use super::*;

    #[test]
    fn shows_are_occurrences_and_clicks_their_labels() {
        let key = FeatureKey::from_u64;
        // The table has two columns: one with one id in each row, and one with lists.
        let ids = KeyColumn::single(vec![key(1), key(2), key(1)]);
        let lists = KeyColumn::ragged(vec![0, 2, 2, 3], vec![key(1), key(3), key(3)]);
        let values: Vec<FeatureKey> = ids.keys.iter().chain(&lists.keys).copied().collect();
        let mut plan = plan_of(&[values]);
        plan.columns = vec![Default::default(), Default::default()];
        let labels = LabelColumn { values: vec![1.0, 1.0, 1.0], mask: None };
        let mut batch =
            Batch { rows: 3, sparse: vec![ids, lists], labels: vec![labels], ..Batch::default() };
        let uses = |batch: &Batch| {
            let clicks = clicks_by_value(batch, &plan, 0);
            let table = &plan.tables[0];
            let mut uses: Vec<(u64, f32, f32)> = table
                .keys
                .iter()
                .zip(uses_of(table, &clicks))
                .map(|(key, used)| (key.unmix(), used.shows, used.clicks))
                .collect();
            uses.sort_by_key(|used| used.0);
            uses
        };
        assert_eq!(uses(&batch), [(1, 3.0, 3.0), (2, 1.0, 1.0), (3, 2.0, 2.0)]);
        batch.labels[0].values = vec![1.0, 0.0, 0.0];
        assert_eq!(uses(&batch), [(1, 3.0, 2.0), (2, 1.0, 0.0), (3, 2.0, 1.0)]);
        batch.labels[0].mask = Some(vec![false, true, true]);
        assert_eq!(uses(&batch), [(1, 3.0, 0.0), (2, 1.0, 0.0), (3, 2.0, 0.0)]);
        batch.labels.clear();
        assert_eq!(uses(&batch)[0], (1, 3.0, 0.0));
    }
}
