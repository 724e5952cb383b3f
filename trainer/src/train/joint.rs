//! A step of several trainers, each of which trains one batch of the step.
//!
//! The trainers take the batches of the data in turn. Every trainer reads all batches, and plans
//! and trains only its own. So all trainers know the position in the data and the end of the epoch.
//! At the end of an epoch, a step may have fewer batches than there are trainers. A trainer without
//! a batch then takes part with an empty plan.
//!
//! In the mode `hybrid`, the trainers exchange their dense gradients in the same way, but each
//! trainer sends its gradients of rows to the servers, which apply them when they arrive.
//!
//! # Invariants
//! In the mode `sync`, a step of T trainers gives the bytes of a step of one trainer with
//! `train.accumulate = T`. All
//! trainers have the same dense parameters, optimizer state, running statistics and position after
//! each step. They take the same decisions, because decisions depend only on values that all of
//! them have.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use zillion_feature::{LookupPlan, Occurrences, TableId, TablePlan};
use zillion_ps::{Contribution, Exchanged};

use super::Run;
use super::epoch::EpochBatches;
use super::model::Model;
use super::step::{RowStep, StepBuffers};
use super::window::Window;
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::pipeline::Planned;
use crate::profile::Stage;

/// The batches of one step, and the error that came after them.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) batches: Vec<Planned>,
    pub(super) error: Option<Error>,
}

impl Group {
    /// Returns the share of the group's rows that a batch has.
    fn share(&self, batch: &Planned) -> f32 {
        let rows: usize = self.batches.iter().map(|planned| planned.batch.rows).sum();
        batch.batch.rows as f32 * (1.0 / rows.max(1) as f32)
    }
}

/// The values of one batch, or of the batches since a meeting, that every trainer needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct BatchNote {
    /// The mean loss of the batch, or the sum of the losses since the trainers met.
    pub(super) loss: f64,
    /// The step from which on the loss is not finite; 0 if it is finite.
    pub(super) lost_at: u64,
    /// Whether the trainer of the batch was stopped.
    pub(super) is_stopped: bool,
    /// The part by which the batch moves the running statistics.
    pub(super) statistics: Vec<f32>,
}

impl BatchNote {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.loss.to_le_bytes().to_vec();
        bytes.extend(self.lost_at.to_le_bytes());
        bytes.push(u8::from(self.is_stopped));
        bytes.extend(self.statistics.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (loss, rest) = bytes.split_first_chunk::<8>()?;
        let (lost_at, rest) = rest.split_first_chunk::<8>()?;
        let (&stopped, rest) = rest.split_first()?;
        let (values, more) = rest.as_chunks::<4>();
        more.is_empty().then(|| Self {
            loss: f64::from_le_bytes(*loss),
            lost_at: u64::from_le_bytes(*lost_at),
            is_stopped: stopped != 0,
            statistics: values.iter().map(|&value| f32::from_le_bytes(value)).collect(),
        })
    }
}

impl Run {
    /// Returns whether several trainers train the run together.
    pub(super) fn is_joint(&self) -> bool {
        self.options.trainer.count > 1
    }

    /// Returns whether the run must end after the present step. With several trainers, the trainers
    /// decide this together in each step.
    pub(super) fn is_stopped(&self) -> bool {
        match self.is_joint() {
            true => self.buffers.joint.is_stopped,
            false => self.is_stop_wanted(),
        }
    }

    pub(super) fn is_stop_wanted(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }

    /// Trains on the batches up to the end of the epoch, together with the other trainers. Returns
    /// whether the run was stopped and must end now.
    pub(super) fn train_groups(
        &mut self,
        batches: &mut EpochBatches,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<bool> {
        self.profile_next_batch();
        let mut group = self.next_group(batches);
        loop {
            if group.batches.is_empty() {
                return group.error.map_or(Ok(false), Err);
            }
            let is_ahead = self.client.looks_ahead() && group.error.is_none();
            let following = is_ahead.then(|| self.next_group(batches));
            let next_plan = following.as_ref().and_then(|next| self.own_batch(next));
            let next_plan = next_plan.map(|planned| planned.plan.clone());
            let (before, began) = (self.position.cursor.row, Instant::now());
            let losses = self.train_group(&group, next_plan.as_ref())?;
            self.count_first_step();
            self.count_step(began, before, &group.batches);
            self.stage(Stage::Other, |run| run.observe_group(&group, &losses, window, observer))?;
            self.profile_next_batch();
            if let Some(error) = group.error {
                return Err(error);
            }
            group = match following {
                Some(following) => following,
                None => self.next_group(batches),
            };
            if group.batches.is_empty() && group.error.is_some() {
                continue;
            }
            if self.work_between_steps(group.batches.is_empty(), observer)? {
                return Ok(true);
            }
        }
    }

    /// Waits for the batches of the next step. The group is empty at the end of the epoch.
    pub(super) fn next_group(&mut self, batches: &mut EpochBatches) -> Group {
        let mut group = Group::default();
        while group.batches.len() < self.options.trainer.count && group.error.is_none() {
            match self.next_batch(batches) {
                Ok(Some(planned)) => group.batches.push(planned),
                Ok(None) => break,
                Err(error) => group.error = Some(error),
            }
        }
        group
    }

    /// Returns this trainer's batch of a group, or `None` if the group has none for it.
    pub(super) fn own_batch<'a>(&self, group: &'a Group) -> Option<&'a Planned> {
        group.batches.get(self.options.trainer.index)
    }

    /// Trains on the batches of a step, together with the other trainers. Returns the mean loss of
    /// each batch before the step.
    fn train_group(&mut self, group: &Group, next: Option<&Arc<LookupPlan>>) -> Result<Vec<f64>> {
        let own = self.own_batch(group);
        let is_sync = self.job.train.mode.is_sync();
        let plan = match own {
            Some(own) => Some(own.plan.clone()),
            // A synchronous step has a part of every trainer.
            None => is_sync.then(|| Arc::new(self.empty_plan())),
        };
        self.stage(Stage::Pull, |run| {
            run.begin_step()?;
            plan.iter().try_for_each(|plan| run.pull(plan, next))?;
            own.into_iter().for_each(|own| run.profile_batch(own));
            Ok::<_, Error>(())
        })?;
        let mine = match own {
            Some(own) => self.stage(Stage::Model, |run| run.compute_part(own))?,
            None => {
                self.clear_gradients();
                Contribution::default()
            }
        };
        let notes = self.stage(Stage::Staging, |run| {
            run.buffers.inspection.set_table_norms(&run.buffers.grads);
            if let Some(plan) = plan.as_ref().filter(|_| is_sync) {
                run.stage_rows(plan)?;
            }
            let exchanged = run.client.exchange(mine)?;
            run.take_exchanged(group, exchanged)
        })?;
        let losses: Vec<f64> = notes.iter().map(|note| note.loss).collect();
        if let Some(&loss) = losses.iter().find(|loss| !loss.is_finite()) {
            // Every trainer ends with the same error. The outcome of the call does not matter,
            // because another trainer may have left already.
            if is_sync {
                drop(self.client.discard());
            }
            return self.check_loss(loss).map(|_| losses);
        }
        match self.gradient_scale(None)? {
            Some(scale) if is_sync => self.push_and_optimize(RowStep::ApplyStaged, scale)?,
            Some(scale) => {
                let share = own.map_or(0.0, |own| group.share(own));
                self.push_and_optimize(RowStep::Send { plan: plan.as_ref(), share }, scale)?;
            }
            None => self.skip_step()?,
        }
        group.batches.iter().for_each(|planned| self.end_batch(planned));
        self.end_step();
        Ok(losses)
    }

    /// Runs the training graph on this trainer's batch. Returns the trainer's part of the step.
    fn compute_part(&mut self, own: &Planned) -> Result<Contribution> {
        let mut statistics = Vec::new();
        // A loss that is not finite ends the run after the exchange, so that all trainers know it.
        let loss = self.forward_and_backward(own, Some(&mut statistics))?;
        let lost_at = if loss.is_finite() { 0 } else { self.position.step + 1 };
        let note = BatchNote { loss, lost_at, is_stopped: self.is_stop_wanted(), statistics };
        let Self { model, buffers, .. } = self;
        buffers.joint.collect(&model.executor);
        Ok(Contribution {
            rows: own.batch.rows,
            dense: std::mem::take(&mut buffers.joint.gradients),
            note: note.to_bytes(),
        })
    }

    /// Takes the parts of all trainers: keeps the gradients, moves the running statistics, and
    /// returns the note of each batch.
    fn take_exchanged(&mut self, group: &Group, exchanged: Exchanged) -> Result<Vec<BatchNote>> {
        let Exchanged { rows, dense, notes } = exchanged;
        let expected: u64 = group.batches.iter().map(|planned| planned.batch.rows as u64).sum();
        if rows != expected || notes.len() != self.options.trainer.count {
            return Err(Error::Exchange {
                problem: format!(
                    "the step has {rows} rows of {} trainers, but this trainer has read {expected} \
                     rows for {} trainers",
                    notes.len(),
                    self.options.trainer.count
                ),
            });
        }
        let notes = notes.iter().take(group.batches.len()).map(|bytes| {
            BatchNote::from_bytes(bytes).ok_or_else(|| Error::Exchange {
                problem: "the note of a batch cannot be read".to_owned(),
            })
        });
        let notes = notes.collect::<Result<Vec<_>>>()?;
        let Self { model: Model { executor, params, .. }, buffers, .. } = self;
        let StepBuffers { joint, .. } = buffers;
        joint.keep(dense, executor)?;
        joint.is_stopped |= notes.iter().any(|note| note.is_stopped);
        for note in &notes {
            executor.cpu()?.apply_statistics(params, &note.statistics)?;
        }
        Ok(notes)
    }

    /// Adds a step to the figures of the epoch, and reports them a few times a second.
    fn observe_group(
        &mut self,
        group: &Group,
        losses: &[f64],
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let step = self.step_of_last_batch();
        for (planned, &loss) in group.batches.iter().zip(losses) {
            self.add_loss(planned, (step, loss), window);
        }
        if let Some(own) = self.own_batch(group) {
            window.add_predictions(&self.batch_logits(), &own.batch);
            let values = (step, losses[self.options.trainer.index]);
            self.report_step_values(own, values, observer);
            self.buffers.last_plan = Some(own.plan.clone());
        }
        self.report_progress(window, observer)
    }

    /// Waits until every trainer has come to this call. Trainers do this in a step without batches,
    /// which is not counted.
    pub(super) fn wait_for_trainers(&mut self) -> Result<()> {
        if !self.job.train.mode.is_sync() {
            self.client.exchange(Contribution::default())?;
            return Ok(());
        }
        let plan = Arc::new(self.empty_plan());
        self.begin_step()?;
        self.pull(&plan, None)?;
        self.clear_gradients();
        self.stage_rows(&plan)?;
        self.client.exchange(Contribution::default())?;
        Ok(self.client.discard()?)
    }

    /// Makes the plan of a trainer without a batch, which has no rows and no keys.
    fn empty_plan(&self) -> LookupPlan {
        let tables = (0..self.job.tables.len()).map(|table| TablePlan {
            table: TableId(table as u16),
            keys: Vec::new(),
            slots: Vec::new(),
            occurrences: Occurrences { offsets: vec![0], positions: Vec::new() },
        });
        LookupPlan { rows: 0, tables: tables.collect(), columns: Vec::new() }
    }

    /// Resets the gradients of rows to those of a trainer without a batch.
    fn clear_gradients(&mut self) {
        let grads = &mut self.buffers.grads;
        grads.reshape(self.client.layouts().iter().map(|layout| (0, layout.stride)));
        for (rows, spec) in grads.tables.iter_mut().zip(&self.job.tables) {
            rows.uses = spec.statistics.as_ref().map(|_| Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_back_and_a_cut_one_does_not() {
        let statistics = vec![1.0, -0.0, 3.5];
        let note = BatchNote { loss: 0.25, lost_at: 1 << 40, is_stopped: true, statistics };
        let bytes = note.to_bytes();
        assert_eq!(BatchNote::from_bytes(&bytes), Some(note));
        assert_eq!(BatchNote::from_bytes(&bytes[..bytes.len() - 1]), None);
        assert_eq!(BatchNote::from_bytes(&bytes[..16]), None);
        assert_eq!(BatchNote::from_bytes(&[]), None);
    }
}
