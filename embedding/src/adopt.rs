//! The start of a new training run from the rows of a version. The weights are copied from the
//! version. The state of the optimizers, which a version does not have, gets its initial values.
//!
//! # Invariants
//! * The rows of the version arrive in key order, so the result does not depend on shards or
//!   threads.
//! * A table with a fixed vocabulary keeps its vocabulary: rows of other keys are not copied.

mod table;

use std::ops::Range;

use zillion_feature::{FeatureKey, TableId};

use crate::error::{Error, Result};
use crate::set::TableSet;
use zillion_rows::TableLayout;
use zillion_rows::layer::WholeRow;

/// The result of copying the rows of a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// The number of rows that were copied.
    pub rows: u64,
    /// The number of rows that were not copied, because their keys are not in the table's fixed
    /// vocabulary.
    pub unknown: u64,
}

/// The ranges of floats that are copied. Each pair has a range in a version's row and the range in
/// the table's row to which its floats are copied.
pub(crate) type Moves = Vec<(Range<usize>, Range<usize>)>;

impl TableSet {
    /// Copies the rows of a version's table, which must arrive in key order. `from` is their layout
    /// in the version. Segments are matched by name. A segment that the version does not have gets
    /// its initial weights. If the table has narrow rows (`grow`), the copied rows are full. The
    /// numbers of pushes are copied too, so that popular rows stay popular for eviction. The steps
    /// of the last pushes are not copied.
    ///
    /// The limit is compared with the number of rows that this process copies. If several processes
    /// hold the table, the caller must compare the limit with the sum of [`Adopted::rows`]. A group
    /// of slots may get more rows than its part of the limit. It then refuses new keys, or evicts
    /// at the end of the next step.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`] if a segment or a row has a different length or if no segment
    /// matches, [`Error::TooManyRows`] if the table would exceed its limit, and another error if
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
