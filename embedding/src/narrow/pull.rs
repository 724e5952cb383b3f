//! The reading of rows in tables that have full and narrow rows.

use zillion_feature::FeatureKey;

use crate::index::Entry;
use crate::table::Table;

impl Table {
    /// Copies one full or narrow row to `target`, including the padding. The missing floats of a
    /// narrow row are copied from its initial row.
    pub(crate) fn copy_of_either_width(&self, key: FeatureKey, entry: Entry, target: &mut [f32]) {
        let weights = self.weights_of(entry);
        if entry.is_narrow() {
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
