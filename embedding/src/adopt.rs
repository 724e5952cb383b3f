//! Rows of a version as the beginning of new training: weights are taken over, what an optimizer
//! remembers is not there and begins anew.
//!
//! # Invariants
//! Keys come in the version's order, so that rows do not depend on shards or threads. A table with
//! a fixed vocabulary keeps it: of a version's rows those are taken whose keys it has.

mod table;

use std::ops::Range;

use zillion_feature::{FeatureKey, TableId};

use crate::error::{Error, Result};
use crate::set::TableSet;
use zillion_rows::TableLayout;
use zillion_rows::layer::WholeRow;

/// The result of taking over the rows of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Rows whose weights were taken.
    pub rows: u64,
    /// Rows of keys that a fixed vocabulary does not have.
    pub unknown: u64,
}

/// Floats of a version's row, and where they go.
pub(crate) type Moves = Vec<(Range<usize>, Range<usize>)>;

impl TableSet {
    /// Takes the rows of a version's table over, given in key order with their layout there.
    /// Segments go by name: one that the version does not have begins as in any new row. Where rows
    /// grow, those that are taken over are full. Counts come along, so that what is popular stays
    /// so for eviction; steps do not.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a segment or a row of another length, or where no segment is there;
    /// [`Error::TooManyRows`] beyond the table's limit; no memory.
    pub fn adopt<'a>(
        &mut self,
        table: TableId,
        from: &TableLayout,
        rows: &mut dyn Iterator<Item = (FeatureKey, WholeRow<'a>)>,
    ) -> Result<Adopted> {
        let shape = self.shape(table)?.clone();
        let mut moves = Moves::new();
        for own in &shape.layout.segments {
            let Some(theirs) = from.segment(&own.name) else { continue };
            if theirs.dim != own.dim {
                let reason = format!(
                    "`{}` has {} floats in the version and {} in the job",
                    own.name, theirs.dim, own.dim
                );
                return Err(Error::mismatch(shape.name(), reason));
            }
            let place = |offset: usize| offset..offset + own.dim;
            moves.push((place(theirs.offset), place(own.offset)));
        }
        if moves.is_empty() {
            let reason = "the version's rows have no segment that the job's have";
            return Err(Error::mismatch(shape.name(), reason));
        }
        let epoch = self.generations.now();
        let cap = shape.spec.most_rows().filter(|_| !shape.spec.dense);
        let mut adopted = Adopted::default();
        for (key, row) in rows {
            if cap.is_some_and(|cap| adopted.rows >= cap) {
                let (table, rows) = (shape.name().to_owned(), adopted.rows + 1);
                return Err(Error::TooManyRows { table, rows, cap: cap.unwrap_or_default() });
            }
            if row.weights.len() != from.width() {
                let reason = format!(
                    "a row has {} floats and its layout {}",
                    row.weights.len(),
                    from.width()
                );
                return Err(Error::mismatch(shape.name(), reason));
            }
            let shard = &mut self.shards[self.map.shard_of(key.slot())];
            let taken = shard.table_mut(table.index()).adopt(key, &row, &moves, epoch)?;
            adopted.rows += u64::from(taken);
            adopted.unknown += u64::from(!taken);
        }
        Ok(adopted)
    }
}
