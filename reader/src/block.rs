//! The block of decoded rows that one decoding task returns.
//!
//! A block holds one column for each field. An [`Assembly`](crate::assembly::Assembly) moves the
//! columns to their places in a batch.

use std::sync::Arc;

use zillion_feature::{FeatureKey, KeyColumn, RawValue};

use crate::error::{ReaderError, Result};
use crate::field::Role;
use crate::policy::remove_sorted;
use crate::value::{Outcome, Refusal};

/// The rows that one task has decoded.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// The number of rows that the columns hold.
    pub(crate) rows: usize,
    /// The columns, one for each field.
    pub(crate) columns: Vec<Column>,
    /// The number of rows of the data that the block covers.
    pub(crate) span: usize,
    /// The rows of the span that the columns hold, ascending; `None` stands for all.
    pub(crate) kept: Option<Vec<u32>>,
    /// The rows of the span that were left out as bad, ascending.
    pub(crate) rejected: Vec<u32>,
}

impl Block {
    /// Returns the number of kept rows that stand before a row of the data.
    pub(crate) fn rows_before(&self, place: usize) -> usize {
        self.kept.as_ref().map_or(place, |kept| kept.partition_point(|&at| (at as usize) < place))
    }
}

/// The decoded values of one field.
#[derive(Debug)]
pub(crate) enum Column {
    Keys(Vec<FeatureKey>),
    /// The keys of lists; `offsets` starts with 0 and has one entry more than there are rows.
    Lists {
        offsets: Vec<i32>,
        keys: Vec<FeatureKey>,
        /// The weights of the keys; `None` stands for weights that are all 1.
        weights: Option<Vec<f32>>,
    },
    /// The ids as the file has them.
    Raws(Vec<RawValue<'static>>),
    RawLists {
        offsets: Vec<i32>,
        ids: Vec<RawValue<'static>>,
    },
    Texts(Texts),
    WeightedLists {
        offsets: Vec<i32>,
        ids: Vec<RawValue<'static>>,
        /// The weights of the ids; `None` stands for weights that are all 1.
        weights: Option<Vec<f32>>,
    },
    Floats(Vec<f32>),
    Labels {
        values: Vec<f32>,
        mask: Option<Vec<bool>>,
    },
    /// The numbers, NaN where a value is missing.
    Numbers(Vec<f64>),
    /// The rows of a side table.
    Rows(Vec<u32>),
    Words(Vec<u64>),
    Times(Vec<i64>),
}

/// A column of texts, stored one after another in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) bytes: Vec<u8>,
    /// The end of each text in the buffer.
    pub(crate) ends: Vec<usize>,
    /// The flag of each row that tells whether the row has a text.
    pub(crate) there: Vec<bool>,
}

impl Texts {
    /// Returns the byte at which a row's text begins.
    pub(crate) fn start(&self, row: usize) -> usize {
        row.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Ends the text of a row, whose bytes have been appended.
    pub(crate) fn end(&mut self, is_there: bool) {
        self.ends.push(self.bytes.len());
        self.there.push(is_there);
    }

    fn truncate(&mut self, rows: usize) {
        self.bytes.truncate(self.start(rows.min(self.ends.len())));
        self.ends.truncate(rows);
        self.there.truncate(rows);
    }

    fn remove(&mut self, gone: &[u32]) {
        let mut gone = gone.iter().peekable();
        let mut kept = Self::default();
        for (row, &there) in self.there.iter().enumerate() {
            if gone.next_if(|&&at| at as usize == row).is_none() {
                kept.bytes.extend_from_slice(&self.bytes[self.start(row)..self.ends[row]]);
                kept.end(there);
            }
        }
        *self = kept;
    }
}

impl Column {
    /// Returns an empty column for `role` with room for `rows`.
    pub(crate) fn with_capacity(role: &Role, rows: usize) -> Self {
        match role {
            Role::Id { .. } | Role::Bucket { .. } => Self::Keys(Vec::with_capacity(rows)),
            Role::Ids { .. } => {
                let mut offsets = Vec::with_capacity(rows + 1);
                offsets.push(0);
                Self::Lists { offsets, keys: Vec::with_capacity(rows), weights: None }
            }
            Role::RawId { .. } => Self::Raws(Vec::with_capacity(rows)),
            Role::Text => Self::Texts(Texts::default()),
            Role::RawIds { .. } => {
                let mut offsets = Vec::with_capacity(rows + 1);
                offsets.push(0);
                Self::RawLists { offsets, ids: Vec::with_capacity(rows) }
            }
            Role::WeightedIds { .. } => {
                let mut offsets = Vec::with_capacity(rows + 1);
                offsets.push(0);
                Self::WeightedLists { offsets, ids: Vec::with_capacity(rows), weights: None }
            }
            Role::Numeric { .. } | Role::Weight => Self::Floats(Vec::with_capacity(rows)),
            Role::Number { .. } => Self::Numbers(Vec::with_capacity(rows)),
            Role::SideRow(_) => Self::Rows(Vec::with_capacity(rows)),
            Role::Label { optional, .. } => Self::Labels {
                values: Vec::with_capacity(rows),
                mask: optional.then(|| Vec::with_capacity(rows)),
            },
            Role::Group => Self::Words(Vec::with_capacity(rows)),
            Role::EventTime { .. } => Self::Times(Vec::with_capacity(rows)),
        }
    }

    /// Removes all rows but the first ones, and also the remains of a row that was refused
    /// half-way.
    pub(crate) fn truncate(&mut self, rows: usize) {
        match self {
            Self::Keys(x) => x.truncate(rows),
            Self::Lists { offsets, keys, weights } => {
                offsets.truncate(rows + 1);
                keys.truncate(offsets.last().map_or(0, |&end| end as usize));
                if let Some(weights) = weights {
                    weights.truncate(keys.len());
                }
            }
            Self::Raws(x) => x.truncate(rows),
            Self::Texts(x) => x.truncate(rows),
            Self::RawLists { offsets, ids } => {
                offsets.truncate(rows + 1);
                ids.truncate(offsets.last().map_or(0, |&end| end as usize));
            }
            Self::WeightedLists { offsets, ids, weights } => {
                offsets.truncate(rows + 1);
                ids.truncate(offsets.last().map_or(0, |&end| end as usize));
                if let Some(weights) = weights {
                    weights.truncate(ids.len());
                }
            }
            Self::Floats(x) => x.truncate(rows),
            Self::Labels { values, mask } => {
                values.truncate(rows);
                if let Some(mask) = mask {
                    mask.truncate(rows);
                }
            }
            Self::Numbers(x) => x.truncate(rows),
            Self::Rows(x) => x.truncate(rows),
            Self::Words(x) => x.truncate(rows),
            Self::Times(x) => x.truncate(rows),
        }
    }

    /// Appends a row that takes the place of a bad row until it is removed.
    pub(crate) fn push_stand_in(&mut self) {
        match self {
            Self::Keys(x) => x.push(FeatureKey::default()),
            Self::Raws(x) => x.push(RawValue::Missing),
            Self::Texts(x) => x.end(false),
            Self::Lists { offsets, .. }
            | Self::RawLists { offsets, .. }
            | Self::WeightedLists { offsets, .. } => {
                offsets.push(offsets.last().copied().unwrap_or_default())
            }
            Self::Floats(x) => x.push(0.0),
            Self::Labels { values, mask } => {
                values.push(0.0);
                if let Some(mask) = mask {
                    mask.push(false);
                }
            }
            Self::Numbers(x) => x.push(f64::NAN),
            Self::Rows(x) => x.push(0),
            Self::Words(x) => x.push(0),
            Self::Times(x) => x.push(0),
        }
    }

    /// Removes the given rows, which ascend.
    pub(crate) fn remove(&mut self, gone: &[u32]) {
        match self {
            Self::Keys(x) => remove_sorted(x, gone),
            Self::Lists { offsets, keys, weights } => {
                let stays = remove_lists(offsets, gone);
                retain(keys, &stays);
                if let Some(weights) = weights {
                    retain(weights, &stays);
                }
            }
            Self::Raws(x) => remove_sorted(x, gone),
            Self::Texts(x) => x.remove(gone),
            Self::RawLists { offsets, ids } => {
                let stays = remove_lists(offsets, gone);
                retain(ids, &stays);
            }
            Self::WeightedLists { offsets, ids, weights } => {
                let stays = remove_lists(offsets, gone);
                retain(ids, &stays);
                if let Some(weights) = weights {
                    retain(weights, &stays);
                }
            }
            Self::Floats(x) => remove_sorted(x, gone),
            Self::Labels { values, mask } => {
                remove_sorted(values, gone);
                if let Some(mask) = mask {
                    remove_sorted(mask, gone);
                }
            }
            Self::Numbers(x) => remove_sorted(x, gone),
            Self::Rows(x) => remove_sorted(x, gone),
            Self::Words(x) => remove_sorted(x, gone),
            Self::Times(x) => remove_sorted(x, gone),
        }
    }

    /// Returns the number of rows that the column has so far.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Keys(x) => x.len(),
            Self::Raws(x) => x.len(),
            Self::Texts(x) => x.ends.len(),
            Self::Lists { offsets, .. }
            | Self::RawLists { offsets, .. }
            | Self::WeightedLists { offsets, .. } => offsets.len() - 1,
            Self::Floats(x) => x.len(),
            Self::Labels { values, .. } => values.len(),
            Self::Numbers(x) => x.len(),
            Self::Rows(x) => x.len(),
            Self::Words(x) => x.len(),
            Self::Times(x) => x.len(),
        }
    }
}

/// Removes the lists of the rows `gone`; returns for each value of all lists whether it stays.
fn remove_lists(offsets: &mut Vec<i32>, gone: &[u32]) -> Vec<bool> {
    let mut gone = gone.iter().peekable();
    let mut stays = Vec::with_capacity(offsets.last().map_or(0, |&end| end as usize));
    let mut ends = vec![0];
    let mut kept = 0;
    for (row, range) in (0..).zip(offsets.windows(2)) {
        let list = gone.next_if(|&&at| at == row).is_none();
        stays.extend((range[0]..range[1]).map(|_| list));
        if list {
            kept += range[1] - range[0];
            ends.push(kept);
        }
    }
    *offsets = ends;
    stays
}

fn retain<T>(values: &mut Vec<T>, stays: &[bool]) {
    let mut stays = stays.iter();
    values.retain(|_| stays.next().is_some_and(|&stays| stays));
}

/// Ends the list of a row by appending its end to the offsets.
pub(crate) fn end_list<I>(offsets: &mut Vec<i32>, ids: &[I]) -> Outcome<()> {
    offsets.push(i32::try_from(ids.len()).map_err(|_| Refusal::TooManyIds)?);
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

/// A run of consecutive rows of a block: the rows that the columns hold, and the rows of the data
/// that they cover.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) block: Arc<Block>,
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) span_start: usize,
    pub(crate) span: usize,
}

impl Piece {
    /// Returns a piece with all rows of a block.
    pub(crate) fn whole(block: Block) -> Self {
        let (rows, span) = (block.rows, block.span);
        Self { block: Arc::new(block), start: 0, rows, span_start: 0, span }
    }

    /// Splits the piece after its first `span` rows of the data.
    pub(crate) fn split(self, span: usize) -> (Self, Self) {
        let cut = self.span_start + span;
        let rows = self.block.rows_before(cut) - self.start;
        let rest = Self {
            block: self.block.clone(),
            start: self.start + rows,
            rows: self.rows - rows,
            span_start: cut,
            span: self.span - span,
        };
        (Self { rows, span, ..self }, rest)
    }

    /// Returns the piece's rows of the data that were left out as bad, counted from its first row.
    pub(crate) fn rejected(&self) -> impl Iterator<Item = usize> {
        let range = self.span_start..self.span_start + self.span;
        let places = self.block.rejected.iter().map(|&at| at as usize);
        let inside = places.filter(move |at| range.contains(at));
        inside.map(|at| at - self.span_start)
    }

    /// Returns the piece's rows of the data that the columns hold, counted from its first row;
    /// `None` stands for all.
    pub(crate) fn kept(&self) -> Option<impl Iterator<Item = usize>> {
        let kept = self.block.kept.as_ref()?;
        let places = &kept[self.start..self.start + self.rows];
        Some(places.iter().map(|&at| at as usize - self.span_start))
    }

    /// Returns the piece's part of a column with one value for each row.
    pub(crate) fn part<'a, T>(&self, values: &'a [T]) -> &'a [T] {
        &values[self.start..self.start + self.rows]
    }
}

/// Returns the values of one column of all pieces, one after another.
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

/// Returns the lists of one column of all pieces, one after another. Weights that are all 1 are
/// returned as `None`.
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
        // The sum is below 2^31, as the code above has checked.
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
