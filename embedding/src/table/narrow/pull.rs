//! Reading rows of both widths.

use zillion_feature::FeatureKey;

use super::super::{Absent, BLOCK, Table, UNKNOWN, in_blocks};
use super::is_narrow;
use crate::error::Result;

impl Table {
    /// What [`Table::read`] does in a table that has narrow rows.
    pub(in crate::table) fn read_widths(
        &self,
        keys: &[FeatureKey],
        out: &mut [f32],
        mut counts: Option<&mut [u32]>,
        absent: Absent,
    ) -> Result<u64> {
        let stride = self.shape.stride();
        let wants_counts = counts.is_some();
        let mut rows = [[UNKNOWN; BLOCK]; 2];
        let mut missing = 0;
        in_blocks(
            &mut rows,
            keys.len(),
            |_, block| keys[block].iter().for_each(|&key| self.index.prefetch(key)),
            |rows, block, half| {
                self.find(&keys[block], &mut rows[half], |row| {
                    self.prefetch_weights(row);
                    if wants_counts {
                        self.prefetch_companion(row);
                    }
                });
                Ok(())
            },
            |rows, block, half| {
                let targets =
                    out[block.start * stride..block.end * stride].chunks_exact_mut(stride);
                for ((target, &row), i) in targets.zip(&rows[half]).zip(block) {
                    if row != UNKNOWN {
                        self.read_row(keys[i], row, target);
                    }
                    let count = counts.as_deref_mut().map(|counts| &mut counts[i]);
                    missing += self.complete(keys[i], row, target, count, absent);
                }
            },
        )?;
        Ok(missing)
    }

    /// One row, padding included; where it is narrow, in its initial row.
    fn read_row(&self, key: FeatureKey, row: u32, target: &mut [f32]) {
        let weights = self.weights_of(row);
        if is_narrow(row) {
            self.shape.fill_initial(key, target);
            let mut from = 0;
            for segment in self.shape.layout.narrow.iter().flatten() {
                let part = weights.part(from..from + segment.dim);
                part.widen(&mut target[segment.offset..segment.offset + segment.dim]);
                from += segment.dim;
            }
        } else {
            weights.widen(&mut target[..self.shape.width]);
            target[self.shape.width..].fill(0.0);
        }
    }
}
