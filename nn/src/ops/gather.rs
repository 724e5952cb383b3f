//! The lookup of table rows for a batch, and the gradients of these rows.
//!
//! In the forward pass, a row of the batch gets the pooled rows of its keys. Without pooling, each
//! value of the column gets the row of its key. In the backward pass, each unique row sums the
//! gradients of its occurrences. The gathers follow each other, and inside a gather the order is
//! that of the positions. So the sum does not depend on threads, and each row is summed
//! independently.

use super::kernel::add_scaled;
use super::list_column::ListColumn;
use super::*;
use crate::graph::op::Gather;
use crate::inputs::ColumnView;
use zillion_device::prefetch::{prefetch_read, prefetch_write};
use zillion_feature::Pooling;

const WIDTH: usize = 16;

/// The lookups of rows and their gradients.
pub(super) struct Lookup;

impl OpGroup for Lookup {
    fn shape(op: &Op, inputs: &[Shape], graph: &Graph) -> ShapeResult {
        match (op, inputs) {
            (Op::GatherArgMax(gather), [_]) if gather.pooling != Some(Pooling::Max) => {
                Err("only a max pooling has winning values; set the pooling to max".into())
            }
            (Op::Gather(gather) | Op::GatherArgMax(gather), [rows]) => {
                let table = table_of(gather, graph)?;
                if rows.rows != Dim::Unique(table) {
                    return Err(format!(
                        "column {} is not a column of the table with {rows}; name a column of \
                         this table",
                        gather.column
                    ));
                }
                match gather.offset.checked_add(gather.dim) {
                    Some(end) if end <= rows.cols => Ok(shape_of(gather, graph)),
                    _ => Err(format!(
                        "the rows {rows} have no {} floats from float {} on; read floats that the \
                         rows have",
                        gather.dim, gather.offset
                    )),
                }
            }
            (Op::GatherGrad { table, gathers }, inputs) => {
                let Some(input) = graph.inputs.tables.get(*table) else {
                    return Err(format!("there is no table {table}; name a table of the inputs"));
                };
                let mut given = inputs.iter();
                for gather in gathers {
                    if table_of(gather, graph)? != *table {
                        return Err(format!(
                            "column {} is not a column of table {table}; name a column of this \
                             table",
                            gather.column
                        ));
                    }
                    for _ in 0..inputs_of(gather) {
                        if given.next() != Some(&shape_of(gather, graph)) {
                            return Err(format!(
                                "a gradient of column {} is missing or has another shape; give a \
                                 gradient for each gather",
                                gather.column
                            ));
                        }
                    }
                }
                match given.next() {
                    None => Ok(Shape { rows: Dim::Unique(*table), cols: input.stride }),
                    Some(_) => Err(
                        "there are more gradients than gathers; give a gradient for each gather"
                            .into(),
                    ),
                }
            }
            _ => cannot_take(op, inputs),
        }
    }

    fn forward(op: &Op, tile: &Tile<'_>, inputs: &[View<'_>], mut out: ViewMut<'_>) {
        let &[table] = inputs else { return reject(op) };
        match op {
            Op::Gather(gather) if gather.pooling.is_none() => values(gather, tile, table, &mut out),
            Op::Gather(gather) => pool(gather, tile, table, &mut out),
            Op::GatherArgMax(gather) => arg_max(gather, tile, table, &mut out),
            _ => reject(op),
        }
    }

    fn gradient(cx: &mut Backward, id: NodeId, g: NodeId) -> Result<()> {
        let node = cx.node(id).clone();
        match (&node.op, node.inputs.as_slice()) {
            (Op::Gather(gather), &[rows]) => {
                let winners = match gather.pooling {
                    Some(Pooling::Max) => {
                        Some(cx.push(id, "winners", Op::GatherArgMax(*gather), &[rows])?)
                    }
                    _ => None,
                };
                cx.add_gather(id, *gather, g, winners);
                Ok(())
            }
            _ => Err(cx.refuse_gradient(id)),
        }
    }

    fn write_attributes(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match op {
            Op::Gather(gather) | Op::GatherArgMax(gather) => {
                let Gather { column, offset, dim, pooling } = gather;
                let pooling = match pooling {
                    Some(pooling) => format!("{pooling:?}").to_lowercase(),
                    None => "values".to_owned(),
                };
                write!(f, "[column {column}, {offset}..{}, {pooling}]", offset + dim)
            }
            Op::GatherGrad { table, .. } => write!(f, "[table {table}]"),
            _ => Ok(()),
        }
    }

    fn flops(op: &Op, sizes: &NodeSizes<'_>) -> u64 {
        match op {
            Op::Gather(gather)
                if sizes.sizes.list_len.get(gather.column).is_some_and(|&n| n > 1) =>
            {
                let values = sizes.sizes.list_len[gather.column] as u64;
                let rows = match (gather.pooling, sizes.output.rows) {
                    (Some(_), rows) => sizes.sizes.rows_of(rows),
                    (None, _) => sizes.sizes.rows as u64,
                };
                rows * values * gather.dim as u64
            }
            Op::GatherGrad { .. } => (0..sizes.inputs.len()).map(|at| sizes.input(at)).sum(),
            _ => 0,
        }
    }

    fn onnx(op: &Op, node: &OnnxNode<'_>, writer: &mut Writer<'_>) -> Result<Option<String>> {
        let (Op::Gather(gather), [_]) = (op, node.inputs) else { return Ok(None) };
        let rows = writer.rows(gather, node.layer)?;
        let Some(list) = writer.list(gather.column)? else {
            // In a column without lists, each list has one row, which needs no pooling.
            return Ok(Some(rows));
        };
        let weights = writer.weights(gather.column)?;
        writer.emitter.enter(node.id, node.layer);
        let e = &mut writer.emitter;
        Ok(Some(match gather.pooling {
            None => list.weighted(e, &rows, &weights),
            Some(pooling) => list.pool(e, &rows, &weights, gather.dim, pooling),
        }))
    }
}

fn shape_of(gather: &Gather, graph: &Graph) -> Shape {
    let rows = match gather.pooling {
        Some(_) if graph.shared.has_sparse(gather.column) => Dim::Const(1),
        Some(_) => Dim::Batch,
        None => Dim::Values(gather.column),
    };
    Shape { rows, cols: gather.dim }
}

fn table_of(gather: &Gather, graph: &Graph) -> std::result::Result<usize, String> {
    let column = graph.inputs.columns.get(gather.column);
    column.map(|c| c.table).ok_or_else(|| {
        format!("there is no sparse column {}; name a column of the inputs", gather.column)
    })
}

/// Returns the number of inputs of a gradient node that belong to one gather. The inputs are the
/// gradient of the gather and, for a max pooling, the indices of the largest values.
fn inputs_of(gather: &Gather) -> usize {
    if gather.pooling == Some(Pooling::Max) { 2 } else { 1 }
}

/// Copies the row of each value, in the order of the column.
fn values(gather: &Gather, tile: &Tile<'_>, table: View<'_>, out: &mut ViewMut<'_>) {
    let column = &tile.inputs.columns[gather.column];
    let factors = tile.lists[gather.column].factors_of(gather);
    let values = tile.first_row..tile.first_row + tile.rows;
    simd!({
        copy_rows(gather, &column.inverse[values.clone()], table, out);
        if let Some(factors) = factors.get(values) {
            for (i, &by) in factors.iter().enumerate() {
                out.row(i).iter_mut().for_each(|o| *o *= by);
            }
        }
    })
}

fn pool(gather: &Gather, tile: &Tile<'_>, table: View<'_>, out: &mut ViewMut<'_>) {
    let column = &tile.inputs.columns[gather.column];
    let factors = tile.lists[gather.column].factors_of(gather);
    let rows = tile.first_row..tile.first_row + tile.rows;
    match column.offsets {
        None if factors.is_empty() => {
            simd!({ copy_rows(gather, &column.inverse[rows], table, out) })
        }
        _ if gather.pooling == Some(Pooling::Max) => simd!({
            for (i, row) in rows.enumerate() {
                let values = column.values_of(row);
                max_row(gather, values, column, factors, table, out.row(i));
            }
        }),
        _ => simd!({
            for (i, row) in rows.enumerate() {
                let out = out.row(i);
                out.fill(0.0);
                for value in column.values_of(row) {
                    let from = table_row(gather, column, value, table);
                    add_scaled(out, from, factor(factors, value));
                }
            }
        }),
    }
}

#[inline(always)]
fn factor(factors: &[f32], value: usize) -> f32 {
    if factors.is_empty() { 1.0 } else { factors[value] }
}

#[inline(always)]
fn table_row<'a>(
    gather: &Gather,
    column: &ColumnView<'_>,
    value: usize,
    table: View<'a>,
) -> &'a [f32] {
    &table.data[column.inverse[value] as usize * table.stride + gather.offset..][..gather.dim]
}

#[inline(always)]
fn copy_rows(gather: &Gather, inverse: &[u32], table: View<'_>, out: &mut ViewMut<'_>) {
    let ask = |i: usize, floats: usize| {
        if let Some(&key) = inverse.get(i + AHEAD) {
            let start = key as usize * table.stride + gather.offset;
            prefetch_read(table.data, start);
            prefetch_read(table.data, start + floats - 1);
        }
    };
    if gather.dim == 1 {
        for (i, &key) in inverse.iter().enumerate() {
            ask(i, 1);
            out.data[i * out.stride] = table.data[key as usize * table.stride + gather.offset];
        }
        return;
    }
    for (i, &key) in inverse.iter().enumerate() {
        ask(i, gather.dim);
        let from = &table.data[key as usize * table.stride + gather.offset..][..gather.dim];
        // The copy is made in pieces of fixed size, because a call of memcpy costs more than these
        // few bytes.
        let (from, from_rest) = from.as_chunks::<WIDTH>();
        let (to, to_rest) = out.row(i).as_chunks_mut::<WIDTH>();
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
        for (to, &from) in to_rest.iter_mut().zip(from_rest) {
            *to = from;
        }
    }
}

#[inline(always)]
fn max_row(
    gather: &Gather,
    values: std::ops::Range<usize>,
    column: &ColumnView<'_>,
    factors: &[f32],
    table: View<'_>,
    out: &mut [f32],
) {
    out.fill(if values.is_empty() { 0.0 } else { f32::NEG_INFINITY });
    for value in values {
        let by = factor(factors, value);
        for (o, &v) in out.iter_mut().zip(table_row(gather, column, value, table)) {
            let v = by * v;
            *o = if v > *o { v } else { *o };
        }
    }
}

/// Writes, for each element, the index in the list of the largest value. If several values are the
/// largest, the first one is used. The result is −1 for an empty list. An f32 represents the index
/// exactly for lists of up to 2²⁴ values.
fn arg_max(gather: &Gather, tile: &Tile<'_>, table: View<'_>, out: &mut ViewMut<'_>) {
    let column = &tile.inputs.columns[gather.column];
    let factors = tile.lists[gather.column].factors_of(gather);
    for i in 0..tile.rows {
        let values = column.values_of(tile.first_row + i);
        let out = out.row(i);
        out.fill(-1.0);
        for start in (0..gather.dim).step_by(WIDTH) {
            let width = WIDTH.min(gather.dim - start);
            let mut best = [f32::NEG_INFINITY; WIDTH];
            for (index, value) in values.clone().enumerate() {
                let by = factor(factors, value);
                let from = &table_row(gather, column, value, table)[start..start + width];
                for ((o, best), &v) in out[start..].iter_mut().zip(&mut best).zip(from) {
                    let v = by * v;
                    if v > *best {
                        *best = v;
                        *o = index as f32;
                    }
                }
            }
        }
    }
}

/// The rows of a value of the batch, which can be read in any order.
pub(crate) trait BatchRows: Sync {
    /// Returns the row with the index `row` in the batch, or in the values of its column.
    fn row(&self, row: usize) -> &[f32];

    /// Prefetches a row that will be read soon.
    fn prefetch(&self, row: usize);
}

/// The inputs for computing the contribution of one gather to the gradient of a table.
pub(crate) struct GatherSource<'a, R> {
    pub(crate) gather: Gather,
    pub(crate) column: &'a ColumnView<'a>,
    pub(crate) list: &'a ListColumn,
    pub(crate) gradient: R,
    /// The indices of the largest values of a max pooling; `None` for other poolings.
    pub(crate) winners: Option<R>,
    /// The factor of each value; empty if all are 1.
    pub(crate) factors: &'a [f32],
}

/// The distance, in values, at which rows and gradients are prefetched before they are used.
const AHEAD: usize = 16;

/// Adds the gradients of one gather to the gradients of some unique rows. The first of these rows
/// is `first`, and `out` has `stride` floats for each of them.
///
/// The gradients of the batch are read in order, which the processor can predict. The unique rows
/// are written in random order. This is the faster way, because the rows of one table fit into the
/// second-level cache, and the gradients of the batch do not. Values of other unique rows are
/// skipped. So each row sums its occurrences in ascending order.
pub(crate) fn add_row_gradients<R: BatchRows>(
    source: &GatherSource<'_, R>,
    stride: usize,
    first: usize,
    out: &mut [f32],
) {
    let plain =
        source.column.offsets.is_none() && source.winners.is_none() && source.factors.is_empty();
    let rows = out.len() / stride;
    simd!({
        if plain {
            add_plain(source, stride, first..first + rows, out);
        } else {
            add_pooled(source, stride, first..first + rows, out);
        }
    })
}

/// Adds the gradients of a column that has one value in each row, where all factors are 1.
#[inline(always)]
fn add_plain<R: BatchRows>(
    source: &GatherSource<'_, R>,
    stride: usize,
    keys: std::ops::Range<usize>,
    out: &mut [f32],
) {
    let Gather { offset, dim, .. } = source.gather;
    let inverse = source.column.inverse;
    for (row, &key) in inverse.iter().enumerate() {
        if let Some(&key) = inverse.get(row + AHEAD)
            && keys.contains(&(key as usize))
        {
            source.gradient.prefetch(row + AHEAD);
            prefetch_write(out, (key as usize - keys.start) * stride + offset);
        }
        if keys.contains(&(key as usize)) {
            let to = &mut out[(key as usize - keys.start) * stride + offset..][..dim];
            match (to, source.gradient.row(row)) {
                ([to], [from]) => *to += from,
                (to, from) => add_short(to, from, 1.0),
            }
        }
    }
}

#[inline(always)]
fn add_pooled<R: BatchRows>(
    source: &GatherSource<'_, R>,
    stride: usize,
    keys: std::ops::Range<usize>,
    out: &mut [f32],
) {
    let Gather { offset, dim, pooling, .. } = source.gather;
    let column = source.column;
    for (value, &key) in column.inverse.iter().enumerate() {
        if !keys.contains(&(key as usize)) {
            continue;
        }
        let row = match column.offsets {
            None => value,
            Some(_) => source.list.row_of[value] as usize,
        };
        let to = &mut out[(key as usize - keys.start) * stride + offset..][..dim];
        let gradient = source.gradient.row(if pooling.is_some() { row } else { value });
        let by = factor(source.factors, value);
        match &source.winners {
            None => add_short(to, gradient, by),
            Some(winners) => {
                let index = (value - column.values_of(row).start) as f32;
                for ((o, &g), &winner) in to.iter_mut().zip(gradient).zip(winners.row(row)) {
                    *o += if winner == index { by * g } else { 0.0 };
                }
            }
        }
    }
}

/// Computes `to += by · from` for rows of a few dozen floats.
#[inline(always)]
fn add_short(to: &mut [f32], from: &[f32], by: f32) {
    let (to, to_rest) = to.as_chunks_mut::<WIDTH>();
    let (from, from_rest) = from.as_chunks::<WIDTH>();
    for (to, from) in to.iter_mut().zip(from) {
        for k in 0..WIDTH {
            to[k] += by * from[k];
        }
    }
    for (to, &from) in to_rest.iter_mut().zip(from_rest) {
        *to += by * from;
    }
}
