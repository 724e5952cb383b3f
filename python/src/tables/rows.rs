//! The loops over rows: from rows of unique keys to the values of a lookup, and from gradients of
//! values to sums by key.

use zillion_device::Workers;
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::TableLayout;

use super::lookup::Lookup;

/// The number of rows of a lookup, or of keys, that one task handles.
const TASK_ROWS: usize = 128;

/// Copies the row of each value of a lookup to `into`, floats of shape `[rows, fields, dim]`.
pub(super) fn gather_rows(
    workers: &Workers,
    plan: &LookupPlan,
    fields: &[usize],
    dim: usize,
    found: &RowBuffer,
    into: &mut [f32],
) {
    let width = fields.len() * dim;
    workers.for_each_block(into, TASK_ROWS * width.max(1), |task, block| {
        for (row, values) in (task * TASK_ROWS..).zip(block.chunks_exact_mut(width)) {
            for (&field, value) in fields.iter().zip(values.chunks_exact_mut(dim)) {
                let column = &plan.columns[field];
                let unique = column.inverse[row] as usize;
                value.copy_from_slice(&found.tables[column.table].row(unique)[..dim]);
            }
        }
    });
}

/// Sums the gradients of each key of a lookup over the key's occurrences. `gradients` are floats
/// of shape `[rows, fields, dim]`. If `is_first` is false, the sums are added to those in `sums`.
pub(super) fn sum_gradients(
    workers: &Workers,
    lookup: &Lookup,
    layouts: &[TableLayout],
    gradients: &[f32],
    is_first: bool,
    sums: &mut RowBuffer,
) {
    let (plan, dim) = (&lookup.plan, lookup.dim);
    if is_first {
        shape_like(plan, layouts, sums);
    }
    let row = lookup.fields.len() * dim;
    for (at, (table, rows)) in plan.tables.iter().zip(&mut sums.tables).enumerate() {
        // The base of each column of the table, and the place of its field in a row of gradients.
        let columns: Vec<(usize, usize)> = plan
            .columns
            .iter()
            .enumerate()
            .filter(|(_, column)| column.table == at)
            .filter_map(|(field, column)| {
                let place = lookup.fields.iter().position(|&looked_up| looked_up == field)?;
                Some((column.base as usize, place * dim))
            })
            .collect();
        let (occurrences, stride) = (&table.occurrences, rows.stride.max(1));
        workers.for_each_block(&mut rows.values, TASK_ROWS * stride, |task, block| {
            if is_first {
                block.fill(0.0);
            }
            for (key, sum) in (task * TASK_ROWS..).zip(block.chunks_exact_mut(stride)) {
                let places =
                    occurrences.offsets[key] as usize..occurrences.offsets[key + 1] as usize;
                for &position in &occurrences.positions[places] {
                    let position = position as usize;
                    let after = columns.partition_point(|&(base, _)| base <= position);
                    let (base, offset) = columns[after - 1];
                    let start = (position - base) * row + offset;
                    add(sum, &gradients[start..start + dim]);
                }
            }
        });
    }
}

/// Sums the sums of several lookups by key. `plan` is that of the values of all lookups, each
/// column of which has those of the first lookup first.
pub(super) fn join_sums(
    workers: &Workers,
    plan: &LookupPlan,
    layouts: &[TableLayout],
    lookups: &[Lookup],
    sums: &mut RowBuffer,
) {
    shape_like(plan, layouts, sums);
    // The lookups of each column, each with the position of its first value.
    let mut pieces: Vec<Vec<(usize, &Lookup)>> = vec![Vec::new(); plan.columns.len()];
    for lookup in lookups {
        for &field in &lookup.fields {
            let begin = pieces[field].last().map_or(0, |&(begin, before)| begin + before.rows);
            pieces[field].push((begin, lookup));
        }
    }
    for (at, (table, rows)) in plan.tables.iter().zip(&mut sums.tables).enumerate() {
        let columns: Vec<(usize, usize)> = plan
            .columns
            .iter()
            .enumerate()
            .filter(|(field, column)| column.table == at && !pieces[*field].is_empty())
            .map(|(field, column)| (column.base as usize, field))
            .collect();
        let (occurrences, stride) = (&table.occurrences, rows.stride.max(1));
        workers.for_each_block(&mut rows.values, TASK_ROWS * stride, |task, block| {
            block.fill(0.0);
            // The lookups whose sum of the present key has been added.
            let mut added: Vec<u64> = Vec::new();
            for (key, sum) in (task * TASK_ROWS..).zip(block.chunks_exact_mut(stride)) {
                added.clear();
                let places =
                    occurrences.offsets[key] as usize..occurrences.offsets[key + 1] as usize;
                for &position in &occurrences.positions[places] {
                    let position = position as usize;
                    let after = columns.partition_point(|&(base, _)| base <= position);
                    let (base, field) = columns[after - 1];
                    let value = position - base;
                    let after = pieces[field].partition_point(|&(begin, _)| begin <= value);
                    let (begin, lookup) = pieces[field][after - 1];
                    if added.contains(&lookup.ticket) {
                        continue;
                    }
                    added.push(lookup.ticket);
                    if let Some(found) = &lookup.sums {
                        let unique = lookup.plan.columns[field].inverse[value - begin] as usize;
                        add(sum, found.tables[at].row(unique));
                    }
                }
            }
        });
    }
}

/// Gives a buffer one row of its table's stride for each key of a plan.
fn shape_like(plan: &LookupPlan, layouts: &[TableLayout], sums: &mut RowBuffer) {
    let shapes: Vec<(usize, usize)> = plan
        .tables
        .iter()
        .map(|table| (table.keys.len(), layouts[table.table.index()].stride))
        .collect();
    sums.reshape(shapes.into_iter());
    for table in &mut sums.tables {
        (table.counts, table.uses) = (None, None);
    }
}

/// Adds `more` to the first floats of `sum`.
fn add(sum: &mut [f32], more: &[f32]) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}
