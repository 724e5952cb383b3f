//! Steps of trainers that train at their own speed (`train.mode = "async"` or `"geo"`).
//!
//! Each batch is a step. In the mode `async`, a trainer sends the gradients of its rows, and the
//! changes that its dense optimizer has made, to the servers, which apply them when they arrive.
//! The answer holds the dense parameters with the changes of all trainers. The trainer takes them
//! over before the optimizer of its next step, so that they are on their way while it computes.
//!
//! The trainers take the batches of the data in turn, in groups of one batch for each trainer. They
//! meet after a group in which a checkpoint or a version is due, at the end of an epoch, and before
//! they stop. When they meet, all pushes are applied, and all trainers have the same dense
//! parameters and the same position. So a checkpoint is one cut with one position, from which any
//! number of trainers can go on.
//!
//! # Invariants
//! The trainers meet after the same groups. The servers tell all trainers the group of a stop in
//! time. All other meetings follow from the job and the data.

use std::time::Instant;

use zillion_feature::RowBuffer;
use zillion_ps::{Arrival, Contribution, Shared};

use super::Run;
use super::apart::Apart;
use super::epoch::EpochBatches;
use super::joint::{BatchNote, Group};
use super::model::Model;
use super::window::Window;
use crate::error::{Error, Result};
use crate::job::{Mode, ServerLoss};
use crate::observer::Observer;
use crate::pipeline::Planned;
use crate::profile::Stage;

impl Run {
    /// Returns whether the trainers train at their own speed, and meet from time to time. An
    /// asynchronous trainer that is alone has no trainer to meet.
    pub(super) fn is_apart(&self) -> bool {
        match self.job.train.mode {
            Mode::Sync | Mode::Hybrid => false,
            // A trainer that continues after a loss needs cuts, and so it meets itself.
            Mode::Async => self.is_joint() || self.job.train.on_server_loss == ServerLoss::Continue,
            Mode::Geo => true,
        }
    }

    /// Begins the clocks of the trainers, if they do not wait for each other in each step. Only
    /// trainer 0 calls this.
    pub(super) fn begin_pace(&mut self) -> Result<()> {
        if self.job.train.mode.is_sync() {
            return Ok(());
        }
        let mut dense = Vec::new();
        if self.is_apart() && self.is_joint() {
            match self.buffers.round.groups {
                0 => self.model.copy_dense_to(&mut dense),
                // The changes of the round are pushed at its end.
                _ => dense.clone_from(&self.buffers.apart.before),
            }
        }
        Ok(self.client.begin_pace(self.position.step, &dense)?)
    }

    /// Waits until trainer 0 has published the version that a run may owe from before. No trainer
    /// may push meanwhile, because the version would then lack the push.
    pub(super) fn wait_to_begin(&mut self) -> Result<()> {
        match self.is_apart() {
            true => self.wait_for_trainers(),
            false => Ok(()),
        }
    }

    /// Trains on this trainer's batches up to the end of the epoch. Returns whether the run was
    /// stopped and must end now.
    pub(super) fn train_apart(
        &mut self,
        batches: &mut EpochBatches,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<bool> {
        self.profile_next_batch();
        let mut group = self.next_group(batches);
        loop {
            if self.finish_group(group.batches.is_empty(), observer)? {
                return Ok(true);
            }
            if group.batches.is_empty() {
                return group.error.map_or(Ok(false), Err);
            }
            let following = group.error.is_none().then(|| self.next_group(batches));
            let (before, began) = (self.position.cursor.row, Instant::now());
            let loss = match self.is_geo() {
                true => self.train_locally(&group)?,
                false => self.train_own(&group, following.as_ref())?,
            };
            group.batches.iter().for_each(|planned| self.end_batch(planned));
            self.position.step += group.batches.len() as u64;
            let is_last = following.as_ref().is_none_or(|next| next.batches.is_empty());
            let is_due = is_last || self.is_checkpoint_due() || self.is_publishing_due();
            // What is due now stays due if a server is lost before it is done.
            let owes_round = self.is_geo() && (is_due || self.is_round_full());
            let meetings = &mut self.buffers.apart.meetings;
            (meetings.owes_round, meetings.owes_meeting) = (owes_round, is_due);
            self.count_first_step();
            self.count_step(began, before, &group.batches);
            self.stage(Stage::Other, |run| run.observe_own(&group, loss, window, observer))?;
            self.profile_next_batch();
            if let Some(error) = group.error {
                // The other trainers may have read more, and would not come to a meeting.
                return Err(error);
            }
            group = following.unwrap_or_default();
        }
    }

    /// Does what is due after a group of batches: ends the round, meets the other trainers, and
    /// continues a checkpoint. Returns whether the run was stopped and must end now.
    fn finish_group(&mut self, is_last: bool, observer: &mut dyn Observer) -> Result<bool> {
        if self.buffers.apart.meetings.owes_round {
            self.stage(Stage::Push, Self::end_round)?;
        }
        if !self.buffers.apart.meetings.owes_meeting && !self.is_stop_due() {
            self.checkpoint_between_steps(false, observer)?;
            return Ok(false);
        }
        // An epoch that ends is validated and saved after this meeting, which ends only then.
        self.buffers.apart.meetings.moments += u64::from(is_last);
        self.stage(Stage::Staging, Self::meet)?;
        self.buffers.apart.meetings.moments += u64::from(!is_last);
        if self.work_between_steps(is_last, observer)? {
            return Ok(true);
        }
        if !is_last {
            // No trainer may push before the checkpoint of trainer 0 has begun.
            self.wait_for_trainers()?;
            self.buffers.apart.meetings.moments += 1;
        }
        Ok(false)
    }

    /// Returns the step of this trainer's batch in the present group.
    pub(super) fn own_step(&self) -> u64 {
        self.position.step + 1 + self.options.trainer.index as u64
    }

    /// Returns whether the last push of this trainer is the one after which all trainers stop.
    fn is_stop_due(&self) -> bool {
        let Apart { pushes, stop_at, .. } = self.buffers.apart;
        stop_at > 0 && stop_at == pushes
    }

    /// Returns whether this trainer wants all trainers to stop. A loss that is not finite ends the
    /// run when the trainers meet, so that all of them know it.
    pub(super) fn wants_stop(&self) -> bool {
        self.is_stop_wanted() || !self.buffers.apart.loss_sum.is_finite()
    }

    /// Trains on this trainer's batch of a group, and returns the batch's mean loss before the
    /// step. Returns `None` if the group has no batch for this trainer.
    fn train_own(&mut self, group: &Group, following: Option<&Group>) -> Result<Option<f64>> {
        let own = self.own_batch(group);
        let next = following.and_then(|next| self.own_batch(next));
        let next = next.map(|planned| planned.plan.clone());
        self.stage(Stage::Pull, |run| {
            run.begin_step()?;
            let Some(own) = own else { return Ok(()) };
            run.pull(&own.plan, next.as_ref())?;
            run.profile_batch(own);
            Ok::<_, Error>(())
        })?;
        let loss = match own {
            Some(own) => {
                let before = self.buffers.apart.loss_sum;
                let trained = self.train_own_batch(own);
                if trained.is_err() {
                    // The batch may be done again after a loss.
                    self.buffers.apart.loss_sum = before;
                }
                Some(trained?)
            }
            None => {
                self.send_nothing()?;
                None
            }
        };
        self.buffers.apart.pushes += 1;
        Ok(loss)
    }

    fn train_own_batch(&mut self, own: &Planned) -> Result<f64> {
        let mut statistics = Vec::new();
        let loss =
            self.stage(Stage::Model, |run| run.forward_and_backward(own, Some(&mut statistics)))?;
        self.buffers.inspection.set_table_norms(&self.buffers.grads);
        self.buffers.apart.add_loss(self.own_step(), loss, own.batch.rows);
        self.stage(Stage::Staging, |run| {
            let shared = run.client.take_shared()?;
            shared.map_or(Ok(()), |shared| run.take_over(&shared))
        })?;
        if !loss.is_finite() || self.gradient_scale(None)?.is_none() {
            self.counts.skipped_steps += u64::from(loss.is_finite());
            self.send_nothing()?;
            return Ok(loss);
        }
        let dense = self.stage(Stage::Optimizer, |run| {
            run.model.copy_dense_to(&mut run.buffers.apart.before);
            run.optimize_dense(&statistics)?;
            Ok::<_, Error>(if run.is_joint() { run.dense_change(1.0) } else { Vec::new() })
        })?;
        let arrival = Arrival { scale: 1.0, dense, is_stopping: self.wants_stop() };
        self.stage(Stage::Push, |run| {
            let Self { client, buffers, .. } = run;
            let sent = client.send(Some(&own.plan), &buffers.grads, arrival);
            if sent.is_err() {
                // Nobody else may have got the step. It may be made again after a loss.
                run.model.set_dense(&buffers.apart.before)?;
            }
            Ok::<_, Error>(sent?)
        })?;
        Ok(loss)
    }

    /// Moves the running statistics and the dense parameters of this trainer.
    pub(super) fn optimize_dense(&mut self, statistics: &[f32]) -> Result<()> {
        let (rate_scale, _) = self.rate_scales(self.position.step + 1);
        let Self { options, model, .. } = self;
        let Model { executor, params, optimizer, .. } = model;
        executor.cpu()?.apply_statistics(params, statistics)?;
        let grad = |id| executor.param_grad(id);
        Ok(optimizer.step(params, grad, rate_scale, 1.0, &options.workers)?)
    }

    /// Returns the changes of the dense parameters since they were copied, times `scale`.
    pub(super) fn dense_change(&self, scale: f32) -> Vec<f32> {
        let mut dense = Vec::new();
        self.model.copy_dense_to(&mut dense);
        let before = &self.buffers.apart.before;
        dense.iter_mut().zip(before).for_each(|(value, before)| *value = (*value - before) * scale);
        dense
    }

    /// Sends the push of a step without gradients.
    fn send_nothing(&mut self) -> Result<()> {
        let is_stopping = self.wants_stop();
        let arrival = Arrival { scale: 1.0, dense: Vec::new(), is_stopping };
        Ok(self.client.send(None, &RowBuffer::default(), arrival)?)
    }

    /// Takes over the dense parameters that the trainers share. A trainer that is alone keeps its
    /// own.
    pub(super) fn take_over(&mut self, shared: &Shared) -> Result<()> {
        self.buffers.apart.stop_at = shared.stop_at;
        match self.is_joint() {
            true => self.model.set_dense(&shared.dense),
            false => Ok(()),
        }
    }

    /// Waits until all trainers have come to this group and their pushes are applied. All trainers
    /// then have the same dense parameters, the same losses, and the same decision to stop.
    fn meet(&mut self) -> Result<()> {
        let shared = self.client.settle()?;
        self.take_over(&shared)?;
        let loss = self.buffers.apart.loss_sum;
        let lost_at = self.buffers.apart.lost_at;
        let is_stopped = self.is_stop_wanted();
        let note = BatchNote { loss, lost_at, is_stopped, statistics: Vec::new() };
        let mine = Contribution { note: note.to_bytes(), ..Contribution::default() };
        let notes = self.client.exchange(mine)?.notes;
        let unreadable =
            || Error::Exchange { problem: "the note of a trainer cannot be read".to_owned() };
        let read = |bytes: &Vec<u8>| BatchNote::from_bytes(bytes).ok_or_else(unreadable);
        let notes: Vec<BatchNote> = notes.iter().map(read).collect::<Result<_>>()?;
        let lost = notes.iter().filter(|note| !note.loss.is_finite());
        if let Some(note) = lost.min_by_key(|note| note.lost_at) {
            return Err(Error::Diverged { step: note.lost_at, loss: note.loss });
        }
        for note in &notes {
            self.position.progress.loss_sum += note.loss;
            self.buffers.joint.is_stopped |= note.is_stopped;
        }
        let Apart { meetings, pushes, loss_sum, .. } = &mut self.buffers.apart;
        *loss_sum = 0.0;
        meetings.owes_meeting = false;
        meetings.record(self.position.step, *pushes);
        Ok(())
    }

    /// Adds this trainer's batch to the figures, and reports them a few times a second.
    fn observe_own(
        &mut self,
        group: &Group,
        loss: Option<f64>,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if let (Some(own), Some(loss)) = (self.own_batch(group), loss) {
            window.add(own.batch.rows as u64, loss);
            window.add_predictions(&self.batch_logits(), &own.batch);
            self.report_step_values(own, (self.step_of_last_batch(), loss), observer);
            self.buffers.last_plan = Some(own.plan.clone());
        }
        self.report_progress(window, observer)
    }
}
