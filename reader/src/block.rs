//! Decoded rows in columns.
//!
//! A block is what one decoding task makes. It holds one column a field, whatever the schema calls it;
//! only an [`Assembly`](crate::assembly::Assembly) knows the places of a batch.

use std::sync::Arc;

use zillion_feature::{FeatureKey, KeyColumn};

use crate::error::{ReaderError, Result};
use crate::field::Role;
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
        /// One a key; `None`: all are 1.
        weights: Option<Vec<f32>>,
    },
    Floats(Vec<f32>),
    Labels {
        values: Vec<f32>,
        mask: Option<Vec<bool>>,
    },
    /// Only the present values: this one column may have fewer values than rows.
    Present(Vec<f64>),
    /// NaN where there is none.
    Numbers(Vec<f64>),
    /// Rows of a side table.
    Rows(Vec<u32>),
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
                Self::Lists { offsets, keys: Vec::with_capacity(rows), weights: None }
            }
            Role::Numeric { .. } | Role::Weight => Self::Floats(Vec::with_capacity(rows)),
            Role::Present => Self::Present(Vec::with_capacity(rows)),
            Role::Number { .. } => Self::Numbers(Vec::with_capacity(rows)),
            Role::SideRow(_) => Self::Rows(Vec::with_capacity(rows)),
            Role::Label { optional, .. } => Self::Labels {
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

/// Some rows of a block.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) block: Arc<Block>,
    pub(crate) start: usize,
    pub(crate) rows: usize,
}

impl Piece {
    /// The piece's part of a column with one value a row.
    pub(crate) fn part<'a, T>(&self, values: &'a [T]) -> &'a [T] {
        &values[self.start..self.start + self.rows]
    }
}

/// The values of one column of all pieces, one after another.
pub(crate) fn values<T: Copy>(
    pieces: &[Piece],
    rows: usize,
    column: impl Fn(&Block) -> &[T],
) -> Vec<T> {
    let mut values = Vec::with_capacity(rows);
    for piece in pieces {
        values.extend_from_slice(piece.part(column(&piece.block)));
    }
    values
}

/// The lists of one column of all pieces, one after another. Weights that are all 1 are none.
pub(crate) fn lists(pieces: &[Piece], rows: usize, index: usize) -> Result<KeyColumn> {
    let mut offsets = Vec::with_capacity(rows + 1);
    let mut keys = Vec::with_capacity(rows);
    let mut weights: Option<Vec<f32>> = None;
    offsets.push(0);
    for piece in pieces {
        let (from, values, own) = column_of!(piece.block, index, Column::Lists { offsets, keys, weights } => (offsets, keys, weights));
        let ends = &from[piece.start..=piece.start + piece.rows];
        let range = ends[0] as usize..ends[piece.rows] as usize;
        let base = keys.len();
        let last = i32::try_from(base + range.len());
        last.map_err(|_| ReaderError::BatchTooLarge { rows })?;
        // Below 2^31, as has just been seen.
        offsets.extend(ends[1..].iter().map(|&end| end - ends[0] + base as i32));
        keys.extend_from_slice(&values[range.clone()]);
        if let Some(own) = own.as_ref().map(|own| &own[range]).filter(|own| !all_one(own)) {
            weights.get_or_insert_with(|| vec![1.0; base]).extend_from_slice(own);
        } else if let Some(weights) = &mut weights {
            weights.resize(keys.len(), 1.0);
        }
    }
    Ok(KeyColumn { offsets: Some(offsets), keys, weights })
}

fn all_one(weights: &[f32]) -> bool {
    weights.iter().all(|&weight| weight == 1.0)
}

pub(crate) use column_of;
