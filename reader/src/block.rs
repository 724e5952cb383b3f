//! Decoded rows in columns, and the gathering of batches out of them.
//!
//! A block is what one decoding task makes. It holds one column a field, whatever the schema calls it;
//! only [`gather`] knows the places of a [`Batch`].

use std::sync::Arc;

use zillion_feature::{Batch, FeatureKey, KeyColumn, LabelColumn, Schema};

use crate::error::{ReaderError, Result};
use crate::field::{Field, Role, Slot};
use crate::value::{Outcome, Refusal};

/// Decoded rows.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) rows: usize,
    /// One a field.
    pub(crate) columns: Vec<Column>,
}

/// One field's values.
#[derive(Debug)]
pub(crate) enum Column {
    Keys(Vec<FeatureKey>),
    /// `offsets` starts with 0 and has one entry a row more.
    Lists {
        offsets: Vec<i32>,
        keys: Vec<FeatureKey>,
    },
    Floats(Vec<f32>),
    Labels {
        values: Vec<f32>,
        mask: Option<Vec<bool>>,
    },
    /// Only the present values: this one column may have fewer values than rows.
    Present(Vec<f64>),
    Words(Vec<u64>),
    Times(Vec<i64>),
}

impl Column {
    /// An empty column for `role` with room for `rows`.
    pub(crate) fn with_capacity(role: &Role, rows: usize) -> Self {
        match role {
            Role::Id { .. } | Role::Bucket { .. } => Self::Keys(Vec::with_capacity(rows)),
            Role::Ids { .. } => {
                let mut offsets = Vec::with_capacity(rows + 1);
                offsets.push(0);
                Self::Lists { offsets, keys: Vec::with_capacity(rows) }
            }
            Role::Numeric { .. } | Role::Weight => Self::Floats(Vec::with_capacity(rows)),
            Role::Present => Self::Present(Vec::with_capacity(rows)),
            Role::Label { optional } => Self::Labels {
                values: Vec::with_capacity(rows),
                mask: optional.then(|| Vec::with_capacity(rows)),
            },
            Role::Group => Self::Words(Vec::with_capacity(rows)),
            Role::EventTime => Self::Times(Vec::with_capacity(rows)),
        }
    }
}

/// Closes the list of a row.
pub(crate) fn end_list(offsets: &mut Vec<i32>, keys: &[FeatureKey]) -> Outcome<()> {
    offsets.push(i32::try_from(keys.len()).map_err(|_| Refusal::TooManyIds)?);
    Ok(())
}

/// Some rows of a block.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) block: Arc<Block>,
    pub(crate) start: usize,
    pub(crate) rows: usize,
}

impl Piece {
    /// The piece's part of a column with one value a row.
    fn part<'a, T>(&self, values: &'a [T]) -> &'a [T] {
        &values[self.start..self.start + self.rows]
    }
}

/// The values of one column of all pieces, one after another.
fn values<T: Copy>(pieces: &[Piece], rows: usize, column: impl Fn(&Block) -> &[T]) -> Vec<T> {
    let mut values = Vec::with_capacity(rows);
    for piece in pieces {
        values.extend_from_slice(piece.part(column(&piece.block)));
    }
    values
}

/// The lists of one column of all pieces, one after another.
fn lists(
    pieces: &[Piece],
    rows: usize,
    column: impl Fn(&Block) -> (&[i32], &[FeatureKey]),
) -> Result<KeyColumn> {
    let mut offsets = Vec::with_capacity(rows + 1);
    let mut keys = Vec::with_capacity(rows);
    offsets.push(0);
    for piece in pieces {
        let (from, values) = column(&piece.block);
        for row in piece.start..piece.start + piece.rows {
            keys.extend_from_slice(&values[from[row] as usize..from[row + 1] as usize]);
            end_list(&mut offsets, &keys).map_err(|_| ReaderError::BatchTooLarge { rows })?;
        }
    }
    Ok(KeyColumn::ragged(offsets, keys))
}

/// Matches a column of a block against the variant that the field's role makes.
macro_rules! column_of {
    ($block:expr, $index:expr, $variant:pat => $values:expr) => {
        match &$block.columns[$index] {
            $variant => $values,
            // `Column::with_capacity` chose the variant by the same role.
            other => unreachable!("a column of another role: {other:?}"),
        }
    };
}

/// Assembles pieces into a batch of `schema`.
pub(crate) fn gather(pieces: &[Piece], fields: &[Field], schema: &Schema) -> Result<Batch> {
    let mut batch = Batch::empty(schema);
    let rows = pieces.iter().map(|piece| piece.rows).sum();
    batch.rows = rows;
    // What a source for prediction lacks has no field and stays out.
    batch.weight = None;
    batch.group = None;
    batch.event_time = None;
    for (i, field) in fields.iter().enumerate() {
        let floats = || values(pieces, rows, |b| column_of!(b, i, Column::Floats(x) => x));
        match field.slot {
            Slot::Sparse(at) => {
                batch.sparse[at] = match field.role {
                    Role::Ids { .. } => lists(
                        pieces,
                        rows,
                        |b| column_of!(b, i, Column::Lists { offsets, keys } => (offsets, keys)),
                    )?,
                    _ => KeyColumn::single(values(
                        pieces,
                        rows,
                        |b| column_of!(b, i, Column::Keys(keys) => keys),
                    )),
                };
            }
            Slot::Numeric(at) => batch.numeric[at] = floats(),
            Slot::Label(at) => batch.labels[at] = gather_label(pieces, rows, i, &field.role),
            Slot::Weight => batch.weight = Some(floats()),
            Slot::Group => {
                let words = values(pieces, rows, |b| column_of!(b, i, Column::Words(x) => x));
                batch.group = Some(words);
            }
            Slot::EventTime => {
                let times = values(pieces, rows, |b| column_of!(b, i, Column::Times(x) => x));
                batch.event_time = Some(times);
            }
            Slot::Pass => {}
        }
    }
    Ok(batch)
}

fn gather_label(pieces: &[Piece], rows: usize, i: usize, role: &Role) -> LabelColumn {
    let labels =
        values(pieces, rows, |b| column_of!(b, i, Column::Labels { values, .. } => values));
    let mask = match role {
        Role::Label { optional: true } => {
            let mask = values(
                pieces,
                rows,
                |b| column_of!(b, i, Column::Labels { mask, .. } => mask.as_deref().unwrap_or_default()),
            );
            // `None` says that every row has a label.
            mask.contains(&false).then_some(mask)
        }
        _ => None,
    };
    LabelColumn { values: labels, mask }
}
