//! The sums over full and narrow rows. A narrow row adds only the floats that it has.

use zillion_feature::FeatureKey;

use crate::eviction::permits::Permits;
use crate::index::Entry;
use crate::shape::TableShape;
use crate::table::Table;
use crate::table::push::Times;
use crate::table::push::is_finite;
use crate::table::sweep::{regulariser, segment_square};

/// The scratch memory for the floats of a row and of its gradient.
#[derive(Default)]
struct Scratch {
    weights: Vec<f32>,
    raw: Vec<f32>,
}

impl Table {
    /// Returns the sum of [`Table::run_squares`] in a table that has narrow rows. A push creates
    /// narrow rows, so the gradient of a key without a row adds only the floats of a narrow row.
    pub(crate) fn run_squares_of_widths(
        &self,
        keys: &[FeatureKey],
        gradients: &[f32],
        occurrences: Times<'_>,
        permits: &Permits,
        step: u32,
    ) -> f64 {
        let (stride, width) = (self.shape.stride(), self.shape.width);
        let Some(narrow) = self.shape.narrow.as_deref() else { return 0.0 };
        let mut scratch = Scratch::default();
        let mut sum = 0.0;
        for (i, (&key, raw)) in keys.iter().zip(gradients.chunks_exact(stride)).enumerate() {
            if !is_finite(raw, width) {
                continue;
            }
            let row = self.index.get(key);
            let is_refused = || {
                self.waits(key, || occurrences.of(i), step) || !permits.has(occurrences.first + i)
            };
            if row.is_none() && is_refused() {
                continue;
            }
            let Scratch { weights, raw: gathered } = &mut scratch;
            let shape = self.floats_of_widths(key, row, weights);
            let raw = if row.is_some_and(|entry| !entry.is_narrow()) {
                raw
            } else {
                gathered.resize(shape.stride(), 0.0);
                narrow.gather(raw, gathered);
                gathered
            };
            let squares =
                shape.segments.iter().map(|s| segment_square(Some(raw), weights, s, s.l2));
            sum += squares.sum::<f64>();
        }
        sum
    }

    /// Returns the loss of [`Table::run_regulariser`] in a table that has narrow rows.
    pub(crate) fn run_regulariser_of_widths(&self, keys: &[FeatureKey]) -> f64 {
        let mut weights = Vec::new();
        let mut sum = 0.0;
        for &key in keys {
            let row = self.index.get(key);
            if row.is_none() && self.candidates.is_some() {
                continue;
            }
            let shape = self.floats_of_widths(key, row, &mut weights);
            let pulled = shape.segments.iter().filter(|s| !s.l2_is_whole && s.l2 != 0.0);
            sum += pulled.map(|s| regulariser(&weights, s)).sum::<f64>();
        }
        sum
    }

    /// Writes the floats that the row of a key has, or would have after its creation. Returns the
    /// shape of these floats.
    fn floats_of_widths(
        &self,
        key: FeatureKey,
        row: Option<Entry>,
        weights: &mut Vec<f32>,
    ) -> &TableShape {
        let shape = match (row, self.shape.narrow.as_deref()) {
            (Some(row), _) => self.companion_of(row).0,
            (None, Some(narrow)) => &narrow.shape,
            (None, None) => &self.shape,
        };
        weights.resize(shape.stride(), 0.0);
        match row {
            Some(row) => self.weights_of(row).widen(&mut weights[..shape.width]),
            None => shape.fill_initial(key, weights),
        }
        shape
    }
}
