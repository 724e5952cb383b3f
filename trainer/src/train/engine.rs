//! The engine of a run: what computes a step, from the pull of the rows of a batch to the end of
//! the step.
//!
//! A run reads batches, reports, validates, publishes and writes checkpoints in the same way on
//! every device. Only the steps may differ, so they are behind one trait. The modes in which
//! several trainers work together, or in which servers apply gradients when they arrive, compute
//! their steps with the parts of the CPU's step alone.

use std::sync::Arc;

use zillion_feature::LookupPlan;
use zillion_nn::ParamId;

use super::Run;
use super::step::{RowStep, StepBuffers};
use crate::error::{Error, Result};
use crate::pipeline::Planned;
use crate::profile::Stage;

/// The outcome of the step of an engine.
#[derive(Debug)]
pub(super) enum Stepped {
    /// The engine has trained on the batch.
    Done,
    /// The engine has done nothing, because the rows of the batch have no room in the memory of the
    /// GPU, for the given reason. The run trains on the batch with its rows on the host.
    NoRoom(String),
}

/// A way to compute the steps of a run that trains alone.
///
/// The results of a batch may come later than its step. The caller asks for them in the order of
/// the batches, and asks for all of them before it reads the state of the run: before a checkpoint,
/// a validation, a version and the end of an epoch.
///
/// # The implementer must
/// * do what the step of [`HostEngine`] does to rows, dense parameters, optimizer state and counts;
/// * move the position of the run behind the batch before `step` returns;
/// * have the rows in the tables of the run, and the dense parameters where `Model::settle` finds
///   them, when the results of all batches have been returned.
pub(super) trait Engine: Send {
    /// Begins to train on a batch, and may end before the results are known. If a step has several
    /// batches, weights change only after the last batch.
    ///
    /// `next` is the lookup plan of the next batch, if it is known. During the step, the rows of
    /// this plan are read from disk.
    ///
    /// # Errors
    /// Returns an error if the loss is not finite, or if the tables fail. The run then ends without
    /// another checkpoint.
    fn step(
        &mut self,
        run: &mut Run,
        planned: &mut Planned,
        next: Option<&Arc<LookupPlan>>,
    ) -> Result<Stepped>;

    /// Returns the mean loss of the oldest batch whose loss has not been returned, before its step.
    /// The executor of the run then has the requested outputs of this batch. Returns `None` if
    /// there is no such batch, or if its results are not known yet and `waits` is `false`.
    ///
    /// # Errors
    /// Returns an error in the cases of [`Engine::step`].
    fn finish(&mut self, run: &mut Run, waits: bool) -> Result<Option<f64>>;
}

/// The engine with rows in the memory of the host or on servers. The model of the run computes the
/// dense half of a step, on the pool of threads or on a GPU. The results of a batch are known at
/// the end of its step.
#[derive(Debug)]
pub(super) struct HostEngine;

impl Engine for HostEngine {
    fn step(
        &mut self,
        run: &mut Run,
        planned: &mut Planned,
        next: Option<&Arc<LookupPlan>>,
    ) -> Result<Stepped> {
        run.stage(Stage::Pull, |run| {
            if run.buffers.accumulated.batches() == 0 {
                run.begin_step()?;
            }
            run.note_event_time(&planned.batch);
            run.pull(&planned.plan, next)?;
            run.profile_batch(planned);
            Ok::<_, Error>(())
        })?;
        let loss = run.stage(Stage::Model, |run| {
            let loss = run.forward_and_backward(planned, None)?;
            run.check_loss(loss)
        })?;
        run.buffers.loss = Some(loss);
        let Some(plan) = run.accumulate(planned, next.is_none())? else {
            run.end_batch(planned);
            return Ok(Stepped::Done);
        };
        run.buffers.inspection.set_table_norms(&run.buffers.grads);
        run.give_event_time()?;
        match run.gradient_scale(Some(&plan))? {
            Some(scale) => run.push_and_optimize(run.row_step(&plan), scale)?,
            None => run.skip_step()?,
        }
        run.prune_after_step()?;
        run.keep_event_time();
        run.end_batch(planned);
        run.end_step();
        Ok(Stepped::Done)
    }

    fn finish(&mut self, run: &mut Run, _waits: bool) -> Result<Option<f64>> {
        Ok(run.buffers.loss.take())
    }
}

impl Run {
    /// Calls the engine of the run.
    pub(super) fn with_engine<T>(
        &mut self,
        call: impl FnOnce(&mut dyn Engine, &mut Self) -> Result<T>,
    ) -> Result<T> {
        // The engine works on the run, so it is taken out for the call.
        let mut engine = std::mem::replace(&mut self.engine, Box::new(HostEngine));
        let outcome = call(engine.as_mut(), self);
        self.engine = engine;
        outcome
    }

    /// Adds the gradients of the batch to its step. After the last batch, fills the buffer with the
    /// gradients of the whole step and returns the plan of the step. Before the last batch, returns
    /// `None`.
    fn accumulate(&mut self, planned: &Planned, is_last: bool) -> Result<Option<Arc<LookupPlan>>> {
        let batches = self.job.train.accumulate.get() as u64;
        if batches == 1 {
            return Ok(Some(planned.plan.clone()));
        }
        self.stage(Stage::Optimizer, |run| {
            let Self { options, model, buffers, .. } = run;
            let StepBuffers { grads, accumulated, inspection, .. } = buffers;
            accumulated.add(&planned.plan, grads, &model.executor);
            if accumulated.batches() == batches || is_last {
                return Ok(Some(Arc::new(accumulated.finish(grads))));
            }
            if inspection.steps {
                let own = |id: ParamId| model.executor.param_grad(id);
                let norm = model.optimizer.sq_norm(&model.params, own, &options.workers)?;
                inspection.set_dense_norm(norm);
                inspection.set_table_norms(grads);
            }
            Ok(None)
        })
    }

    /// Returns the way in which the rows of a step of this trainer alone are updated.
    fn row_step<'a>(&self, plan: &'a Arc<LookupPlan>) -> RowStep<'a> {
        let train = &self.job.train;
        match (train.mode.is_sync(), train.clip_norm) {
            (false, _) => RowStep::Send { plan: Some(plan), share: 1.0 },
            (true, None) => RowStep::Push(plan),
            (true, Some(_)) => RowStep::ApplyStaged,
        }
    }
}

#[cfg(test)]
mod tests;
