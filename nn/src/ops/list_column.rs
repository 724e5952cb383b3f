//! List columns: the values that are computed once in each step from a column with lists or
//! weights.

use std::ops::Range;

use zillion_feature::Pooling;

use crate::graph::op::Gather;
use crate::inputs::ColumnView;

/// The values that are computed once in each step from a column that has lists or weights.
#[derive(Debug, Default)]
pub(crate) struct ListColumn {
    /// The row of the batch that each value belongs to. Empty if each row has one value, or if
    /// there is no backward pass.
    pub(crate) row_of: Vec<u32>,
    /// The place of each value in the buffers of the lanes. The upper 8 bits are the index of the
    /// lane, and the lower 24 bits are the position in the lane. Empty if the places are not
    /// needed, or if each row has one value.
    pub(crate) locate: Vec<u32>,
    /// The factor of each value, for each pooling of the column. An empty vector means that all
    /// factors are 1.
    pub(crate) factors: Vec<(Pooling, Vec<f32>)>,
}

impl ListColumn {
    /// Returns the capacity of the column's vectors in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let words = self.row_of.capacity() + self.locate.capacity();
        let factors: usize = self.factors.iter().map(|(_, factors)| factors.capacity()).sum();
        words * size_of::<u32>() + factors * size_of::<f32>()
    }

    #[inline(always)]
    pub(crate) fn factors_of(&self, gather: &Gather) -> &[f32] {
        let pooling = factor_kind(gather.pooling);
        self.factors.iter().find(|(p, _)| *p == pooling).map_or(&[], |(_, f)| f.as_slice())
    }

    pub(crate) fn clear(&mut self) {
        self.row_of.clear();
        self.locate.clear();
        // The vectors are cleared and not dropped, so that the next step reuses their memory.
        self.factors.iter_mut().for_each(|(_, factors)| factors.clear());
    }

    /// Stores the row that each value belongs to.
    pub(crate) fn set_rows(&mut self, column: &ColumnView<'_>, rows: usize) {
        if column.offsets.is_some() {
            self.row_of.reserve(column.inverse.len());
            for row in 0..rows {
                let values = column.values_of(row).len();
                self.row_of.extend(std::iter::repeat_n(row as u32, values));
            }
        }
    }

    /// Stores the place of each value in the lanes. `lanes` gives the rows of each lane.
    pub(crate) fn set_places(
        &mut self,
        column: &ColumnView<'_>,
        lanes: impl Iterator<Item = Range<usize>>,
    ) {
        if column.offsets.is_some() {
            self.locate.reserve(column.inverse.len());
            for (lane, rows) in lanes.enumerate() {
                let values = column.values_before(rows.end) - column.values_before(rows.start);
                self.locate.extend((0..values as u32).map(|local| (lane as u32) << 24 | local));
            }
        }
    }

    /// Computes the factors of values for one pooling. For a sum, the factor is the weight of the
    /// value. For a mean, the weight is divided by the sum of the list's weights. For sqrtn, the
    /// weight is divided by the root of the sum of the squared weights (as in TensorFlow). If this
    /// divisor is zero, all factors of the list are zero.
    pub(crate) fn set_factors(&mut self, column: &ColumnView<'_>, pooling: Pooling, rows: usize) {
        let averaged = matches!(pooling, Pooling::Mean | Pooling::Sqrtn);
        if column.weights.is_none() && (!averaged || column.offsets.is_none()) {
            return;
        }
        let index = self.factors.iter().position(|(p, _)| *p == pooling).unwrap_or_else(|| {
            self.factors.push((pooling, Vec::new()));
            self.factors.len() - 1
        });
        let factors = &mut self.factors[index].1;
        if !factors.is_empty() {
            return;
        }
        factors.reserve(column.inverse.len());
        for row in 0..rows {
            let values = column.values_of(row);
            let count = values.len() as f32;
            let weights = column.weights.map(|w| &w[values.clone()]);
            let sum = |f: fn(f32) -> f32| weights.map_or(count, |w| w.iter().map(|&w| f(w)).sum());
            let divisor = match pooling {
                Pooling::Mean => sum(|w| w),
                Pooling::Sqrtn => sum(|w| w * w).sqrt(),
                Pooling::Sum | Pooling::Max => 1.0,
            };
            let by = if divisor == 0.0 { 0.0 } else { 1.0 / divisor };
            match weights {
                Some(weights) => factors.extend(weights.iter().map(|w| w * by)),
                None => factors.extend(std::iter::repeat_n(by, values.len())),
            }
        }
    }
}

/// Returns the pooling whose factors a gather uses. Without pooling, these are the factors of a
/// sum: the factor of a value is its weight.
#[inline(always)]
pub(crate) fn factor_kind(pooling: Option<Pooling>) -> Pooling {
    pooling.unwrap_or(Pooling::Sum)
}
