//! The start of a new training from the rows of a version: weights are taken over, and the state of
//! the optimizers, which a version does not have, starts anew.
//!
//! # Invariants
//! Keys come in the version's order, so that rows do not depend on shards or threads. A table with
//! a fixed vocabulary keeps it: only the rows of a version whose keys it has are taken over.

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
    /// The number of rows whose weights were taken over.
    pub rows: u64,
    /// The number of rows that were skipped, because the table's fixed vocabulary does not have
    /// their keys.
    pub unknown: u64,
}

/// The ranges of floats in a version's row, and the ranges in the table's row that they are copied
/// to.
pub(crate) type Moves = Vec<(Range<usize>, Range<usize>)>;

impl TableSet {
    /// Takes over the rows of a version's table, given in key order with their layout in the
    /// version. Segments are matched by name: a segment that the version does not have begins as in
    /// any new row. If the table has narrow rows (`grow`), the rows that are taken over are full.
    /// Counts are taken over, so that popular rows stay popular for eviction; steps are not.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`] if a segment or a row has another length or if no segment
    /// matches, [`Error::TooManyRows`] if the rows exceed the table's limit, and another error if
    /// there is no memory.
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
                    "segment `{}` has {} floats in the version and {} in the job; set its `dim` to {}",
                    own.name, theirs.dim, own.dim, theirs.dim
                );
                return Err(Error::mismatch(shape.name(), reason));
            }
            let place = |offset: usize| offset..offset + own.dim;
            moves.push((place(theirs.offset), place(own.offset)));
        }
        if moves.is_empty() {
            let reason = "the version has no segment with the name of a segment of the job; start without it";
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
                    "a row of the version has {} floats, but its layout has {}; load the version again",
                    row.weights.len(),
                    from.width()
                );
                return Err(Error::mismatch(shape.name(), reason));
            }
            let shard = &mut self.shards[self.map.shard_of(key.slot())];
            let taken = shard.tables[table.index()].adopt(key, &row, &moves, epoch)?;
            adopted.rows += u64::from(taken);
            adopted.unknown += u64::from(!taken);
        }
        Ok(adopted)
    }
}
