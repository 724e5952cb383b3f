//! Decoded rows in columns, and the gathering of batches out of them.
//!
//! A block is what one decoding task makes. It holds one column a field, whatever the schema calls it;
//! only [`gather`] knows the places of a [`Batch`].

use std::ops::Range;
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

/// Which rows of which blocks make a batch, in order.
#[derive(Debug, Default)]
pub(crate) struct Picks {
    pub(crate) blocks: Vec<Arc<Block>>,
    pub(crate) rows: PickedRows,
}

/// Rows by number of block and number of row, or whole runs where the order is that of the file.
#[derive(Debug)]
pub(crate) enum PickedRows {
    Single(Vec<(u32, u32)>),
    Runs(Vec<(u32, Range<usize>)>),
}

impl Default for PickedRows {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl Picks {
    pub(crate) fn len(&self) -> usize {
        match &self.rows {
            PickedRows::Single(rows) => rows.len(),
            PickedRows::Runs(runs) => runs.iter().map(|(_, run)| run.len()).sum(),
        }
    }

    /// The picked values of one column.
    fn values<'a, T: Copy + 'a>(&'a self, column: impl Fn(&'a Block) -> &'a [T]) -> Vec<T> {
        let slices: Vec<&[T]> = self.blocks.iter().map(|block| column(block)).collect();
        match (&self.rows, slices.as_slice()) {
            (PickedRows::Single(rows), [only]) => {
                rows.iter().map(|&(_, row)| only[row as usize]).collect()
            }
            (PickedRows::Single(rows), slices) => {
                rows.iter().map(|&(block, row)| slices[block as usize][row as usize]).collect()
            }
            (PickedRows::Runs(runs), slices) => {
                let mut values = Vec::with_capacity(self.len());
                for (block, run) in runs {
                    values.extend_from_slice(&slices[*block as usize][run.clone()]);
                }
                values
            }
        }
    }

    /// The picked lists of one column.
    fn lists<'a>(
        &'a self,
        column: impl Fn(&'a Block) -> (&'a [i32], &'a [FeatureKey]),
    ) -> Result<KeyColumn> {
        let lists: Vec<_> = self.blocks.iter().map(|block| column(block)).collect();
        let mut offsets = Vec::with_capacity(self.len() + 1);
        let mut keys = Vec::with_capacity(self.len());
        offsets.push(0);
        let mut take = |block: u32, row: usize| {
            let (from, values) = lists[block as usize];
            keys.extend_from_slice(&values[from[row] as usize..from[row + 1] as usize]);
            end_list(&mut offsets, &keys)
        };
        let taken = match &self.rows {
            PickedRows::Single(rows) => {
                rows.iter().try_for_each(|&(block, row)| take(block, row as usize))
            }
            PickedRows::Runs(runs) => runs
                .iter()
                .try_for_each(|(block, run)| run.clone().try_for_each(|row| take(*block, row))),
        };
        taken.map_err(|_| ReaderError::BatchTooLarge { rows: self.len() })?;
        Ok(KeyColumn::ragged(offsets, keys))
    }
}

/// Matches a column of every picked block against the variant that the field's role makes.
macro_rules! column_of {
    ($block:expr, $index:expr, $variant:pat => $values:expr) => {
        match &$block.columns[$index] {
            $variant => $values,
            // `Column::with_capacity` chose the variant by the same role.
            other => unreachable!("a column of another role: {other:?}"),
        }
    };
}

/// Assembles the picked rows into a batch of `schema`.
pub(crate) fn gather(picks: &Picks, fields: &[Field], schema: &Schema) -> Result<Batch> {
    let mut batch = Batch::empty(schema);
    batch.rows = picks.len();
    // What a source for prediction lacks has no field and stays out.
    batch.weight = None;
    batch.group = None;
    batch.event_time = None;
    for (i, field) in fields.iter().enumerate() {
        let floats = || picks.values(|b| column_of!(b, i, Column::Floats(x) => x.as_slice()));
        match field.slot {
            Slot::Sparse(at) => {
                batch.sparse[at] = match field.role {
                    Role::Ids { .. } => picks.lists(
                        |b| column_of!(b, i, Column::Lists { offsets, keys } => (offsets.as_slice(), keys.as_slice())),
                    )?,
                    _ => KeyColumn::single(
                        picks.values(|b| column_of!(b, i, Column::Keys(keys) => keys.as_slice())),
                    ),
                };
            }
            Slot::Numeric(at) => batch.numeric[at] = floats(),
            Slot::Label(at) => batch.labels[at] = gather_label(picks, i, &field.role),
            Slot::Weight => batch.weight = Some(floats()),
            Slot::Group => {
                batch.group =
                    Some(picks.values(|b| column_of!(b, i, Column::Words(x) => x.as_slice())));
            }
            Slot::EventTime => {
                batch.event_time =
                    Some(picks.values(|b| column_of!(b, i, Column::Times(x) => x.as_slice())));
            }
            Slot::Pass => {}
        }
    }
    Ok(batch)
}

fn gather_label(picks: &Picks, i: usize, role: &Role) -> LabelColumn {
    let values =
        picks.values(|b| column_of!(b, i, Column::Labels { values, .. } => values.as_slice()));
    let mask = match role {
        Role::Label { optional: true } => {
            let mask = picks.values(
                |b| column_of!(b, i, Column::Labels { mask, .. } => mask.as_deref().unwrap_or_default()),
            );
            // `None` says that every row has a label.
            mask.contains(&false).then_some(mask)
        }
        _ => None,
    };
    LabelColumn { values, mask }
}
