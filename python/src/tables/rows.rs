//! The loops over rows: from rows of unique keys to the values of a lookup, and from gradients of
//! values to sums by key.

use anyhow::{Result, bail};
use zillion_device::Workers;
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_rows::TableLayout;

/// The number of rows of a lookup, or of keys, that one task handles.
const TASK_ROWS: usize = 128;

/// The gradients of the values `start..end` of a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The gradients of all fields of a lookup.
    pub(super) gradients: &'a [f32],
    /// The number of floats between the gradients of two values of the column.
    pub(super) stride: usize,
    /// The position of the gradient of the first value.
    pub(super) offset: usize,
}

/// Copies the row of each value to `into`, as floats of shape `[rows, fields, dim]`.
pub(super) fn gather_rows(
    workers: &Workers,
    plan: &LookupPlan,
    fields: &[usize],
    dim: usize,
    found: &RowBuffer,
    into: &mut [u8],
) -> Result<()> {
    let Ok(into) = bytemuck::try_cast_slice_mut::<u8, f32>(into) else {
        bail!("the memory of the interpreter is not aligned to floats");
    };
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
    Ok(())
}

/// Sums the gradients of each unique key over its occurrences. `pieces` has the gradients of each
/// column.
pub(super) fn sum_gradients(
    workers: &Workers,
    plan: &LookupPlan,
    layouts: &[TableLayout],
    pieces: &[Vec<Piece<'_>>],
    sums: &mut RowBuffer,
) {
    sums.reshape(
        plan.tables
            .iter()
            .map(|table| (table.keys.len(), layouts[table.table.index()].stride))
            .collect::<Vec<_>>()
            .into_iter(),
    );
    for (at, (table, rows)) in plan.tables.iter().zip(&mut sums.tables).enumerate() {
        let dim = layouts[table.table.index()].width();
        let stride = rows.stride;
        rows.counts = None;
        rows.uses = None;
        let columns: Vec<(usize, &Vec<Piece<'_>>)> = plan
            .columns
            .iter()
            .zip(pieces)
            .filter(|(column, _)| column.table == at)
            .map(|(column, pieces)| (column.base as usize, pieces))
            .collect();
        let occurrences = &table.occurrences;
        workers.for_each_block(&mut rows.values, TASK_ROWS * stride.max(1), |task, block| {
            block.fill(0.0);
            for (key, sum) in (task * TASK_ROWS..).zip(block.chunks_exact_mut(stride)) {
                let range =
                    occurrences.offsets[key] as usize..occurrences.offsets[key + 1] as usize;
                for &position in &occurrences.positions[range] {
                    let gradient = find_gradient(&columns, position as usize, dim);
                    sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
                }
            }
        });
    }
}

/// Returns the gradient of the value at a position of a table.
fn find_gradient<'a>(
    columns: &[(usize, &'a Vec<Piece<'a>>)],
    position: usize,
    dim: usize,
) -> &'a [f32] {
    let column = columns.partition_point(|&(base, _)| base <= position).saturating_sub(1);
    // Several columns can have the same base if some are empty; the last of them has the value.
    let (base, pieces) = columns[column];
    let value = position - base;
    let piece = &pieces[pieces.partition_point(|piece| piece.end <= value)];
    let start = (value - piece.start) * piece.stride + piece.offset;
    &piece.gradients[start..start + dim]
}
