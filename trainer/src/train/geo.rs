//! Local steps between two pushes (`train.mode = "geo"`), for trainers that are far from their
//! servers.
//!
//! A trainer makes `train.local_steps` steps on rows and dense parameters of its own, which a
//! *round* holds. It pulls a row once in a round. At the end of the round it pushes the sum of the
//! changes, divided by the number of trainers, and takes over the dense parameters that the
//! trainers share. The rows of tables move by plain SGD, whose changes are `-lr * g`. So the sum
//! of the gradients stands for the sum of the changes, and the servers apply it as the gradient of
//! one step.
//!
//! # Invariants
//! All trainers end their rounds after the same groups of batches. A round ends before the trainers
//! meet, so a checkpoint holds no part of a round.

use std::collections::HashMap;
use std::sync::Arc;

use zillion_feature::{FeatureKey, LookupPlan, MixedHasher, RowBuffer, TableId, TablePlan};
use zillion_ps::{Arrival, PullOptions};
use zillion_rows::{OptimizerSpec, TableSpec};

use super::Run;
use super::joint::Group;
use crate::error::{Error, Result};
use crate::job::Mode;
use crate::pipeline::Planned;
use crate::profile::Stage;

/// The rows of a trainer between two pushes.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The number of groups of batches in the round so far.
    groups: usize,
    /// The factor of the tables' learning rates in the first step of the round.
    rate: f32,
    /// The number of rows of data that the trainer has trained on in the round.
    data_rows: usize,
    tables: Vec<LocalRows>,
    /// The buffer of the last pull.
    pulled: RowBuffer,
}

/// The rows of one table that a round has pulled, in the order of the first occurrences of their
/// keys.
#[derive(Debug, Default)]
struct LocalRows {
    place: HashMap<FeatureKey, u32, MixedHasher>,
    keys: Vec<FeatureKey>,
    /// The number of occurrences of each key.
    counts: Vec<u32>,
    /// The floats of the rows, which move in each step.
    values: Vec<f32>,
    /// The sums of the gradients of the rows.
    sums: Vec<f32>,
}

impl LocalRows {
    fn clear(&mut self) {
        self.place.clear();
        self.keys.clear();
        self.counts.clear();
        self.values.clear();
        self.sums.clear();
    }

    /// Adds rows that were pulled.
    fn insert(&mut self, keys: &[FeatureKey], values: &[f32]) {
        for &key in keys {
            self.place.insert(key, self.keys.len() as u32);
            self.keys.push(key);
            self.counts.push(0);
        }
        self.values.extend_from_slice(values);
        self.sums.resize(self.values.len(), 0.0);
    }

    /// Moves a row by its gradient, which has the `weight` in the sum. The rates are those of the
    /// floats of a row. A gradient that is not finite is dropped.
    fn step(&mut self, row: usize, times: u32, gradient: &[f32], weight: f32, rates: &[f32]) {
        self.counts[row] += times;
        if !gradient.iter().all(|g| g.is_finite()) {
            return;
        }
        let range = row * gradient.len()..(row + 1) * gradient.len();
        let floats = self.values[range.clone()].iter_mut().zip(&mut self.sums[range]);
        for (((value, sum), &g), &rate) in floats.zip(gradient).zip(rates) {
            *sum += weight * g;
            *value -= rate * g;
        }
    }

    /// Returns the plan of a push of all rows, and fills `values` with the sums of the gradients in
    /// the plan's order.
    fn plan(&self, table: TableId, stride: usize, values: &mut [f32]) -> Result<TablePlan> {
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
fn plan_of(table: TableId, keys: Vec<FeatureKey>, counts: &[u32]) -> Result<TablePlan> {
    TablePlan::checked(table, keys, Some(counts))
        .map_err(|problem| Error::Exchange { problem: problem.to_string() })
}

/// Returns the learning rate of each float of a row, for tables that move by plain SGD.
fn rates_of(spec: &TableSpec, stride: usize, scale: f32) -> Vec<f32> {
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

impl Run {
    /// Returns whether trainers make several steps between two pushes.
    pub(super) fn is_geo(&self) -> bool {
        self.job.train.mode == Mode::Geo
    }

    /// Trains on this trainer's batch of a group, and changes only this trainer's own rows and
    /// dense parameters. Returns the batch's mean loss before the step, or `None` if the group has
    /// no batch for this trainer.
    pub(super) fn train_locally(&mut self, group: &Group) -> Result<Option<f64>> {
        let (_, rate) = self.rate_scales(self.position.step + 1);
        if self.buffers.round.groups == 0 {
            self.begin_step()?;
            self.model.copy_dense_to(&mut self.buffers.apart.before);
            self.buffers.round.rate = rate;
        }
        self.buffers.round.groups += 1;
        let Some(own) = self.own_batch(group) else { return Ok(None) };
        self.stage(Stage::Pull, |run| {
            run.pull_missing(own)?;
            run.profile_batch(own);
            Ok::<_, Error>(())
        })?;
        let mut statistics = Vec::new();
        let loss =
            self.stage(Stage::Model, |run| run.forward_and_backward(own, Some(&mut statistics)))?;
        self.buffers.inspection.set_table_norms(&self.buffers.grads);
        self.buffers.apart.loss_sum += loss * own.batch.rows as f64;
        if !loss.is_finite() || self.gradient_scale(None)?.is_none() {
            self.counts.skipped_steps += u64::from(loss.is_finite());
            return Ok(Some(loss));
        }
        self.stage(Stage::Optimizer, |run| {
            run.optimize_dense(&statistics)?;
            run.move_rows(own, rate)
        })?;
        Ok(Some(loss))
    }

    /// Fills the buffer with the rows of a batch. The rows that the round does not have yet are
    /// pulled.
    fn pull_missing(&mut self, own: &Planned) -> Result<()> {
        let plan = &own.plan;
        let round = &mut self.buffers.round;
        round.tables.resize_with(plan.tables.len(), LocalRows::default);
        let mut missing = LookupPlan { rows: plan.rows, tables: Vec::new(), columns: Vec::new() };
        for (table, local) in plan.tables.iter().zip(&round.tables) {
            let is_missing = |key: &&FeatureKey| !local.place.contains_key(*key);
            let keys: Vec<FeatureKey> = table.keys.iter().filter(is_missing).copied().collect();
            let counts = vec![1; keys.len()];
            missing.tables.push(plan_of(table.table, keys, &counts)?);
        }
        if missing.tables.iter().any(|table| !table.keys.is_empty()) {
            let missing = Arc::new(missing);
            let buffer = std::mem::take(&mut round.pulled);
            let pulled = self.client.pull(&missing, PullOptions::default(), buffer)?;
            let round = &mut self.buffers.round;
            let rows = missing.tables.iter().zip(&pulled.tables);
            for ((table, rows), local) in rows.zip(&mut round.tables) {
                local.insert(&table.keys, &rows.values);
            }
            round.pulled = pulled;
        }
        let layouts = self.client.layouts();
        let stride = |table: &TablePlan| layouts[table.table.index()].stride;
        let rows = &mut self.buffers.rows;
        rows.reshape(plan.tables.iter().map(|table| (table.keys.len(), stride(table))));
        let tables = plan.tables.iter().zip(&self.buffers.round.tables);
        for ((table, local), rows) in tables.zip(&mut rows.tables) {
            let stride = rows.stride;
            for (key, row) in table.keys.iter().zip(rows.values.chunks_exact_mut(stride.max(1))) {
                let at = local.place[key] as usize * stride;
                row.copy_from_slice(&local.values[at..at + stride]);
            }
        }
        Ok(())
    }

    /// Moves this trainer's rows by the gradients of a batch.
    fn move_rows(&mut self, own: &Planned, rate: f32) -> Result<()> {
        let frozen = self.job.frozen_tables()?;
        let Self { job, buffers, .. } = self;
        let weight = rate / buffers.round.rate;
        let tables = own.plan.tables.iter().zip(&buffers.grads.tables);
        for ((table, grads), local) in tables.zip(&mut buffers.round.tables) {
            let scale = if frozen.contains(&table.table) { 0.0 } else { rate };
            let rates = rates_of(&job.tables[table.table.index()], grads.stride, scale);
            let offsets = &table.occurrences.offsets;
            for (index, key) in table.keys.iter().enumerate() {
                let times = offsets[index + 1] - offsets[index];
                let row = local.place[key] as usize;
                local.step(row, times, grads.row(index), weight, &rates);
            }
        }
        buffers.round.data_rows += own.batch.rows;
        Ok(())
    }

    /// Returns whether the round has all its steps.
    pub(super) fn is_round_full(&self) -> bool {
        let most = self.job.train.local_steps.map_or(1, |steps| steps.get());
        self.buffers.round.groups >= most
    }

    /// Ends the round: pushes the changes of this trainer, and takes over the dense parameters that
    /// the trainers share.
    pub(super) fn end_round(&mut self) -> Result<()> {
        let trainers = self.options.trainer.count as f32;
        let dense = match self.is_joint() {
            true => self.dense_change(1.0 / trainers),
            false => Vec::new(),
        };
        let is_stopping = self.wants_stop();
        let arrival = Arrival { scale: 1.0 / trainers, dense, is_stopping };
        let Self { client, buffers, .. } = self;
        let layouts = client.layouts();
        let round = &mut buffers.round;
        let shape = |(local, layout): (&LocalRows, &zillion_rows::TableLayout)| {
            (local.keys.len(), layout.stride)
        };
        buffers.grads.reshape(round.tables.iter().zip(layouts).map(shape));
        let mut tables = Vec::new();
        for ((index, local), rows) in (0..).zip(&round.tables).zip(&mut buffers.grads.tables) {
            tables.push(local.plan(TableId(index), rows.stride, &mut rows.values)?);
        }
        let plan = LookupPlan { rows: round.data_rows, tables, columns: Vec::new() };
        let plan = (round.data_rows > 0).then(|| Arc::new(plan));
        client.send(plan.as_ref(), &buffers.grads, arrival)?;
        round.tables.iter_mut().for_each(LocalRows::clear);
        (round.groups, round.data_rows) = (0, 0);
        buffers.apart.pushes += 1;
        match client.take_shared()? {
            Some(shared) => self.take_over(&shared),
            None => Ok(()),
        }
    }
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
        rows.step(0, 2, &[1.0, 4.0, 0.0, 0.0], 1.0, &rates);
        rows.step(0, 1, &[1.0, 4.0, 0.0, 0.0], 0.5, &rates);
        // The gradient of the second row is dropped, but its key has occurred.
        rows.step(1, 1, &[f32::NAN, 1.0, 0.0, 0.0], 1.0, &rates);
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
