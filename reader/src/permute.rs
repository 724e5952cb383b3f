//! The permutation of the rows of a window.
//!
//! The rows of a whole window are permuted, one column after another, before batches are cut from
//! it. An alternative was rejected: the window keeps the file order, and each batch gathers its
//! rows from it. Each batch would then touch every page of every column, which is much more memory
//! than the caches and the TLB cover. A single column nearly fits into the second-level cache.

use std::borrow::Cow;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_feature::LabelColumn;

use crate::block::{Block, Column, ColumnView, Lists, Piece};
use crate::error::{ReaderError, Result};

/// A column of one piece. If no other piece uses the block, the column is moved out of the block;
/// otherwise it is shared.
enum Source {
    Owned(Column),
    Shared(Arc<Block>),
}

/// The work on one column: the sources of its values in all pieces, and the permuted column when it
/// is done.
struct Work {
    sources: Vec<(Source, usize, usize)>,
    done: Option<Result<Column>>,
}

/// Returns a piece whose row `i` is row `order[i]` of `pieces`, counted over all pieces. Rows that
/// `order` does not name are dropped.
pub(crate) fn permute(pieces: Vec<Piece>, order: &[u32], workers: &Workers) -> Result<Piece> {
    let columns = pieces.first().map_or(0, |piece| piece.block.columns.len());
    let mut work: Vec<Work> = Vec::new();
    work.resize_with(columns, || Work { sources: Vec::with_capacity(pieces.len()), done: None });
    for Piece { block, start, rows, .. } in pieces {
        match Arc::try_unwrap(block) {
            Ok(block) => {
                for (work, column) in work.iter_mut().zip(block.columns) {
                    work.sources.push((Source::Owned(column), start, rows));
                }
            }
            Err(block) => {
                for work in &mut work {
                    work.sources.push((Source::Shared(block.clone()), start, rows));
                }
            }
        }
    }
    workers.for_each_mut(&mut work, |index, work| {
        let sources = std::mem::take(&mut work.sources);
        let parts: Vec<Part<'_>> = sources
            .iter()
            .map(|(source, start, rows)| Part {
                column: match source {
                    Source::Owned(column) => column,
                    Source::Shared(block) => &block.columns[index],
                },
                start: *start,
                rows: *rows,
            })
            .collect();
        work.done = Some(permute_column(&parts, order));
    });
    // The pool runs every index of a phase, so every column has been permuted.
    let columns = work.into_iter().filter_map(|work| work.done).collect::<Result<_>>()?;
    let (rows, span) = (order.len(), order.len());
    Ok(Piece::whole(Block { rows, columns, span, ..Block::default() }))
}

/// The rows of a column that belong to one piece.
struct Part<'a> {
    column: &'a Column,
    start: usize,
    rows: usize,
}

/// Permutes one column. The column has the same variant in all parts. There is at least one part,
/// because the columns come from the pieces.
fn permute_column(parts: &[Part<'_>], order: &[u32]) -> Result<Column> {
    Ok(match parts[0].column {
        Column::Keys(_) => Column::Keys(permute_values(parts, order)),
        Column::Floats(_) => Column::Floats(permute_values(parts, order)),
        Column::Words(_) => Column::Words(permute_values(parts, order)),
        Column::Rows(_) => Column::Rows(permute_values(parts, order)),
        Column::Times(_) => Column::Times(permute_values(parts, order)),
        Column::Labels(labels) => Column::Labels(LabelColumn {
            values: permute_values(parts, order),
            mask: labels.mask.is_some().then(|| permute_values(parts, order)),
        }),
        Column::Lists(_) => Column::Lists(permute_lists(parts, order)?),
        Column::Vectors(_) => Column::Vectors(permute_lists(parts, order)?),
        Column::Numbers(_) | Column::Raws(_) | Column::Texts(_) | Column::RawLists(_) => {
            unreachable!("a pass over values as they stand keeps the file order")
        }
    })
}

fn permute_values<T: Copy>(parts: &[Part<'_>], order: &[u32]) -> Vec<T>
where
    [T]: ColumnView,
{
    let own = parts.iter().map(|part| &part.column.view::<[T]>()[part.start..][..part.rows]);
    let parts: Vec<&[T]> = own.collect();
    let all: Cow<'_, [T]> = match &parts[..] {
        [only] => Cow::Borrowed(*only),
        parts => Cow::Owned(parts.concat()),
    };
    let all = &all[..];
    order.iter().map(|&row| all[row as usize]).collect()
}

fn permute_lists<T: Copy>(parts: &[Part<'_>], order: &[u32]) -> Result<Lists<T>>
where
    Lists<T>: ColumnView,
{
    // This table holds the list of each row. A lookup in the table replaces a search for the row's
    // part.
    let mut lists: Vec<(&[T], Option<&[f32]>)> = Vec::with_capacity(order.len());
    let mut weighted = false;
    for part in parts {
        let Lists { offsets, values: keys, weights } = part.column.view::<Lists<T>>();
        weighted |= weights.is_some();
        let rows = offsets[part.start..=part.start + part.rows].windows(2);
        lists.extend(rows.map(|ends| {
            let range = ends[0] as usize..ends[1] as usize;
            (&keys[range.clone()], weights.as_ref().map(|weights| &weights[range]))
        }));
    }
    let values = lists.iter().map(|(keys, _)| keys.len()).sum();
    let mut permuted = Lists::with_capacity(order.len());
    permuted.values = Vec::with_capacity(values);
    permuted.weights = weighted.then(|| Vec::with_capacity(values));
    for &row in order {
        let (list, own) = lists[row as usize];
        permuted.values.extend_from_slice(list);
        if let Some(weights) = &mut permuted.weights {
            match own {
                Some(own) => weights.extend_from_slice(own),
                None => weights.resize(permuted.values.len(), 1.0),
            }
        }
        permuted.end().map_err(|_| ReaderError::BatchTooLarge { rows: order.len() })?;
    }
    Ok(permuted)
}
