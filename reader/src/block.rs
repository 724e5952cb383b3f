//! The block of decoded rows that one decoding task returns.
//!
//! A block holds one column for each field. An [`Assembly`](crate::assembly::Assembly) moves the
//! columns to their places in a batch.

use std::sync::Arc;

use zillion_feature::{FeatureKey, KeyColumn, LabelColumn, RawValue};

use crate::error::{ReaderError, Result};
use crate::field::Role;
use crate::policy::remove_sorted;
use crate::value::{Outcome, Refusal};

/// The rows that one task has decoded.
#[derive(Debug, Default)]
pub(crate) struct Block {
    /// The number of rows that each of the columns holds.
    pub(crate) rows: usize,
    /// The columns, one for each field.
    pub(crate) columns: Vec<Column>,
    /// The number of rows of the data that the block covers, including rows that were left out.
    pub(crate) span: usize,
    /// The indices of the rows that the columns hold, ascending and counted from the first row of
    /// the span. `None` if the columns hold all rows.
    pub(crate) kept: Option<Vec<u32>>,
    /// The indices of the bad rows that were left out, ascending and counted from the first row of
    /// the span.
    pub(crate) rejected: Vec<u32>,
}

impl Block {
    /// Returns the number of kept rows before the row at index `place` of the span.
    pub(crate) fn rows_before(&self, place: usize) -> usize {
        self.kept.as_ref().map_or(place, |kept| kept.partition_point(|&at| (at as usize) < place))
    }
}

/// The decoded values of one field.
#[derive(Debug)]
pub(crate) enum Column {
    Keys(Vec<FeatureKey>),
    Lists(Lists<FeatureKey>),
    /// The ids in the form that they have in the file.
    Raws(Vec<RawValue<'static>>),
    RawLists(Lists<RawValue<'static>>),
    Texts(Texts),
    /// The floats of vectors. A missing vector of a request is an empty list.
    Vectors(Lists<f32>),
    Floats(Vec<f32>),
    Labels(LabelColumn),
    /// The numbers; a missing value is NaN.
    Numbers(Vec<f64>),
    /// The indices of rows in a side table.
    Rows(Vec<u32>),
    Words(Vec<u64>),
    Times(Vec<i64>),
}

/// A column of lists.
#[derive(Debug)]
pub(crate) struct Lists<T> {
    /// The first entry is 0. Each later entry is the index in `values` after the last value of a
    /// list.
    pub(crate) offsets: Vec<i32>,
    pub(crate) values: Vec<T>,
    /// The weights of the values, one for each value, or `None` if all weights are 1.
    pub(crate) weights: Option<Vec<f32>>,
}

/// A column of texts, stored one after another in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) bytes: Vec<u8>,
    /// The byte offset in the buffer at which each text ends.
    pub(crate) ends: Vec<usize>,
    /// Whether each row has a text; one flag for each row.
    pub(crate) there: Vec<bool>,
}

impl Texts {
    /// Returns the texts of the rows that have one, in the order of rows.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let texts = begins.zip(&self.ends).zip(&self.there);
        texts.filter(|(_, there)| **there).map(|((begin, &end), _)| &self.bytes[begin..end])
    }
}

impl<T> Lists<T> {
    /// Returns an empty column, with memory for `rows` lists of one value each.
    pub(crate) fn with_capacity(rows: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, values: Vec::with_capacity(rows), weights: None }
    }

    /// Appends a value to the list of the current row.
    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        self.values.push(value);
        if let Some(weights) = &mut self.weights {
            weights.push(1.0);
        }
    }

    /// Appends a value with a weight to the list of the current row.
    #[inline]
    pub(crate) fn push_weighted(&mut self, value: T, weight: f32) {
        let before = self.values.len();
        self.weights.get_or_insert_with(|| vec![1.0; before]).push(weight);
        self.values.push(value);
    }

    /// Ends the list of the current row.
    pub(crate) fn end(&mut self) -> Outcome<()> {
        let end = i32::try_from(self.values.len()).map_err(|_| Refusal::TooManyIds)?;
        self.offsets.push(end);
        Ok(())
    }
}

impl Texts {
    /// Returns the byte offset in the buffer at which the text of a row begins.
    pub(crate) fn start(&self, row: usize) -> usize {
        row.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Ends the text of a row after its bytes have been appended. `is_there` tells whether the row
    /// has a text.
    pub(crate) fn end(&mut self, is_there: bool) {
        self.ends.push(self.bytes.len());
        self.there.push(is_there);
    }
}

impl Column {
    /// Returns an empty column for `role`, with memory for `rows` rows.
    pub(crate) fn with_capacity(role: &Role, rows: usize) -> Self {
        match role {
            Role::Id { .. } | Role::Bucket { .. } => Self::Keys(Vec::with_capacity(rows)),
            Role::Vector { size, .. } => Self::Vectors(Lists::with_capacity(rows * size)),
            Role::RawVector { .. } => Self::Vectors(Lists::with_capacity(rows)),
            Role::Ids { .. } => Self::Lists(Lists::with_capacity(rows)),
            Role::Derived { role, .. } => Self::with_capacity(role, rows),
            Role::RawId { .. } | Role::RawTime { .. } | Role::Kept => {
                Self::Raws(Vec::with_capacity(rows))
            }
            Role::Text => Self::Texts(Texts::default()),
            Role::RawIds { .. } => Self::RawLists(Lists::with_capacity(rows)),
            Role::Numeric { .. } | Role::Weight => Self::Floats(Vec::with_capacity(rows)),
            Role::Number { .. } => Self::Numbers(Vec::with_capacity(rows)),
            Role::SideRow(_) => Self::Rows(Vec::with_capacity(rows)),
            Role::Label { optional, .. } => Self::Labels(LabelColumn {
                values: Vec::with_capacity(rows),
                mask: optional.then(|| Vec::with_capacity(rows)),
            }),
            Role::Group => Self::Words(Vec::with_capacity(rows)),
            Role::EventTime { .. } => Self::Times(Vec::with_capacity(rows)),
        }
    }

    /// Returns the values of the column as the type `V`.
    ///
    /// # Panics
    /// Panics if the values have another type, which is a defect, because [`Column::with_capacity`]
    /// chose the variant by the role of the field.
    pub(crate) fn view<V: ColumnView + ?Sized>(&self) -> &V {
        V::of(self)
    }

    /// Returns the column through the operations that add and remove rows.
    pub(crate) fn as_rows(&mut self) -> &mut dyn ColumnRows {
        match self {
            Self::Keys(keys) => keys,
            Self::Lists(lists) => lists,
            Self::Raws(ids) => ids,
            Self::RawLists(lists) => lists,
            Self::Texts(texts) => texts,
            Self::Vectors(lists) => lists,
            Self::Floats(values) => values,
            Self::Labels(labels) => labels,
            Self::Numbers(values) => values,
            Self::Rows(rows) => rows,
            Self::Words(words) => words,
            Self::Times(times) => times,
        }
    }
}

/// A type of values that some variants of [`Column`] hold.
pub(crate) trait ColumnView {
    fn of(column: &Column) -> &Self;
}

macro_rules! impl_column_view {
    ($($view:ty: $variant:pat => $values:expr;)*) => { $(
        impl ColumnView for $view {
            fn of(column: &Column) -> &Self {
                match column {
                    $variant => $values,
                    other => unreachable!("a column of another role: {other:?}"),
                }
            }
        }
    )* };
}

impl_column_view! {
    [FeatureKey]: Column::Keys(keys) => keys;
    [RawValue<'static>]: Column::Raws(ids) => ids;
    [f32]: Column::Floats(values) | Column::Labels(LabelColumn { values, .. }) => values;
    [bool]: Column::Labels(labels) => labels.mask.as_deref().unwrap_or_default();
    [f64]: Column::Numbers(values) => values;
    [u32]: Column::Rows(rows) => rows;
    [u64]: Column::Words(words) => words;
    [i64]: Column::Times(times) => times;
    Lists<FeatureKey>: Column::Lists(lists) => lists;
    Lists<RawValue<'static>>: Column::RawLists(lists) => lists;
    Texts: Column::Texts(texts) => texts;
    Lists<f32>: Column::Vectors(lists) => lists;
}

/// The operations on the rows of a column that do not depend on the type of its values.
pub(crate) trait ColumnRows {
    /// Returns the number of rows that the column has so far.
    fn count(&self) -> usize;

    /// Keeps the first `rows` rows and removes all others, including the values of a row that was
    /// only partly appended before it was refused.
    fn keep_first(&mut self, rows: usize);

    /// Removes the rows with the indices `gone`, which must be in ascending order.
    fn drop_rows(&mut self, gone: &[u32]);

    /// Appends an arbitrary value in the place of a bad row. The row is removed later.
    fn push_stand_in(&mut self);
}

impl<T: Default> ColumnRows for Vec<T> {
    fn count(&self) -> usize {
        self.len()
    }

    fn keep_first(&mut self, rows: usize) {
        self.truncate(rows);
    }

    fn drop_rows(&mut self, gone: &[u32]) {
        remove_sorted(self, gone);
    }

    fn push_stand_in(&mut self) {
        self.push(T::default());
    }
}

impl ColumnRows for LabelColumn {
    fn count(&self) -> usize {
        self.values.len()
    }

    fn keep_first(&mut self, rows: usize) {
        self.values.truncate(rows);
        self.mask.iter_mut().for_each(|mask| mask.truncate(rows));
    }

    fn drop_rows(&mut self, gone: &[u32]) {
        remove_sorted(&mut self.values, gone);
        self.mask.iter_mut().for_each(|mask| remove_sorted(mask, gone));
    }

    fn push_stand_in(&mut self) {
        self.values.push(0.0);
        self.mask.iter_mut().for_each(|mask| mask.push(false));
    }
}

impl ColumnRows for Texts {
    fn count(&self) -> usize {
        self.ends.len()
    }

    fn keep_first(&mut self, rows: usize) {
        self.bytes.truncate(self.start(rows.min(self.ends.len())));
        self.ends.truncate(rows);
        self.there.truncate(rows);
    }

    fn drop_rows(&mut self, gone: &[u32]) {
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

    fn push_stand_in(&mut self) {
        self.end(false);
    }
}

impl<T> ColumnRows for Lists<T> {
    fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    fn keep_first(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        let values = self.offsets.last().map_or(0, |&end| end as usize);
        self.values.truncate(values);
        self.weights.iter_mut().for_each(|weights| weights.truncate(values));
    }

    fn drop_rows(&mut self, gone: &[u32]) {
        let mut gone = gone.iter().peekable();
        // The indices of the values to remove, because their lists are removed.
        let mut gone_values = Vec::new();
        let mut offsets = vec![0];
        for (row, ends) in (0..).zip(self.offsets.windows(2)) {
            match gone.next_if(|&&at| at == row) {
                Some(_) => gone_values.extend(ends[0] as u32..ends[1] as u32),
                None => offsets.push(ends[1] - gone_values.len() as i32),
            }
        }
        self.offsets = offsets;
        remove_sorted(&mut self.values, &gone_values);
        self.weights.iter_mut().for_each(|weights| remove_sorted(weights, &gone_values));
    }

    fn push_stand_in(&mut self) {
        self.offsets.push(self.offsets.last().copied().unwrap_or_default());
    }
}

/// A part of a block. It covers consecutive rows of the data; the columns may lack some of these
/// rows.
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

    /// Splits the piece in two. The first piece covers the first `span` rows of the data, and the
    /// second piece covers the rest.
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

    /// Returns the indices of the bad rows that were left out, counted from the first row of the
    /// piece.
    pub(crate) fn rejected(&self) -> impl Iterator<Item = usize> {
        let range = self.span_start..self.span_start + self.span;
        let places = self.block.rejected.iter().map(|&at| at as usize);
        let inside = places.filter(move |at| range.contains(at));
        inside.map(|at| at - self.span_start)
    }

    /// Returns the indices of the rows that the columns hold, counted from the first row of the
    /// piece, or `None` if the columns hold all rows.
    pub(crate) fn kept(&self) -> Option<impl Iterator<Item = usize>> {
        let kept = self.block.kept.as_ref()?;
        let places = &kept[self.start..self.start + self.rows];
        Some(places.iter().map(|&at| at as usize - self.span_start))
    }

    /// Returns the values of the piece's rows in a column with one value for each row.
    pub(crate) fn values<T>(&self, index: usize) -> &[T]
    where
        [T]: ColumnView,
    {
        &self.block.columns[index].view::<[T]>()[self.start..self.start + self.rows]
    }

    /// Returns the lists of the piece's rows in a column of lists.
    pub(crate) fn lists<T>(&self, index: usize) -> ListPart<'_, T>
    where
        Lists<T>: ColumnView,
    {
        self.block.columns[index].view::<Lists<T>>().part(self.start, self.rows)
    }
}

/// Consecutive lists of a column.
pub(crate) struct ListPart<'a, T> {
    /// The index at which the first list starts in the values of the whole column, and then the
    /// index at which each list ends.
    pub(crate) ends: &'a [i32],
    pub(crate) values: &'a [T],
    pub(crate) weights: Option<&'a [f32]>,
}

impl<T> Lists<T> {
    /// Returns `rows` consecutive lists, starting with the list of row `start`.
    pub(crate) fn part(&self, start: usize, rows: usize) -> ListPart<'_, T> {
        let ends = &self.offsets[start..=start + rows];
        let range = ends[0] as usize..ends[rows] as usize;
        let weights = self.weights.as_ref().map(|weights| &weights[range.clone()]);
        ListPart { ends, values: &self.values[range], weights }
    }
}

/// Returns the values of one column in all pieces, concatenated.
pub(crate) fn values<T: Clone>(pieces: &[Piece], index: usize) -> Vec<T>
where
    [T]: ColumnView,
{
    let parts: Vec<&[T]> = pieces.iter().map(|piece| piece.values(index)).collect();
    parts.concat()
}

/// Returns the lists of one column in all pieces, concatenated. If all weights are 1, the weights
/// of the result are `None`.
pub(crate) fn lists(pieces: &[Piece], rows: usize, index: usize) -> Result<KeyColumn> {
    let mut offsets = Vec::with_capacity(rows + 1);
    let mut keys = Vec::with_capacity(rows);
    let mut weights: Option<Vec<f32>> = None;
    offsets.push(0);
    for part in pieces.iter().map(|piece| piece.lists::<FeatureKey>(index)) {
        let base = keys.len();
        let last = i32::try_from(base + part.values.len());
        last.map_err(|_| ReaderError::BatchTooLarge { rows })?;
        // The sum is below 2^31, as the code above has checked.
        offsets.extend(part.ends[1..].iter().map(|&end| end - part.ends[0] + base as i32));
        keys.extend_from_slice(part.values);
        if let Some(own) = part.weights.filter(|own| own.iter().any(|&weight| weight != 1.0)) {
            weights.get_or_insert_with(|| vec![1.0; base]).extend_from_slice(own);
        } else if let Some(weights) = &mut weights {
            weights.resize(keys.len(), 1.0);
        }
    }
    Ok(KeyColumn { offsets: Some(offsets), keys, weights })
}
