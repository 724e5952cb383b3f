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

use std::sync::Arc;

use zillion_feature::{FeatureKey, LookupPlan, TableId, TablePlan};
use zillion_nn::StepSeed;
use zillion_ps::{Arrival, PullOptions};

use super::Run;
use super::accumulate::seed_of_batch;
use super::joint::Group;
use super::round::{LocalRows, plan_of, rates_of};
use super::rounding::round_gradients;
use crate::error::{Error, Result};
use crate::job::Mode;
use crate::pipeline::Planned;
use crate::profile::Stage;

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
        let own = self.own_batch(group);
        self.stage(Stage::Pull, |run| {
            let Some(own) = own else { return Ok(()) };
            run.pull_missing(own)?;
            run.profile_batch(own);
            Ok::<_, Error>(())
        })?;
        // A group whose pull fails may be done again after a loss.
        self.buffers.round.groups += 1;
        let Some(own) = own else { return Ok(None) };
        let mut statistics = Vec::new();
        let loss =
            self.stage(Stage::Model, |run| run.forward_and_backward(own, Some(&mut statistics)))?;
        self.buffers.inspection.set_table_norms(&self.buffers.grads);
        self.buffers.apart.add_loss(self.own_step(), loss, own.batch.rows);
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
        let Self { job, buffers, counts, .. } = self;
        counts.dropped.resize(job.tables.len(), 0);
        let weight = rate / buffers.round.rate;
        let tables = own.plan.tables.iter().zip(&buffers.grads.tables);
        for ((table, grads), local) in tables.zip(&mut buffers.round.tables) {
            let scale = if frozen.contains(&table.table) { 0.0 } else { rate };
            let rates = rates_of(&job.tables[table.table.index()], grads.stride, scale);
            let offsets = &table.occurrences.offsets;
            for (index, key) in table.keys.iter().enumerate() {
                let times = offsets[index + 1] - offsets[index];
                let row = local.place[key] as usize;
                if !local.step(row, times, grads.row(index), weight, &rates) {
                    buffers.round.dropped += 1;
                    counts.dropped[table.table.index()] += 1;
                }
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
        if !self.job.train.wire.is_f32() {
            let seed = seed_of_batch(self.job.seed, self.options.trainer.index as u64);
            let seed = StepSeed { seed, step: self.position.step };
            round_gradients(&plan, &mut buffers.grads, seed);
        }
        let plan = (round.data_rows > 0).then(|| Arc::new(plan));
        client.send(plan.as_ref(), &buffers.grads, arrival)?;
        if round.dropped > 0 {
            let dropped = round.dropped;
            tracing::warn!(dropped, "gradients of rows are not finite and are dropped");
        }
        round.tables.iter_mut().for_each(LocalRows::clear);
        (round.groups, round.data_rows, round.dropped) = (0, 0, 0);
        buffers.apart.pushes += 1;
        buffers.apart.meetings.owes_round = false;
        match client.take_shared()? {
            Some(shared) => self.take_over(&shared),
            None => Ok(()),
        }
    }
}
