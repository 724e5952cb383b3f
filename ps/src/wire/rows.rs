//! Rows and gradients on the wire.

use std::ops::Range;

use zillion_feature::{LookupPlan, RowBuffer, Use};
use zillion_rows::TableLayout;

use super::floats::{LEAST_BYTES, take_block, write_block};
use super::{Reader, TRAILER_BYTES, WireError, WireResult, Writer};

fn layout_of(layouts: &[TableLayout], table: usize) -> WireResult<&TableLayout> {
    layouts.get(table).ok_or_else(|| {
        WireError::new(format!("table {table} is unknown; the run has {} tables", layouts.len()))
    })
}

/// Appends the rows of a plan that a pull or a lookup has read: all rows, and their numbers of
/// pushes if the buffer has them. `are_bf16` says for each table of the run whether its weights are
/// of the type bf16.
pub(crate) fn write_rows(
    out: &mut Vec<u8>,
    plan: &LookupPlan,
    rows: &RowBuffer,
    layouts: &[TableLayout],
    are_bf16: &[bool],
) {
    let has_counts = rows.tables.iter().any(|table| table.counts.is_some());
    // The checksum of the frame must fit too, or all rows would be copied once more.
    let bytes = |table: &zillion_feature::TablePlan| {
        let index = table.table.index();
        let size = if are_bf16[index] { LEAST_BYTES } else { size_of::<f32>() };
        let count = if has_counts { size_of::<u32>() } else { 0 };
        1 + table.keys.len() * (layouts[index].width() * size + count)
    };
    out.reserve(1 + plan.tables.iter().map(bytes).sum::<usize>() + TRAILER_BYTES);
    out.push(u8::from(has_counts));
    for (table, rows) in plan.tables.iter().zip(&rows.tables) {
        let (all, index) = (0..table.keys.len(), table.table.index());
        write_block(out, rows, &all, layouts[index].width(), are_bf16[index]);
        if has_counts {
            match &rows.counts {
                Some(counts) => Writer(out).all(counts),
                None => Writer(out).all(&vec![0u32; all.len()]),
            }
        }
    }
}

/// Gives a buffer the shape of a whole plan, for the rows that several servers will send.
pub(crate) fn place_rows(
    plan: &LookupPlan,
    layouts: &[TableLayout],
    counts: bool,
    rows: &mut RowBuffer,
) -> WireResult<()> {
    let shape = |table: &zillion_feature::TablePlan| {
        layout_of(layouts, table.table.index()).map(|layout| (table.keys.len(), layout.stride))
    };
    let shapes = plan.tables.iter().map(shape).collect::<WireResult<Vec<_>>>()?;
    rows.reshape(shapes.into_iter());
    for (rows, table) in rows.tables.iter_mut().zip(&plan.tables) {
        match &mut rows.counts {
            Some(kept) if counts => kept.resize(table.keys.len(), 0),
            place => *place = counts.then(|| vec![0; table.keys.len()]),
        }
    }
    Ok(())
}

/// Copies the rows that one server has sent to their places in the buffer of the whole plan.
///
/// # Errors
/// Returns an error if the body does not have exactly the rows of `ranges`.
pub(crate) fn take_rows(
    body: &mut Reader<'_>,
    plan: &LookupPlan,
    ranges: &[Range<usize>],
    layouts: &[TableLayout],
    rows: &mut RowBuffer,
) -> WireResult<()> {
    let has_counts = body.bool()?;
    for ((table, range), rows) in plan.tables.iter().zip(ranges).zip(&mut rows.tables) {
        let width = layout_of(layouts, table.table.index())?.width();
        take_block(body, rows, range, width)?;
        if has_counts {
            let counts = body.take_entries(range.len(), size_of::<u32>())?;
            if let Some(kept) = &mut rows.counts {
                bytemuck::cast_slice_mut(&mut kept[range.clone()]).copy_from_slice(counts);
            }
        }
    }
    Ok(())
}

/// Appends the gradients of the keys that one server owns, with the shows and clicks of their rows.
/// `are_bf16` says whether the gradients were rounded to the type bf16.
pub(crate) fn write_gradients(
    out: &mut Vec<u8>,
    plan: &LookupPlan,
    ranges: &[Range<usize>],
    layouts: &[TableLayout],
    (gradients, are_bf16): (&RowBuffer, bool),
) {
    for ((table, range), rows) in plan.tables.iter().zip(ranges).zip(&gradients.tables) {
        out.push(u8::from(rows.uses.is_some()));
        write_block(out, rows, range, layouts[table.table.index()].width(), are_bf16);
        for used in rows.uses.iter().flat_map(|uses| &uses[range.clone()]) {
            let mut out = Writer(out);
            out.f32(used.shows);
            out.f32(used.clicks);
        }
    }
}

/// Reads the gradients of a plan into a buffer.
///
/// # Errors
/// Returns an error if the body does not have exactly the gradients of the plan.
pub(crate) fn take_gradients(
    body: &mut Reader<'_>,
    plan: &LookupPlan,
    layouts: &[TableLayout],
    gradients: &mut RowBuffer,
) -> WireResult<()> {
    // The body must have the floats before memory is allocated for them.
    let mut floats = 0usize;
    for table in &plan.tables {
        let width = layout_of(layouts, table.table.index())?.width();
        floats = floats.saturating_add(table.keys.len().saturating_mul(width));
    }
    body.clone().take_entries(floats, LEAST_BYTES)?;
    place_rows(plan, layouts, false, gradients)?;
    for (table, rows) in plan.tables.iter().zip(&mut gradients.tables) {
        let width = layout_of(layouts, table.table.index())?.width();
        let has_uses = body.bool()?;
        let count = table.keys.len();
        take_block(body, rows, &(0..count), width)?;
        rows.uses = match has_uses {
            false => None,
            true => {
                let mut uses = Reader::new(body.take_entries(count, 2 * size_of::<f32>())?);
                let mut used = || Ok(Use { shows: uses.f32()?, clicks: uses.f32()? });
                Some((0..count).map(|_| used()).collect::<WireResult<_>>()?)
            }
        };
    }
    Ok(())
}
