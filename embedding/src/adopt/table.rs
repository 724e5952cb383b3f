//! The function of a table that creates a row from a row of a version.

use zillion_feature::FeatureKey;

use crate::adopt::Moves;
use crate::error::Result;
use crate::table::Table;
use zillion_rows::layer::WholeRow;

impl Table {
    /// Copies the weights of a version's row to the row of a key. The other values of the row are
    /// the values of a new row. Returns `false` if the vocabulary is fixed and does not have the
    /// key.
    pub(crate) fn adopt(
        &mut self,
        key: FeatureKey,
        from: &WholeRow<'_>,
        moves: &Moves,
        epoch: u32,
    ) -> Result<bool> {
        let row = match self.index.get(key) {
            Some(entry) => entry.row(),
            None if self.dense.is_some() => return Ok(false),
            None => {
                self.make_room_for_restored(0)?;
                self.allocate_for(key)?
            }
        };
        let shape = &self.shape;
        self.slabs.weights.fill(row, &mut self.scratch, |weights| {
            shape.fill_initial(key, weights);
            for (theirs, own) in moves {
                weights[own.clone()].copy_from_slice(&from.weights[theirs.clone()]);
            }
            for (spec, segment) in shape.spec.segments.iter().zip(&shape.segments) {
                if let Some(bounds) = spec.bounds {
                    let own = &mut weights[segment.weights.clone()];
                    own.iter_mut().for_each(|w| *w = w.clamp(bounds.low, bounds.high));
                }
            }
            shape.spec.dtype.round_nearest(&mut weights[..shape.width]);
        });
        let companion = self.slabs.companion.row_mut(row);
        shape.fill_initial_companion(companion, epoch);
        let meta = shape.meta(companion);
        shape.set_meta(companion, zillion_rows::row::Meta { count: from.count, ..meta });
        if let Some(changes) = &mut self.changes {
            changes.note(key);
        }
        Ok(true)
    }
}
