//! The rows of a trainer that makes several steps between two pushes.

use std::collections::HashMap;

use zillion_feature::{FeatureKey, MixedHasher, RowBuffer, TableId, TablePlan};
use zillion_rows::{OptimizerSpec, TableSpec};

use crate::error::{Error, Result};

/// The rows of a trainer between two pushes.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The number of groups of batches in the round so far.
    pub(super) groups: usize,
    /// The factor of the tables' learning rates in the first step of the round.
    pub(super) rate: f32,
    /// The number of rows of data that the trainer has trained on in the round.
    pub(super) data_rows: usize,
    /// The number of gradients of rows that were dropped in the round, because they are not finite.
    pub(super) dropped: u64,
    pub(super) tables: Vec<LocalRows>,
    /// The buffer of the last pull.
    pub(super) pulled: RowBuffer,
}

/// The rows of one table that a round has pulled, in the order of the first occurrences of their
/// keys.
#[derive(Debug, Default)]
pub(super) struct LocalRows {
    pub(super) place: HashMap<FeatureKey, u32, MixedHasher>,
    pub(super) keys: Vec<FeatureKey>,
    /// The number of occurrences of each key.
    counts: Vec<u32>,
    /// The floats of the rows, which move in each step.
    pub(super) values: Vec<f32>,
    /// The sums of the gradients of the rows.
    sums: Vec<f32>,
}

impl LocalRows {
    pub(super) fn clear(&mut self) {
        self.place.clear();
        self.keys.clear();
        self.counts.clear();
        self.values.clear();
        self.sums.clear();
    }

    /// Adds rows that were pulled.
    pub(super) fn insert(&mut self, keys: &[FeatureKey], values: &[f32]) {
        for &key in keys {
            self.place.insert(key, self.keys.len() as u32);
            self.keys.push(key);
            self.counts.push(0);
        }
        self.values.extend_from_slice(values);
        self.sums.resize(self.values.len(), 0.0);
    }

    /// Moves a row by its gradient, which has the `weight` in the sum. The rates are those of the
    /// floats of a row. Returns `false` if the gradient is dropped because it is not finite.
    pub(super) fn step(
        &mut self,
        row: usize,
        times: u32,
        gradient: &[f32],
        weight: f32,
        rates: &[f32],
    ) -> bool {
        self.counts[row] += times;
        if !gradient.iter().all(|g| g.is_finite()) {
            return false;
        }
        let range = row * gradient.len()..(row + 1) * gradient.len();
        let floats = self.values[range.clone()].iter_mut().zip(&mut self.sums[range]);
        for (((value, sum), &g), &rate) in floats.zip(gradient).zip(rates) {
            *sum += weight * g;
            *value -= rate * g;
        }
        true
    }

    /// Returns the plan of a push of all rows, and fills `values` with the sums of the gradients in
    /// the plan's order.
    pub(super) fn plan(
        &self,
        table: TableId,
        stride: usize,
        values: &mut [f32],
    ) -> Result<TablePlan> {
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        order.sort_by_key(|&row| self.keys[row].slot());
        for (to, &row) in values.chunks_exact_mut(stride.max(1)).zip(&order) {
            to.copy_from_slice(&self.sums[row * stride..(row + 1) * stride]);
        }
        let keys = order.iter().map(|&row| self.keys[row]).collect();
        let counts: Vec<u32> = order.iter().map(|&row| self.counts[row].max(1)).collect();
        plan_of(table, keys, &counts)
    }
}

/// Makes the plan of a table's keys, which are sorted by slot.
pub(super) fn plan_of(table: TableId, keys: Vec<FeatureKey>, counts: &[u32]) -> Result<TablePlan> {
    TablePlan::checked(table, keys, Some(counts))
        .map_err(|problem| Error::Exchange { problem: problem.to_string() })
}

/// Returns the learning rate of each float of a row, for tables that move by plain SGD.
pub(super) fn rates_of(spec: &TableSpec, stride: usize, scale: f32) -> Vec<f32> {
    let mut rates = Vec::with_capacity(stride);
    for segment in &spec.segments {
        let lr = match segment.optimizer {
            OptimizerSpec::Sgd { lr } => lr * scale,
            _ => 0.0,
        };
        rates.resize(rates.len() + segment.dim, lr);
    }
    rates.resize(stride, 0.0);
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_rows_move_by_sgd_and_are_pushed_in_the_order_of_slots() {
        let keys = [FeatureKey(7 << 52), FeatureKey(3 << 52)];
        let mut rows = LocalRows::default();
        rows.insert(&keys, &[1.0, 2.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0]);
        let rates = [0.5, 0.25, 0.0, 0.0];
        assert!(rows.step(0, 2, &[1.0, 4.0, 0.0, 0.0], 1.0, &rates));
        assert!(rows.step(0, 1, &[1.0, 4.0, 0.0, 0.0], 0.5, &rates));
        // The gradient of the second row is dropped, but its key has occurred.
        assert!(!rows.step(1, 1, &[f32::NAN, 1.0, 0.0, 0.0], 1.0, &rates));
        assert_eq!(rows.values, [0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 0.0, 0.0]);
        let mut sums = [9.0; 8];
        let plan = rows.plan(TableId(0), 4, &mut sums).unwrap();
        assert_eq!(plan.keys, [keys[1], keys[0]]);
        assert_eq!(plan.occurrences.offsets, [0, 1, 4]);
        assert_eq!(sums, [0.0, 0.0, 0.0, 0.0, 1.5, 6.0, 0.0, 0.0]);
        rows.clear();
        assert!(rows.plan(TableId(0), 4, &mut []).unwrap().keys.is_empty());
    }
}
