//! One step: pull, forward and backward, then the push and the dense optimizer at once.
//!
//! With clipping, gradients are staged first, because the norm is over everything: tables, their
//! regularisers (over whole tables where those are dense) and dense parameters. Without it, push
//! and apply are one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zillion_embedding::Rates;
use zillion_feature::{LookupPlan, RowBuffer, Step, TableRows};
use zillion_nn::optim::clip_scale;
use zillion_nn::{Executor, Inputs, NodeId, ParamId, StepSeed};
use zillion_ps::{PushMode, TrainClient, Want};

use super::accumulate::Accumulated;
use super::model::Model;
use super::{Run, uses};
use crate::error::{Error, Result};
use crate::evaluate;
use crate::fetch::{self, Wanted};
use crate::observer::{Observer, Stepped};
use crate::pipeline::Planned;
use crate::profile::Stage;

/// The buffers that go round from step to step, and the places of the graph's results.
#[derive(Debug)]
pub(super) struct StepBuffers {
    /// The rows that the step has pulled.
    rows: RowBuffer,
    /// The gradients of these rows.
    grads: RowBuffer,
    /// The gradients of the batches of a step that has not ended.
    pub(super) accumulated: Accumulated,
    /// The logits of each task.
    logits: Vec<NodeId>,
    /// The logarithm of the share that each row's item has in the training data.
    log_frequency: Vec<f32>,
    /// The column of the items, where the model reads their frequency.
    item_column: Option<usize>,
    /// The values that the observer looks at.
    looking: Looking,
    /// The plan of the last step.
    pub(super) last_plan: Option<Arc<LookupPlan>>,
}

impl StepBuffers {
    /// Returns the buffers of a run before its first step.
    pub(super) fn new(logits: Vec<NodeId>, item_column: Option<usize>, looking: Looking) -> Self {
        Self {
            rows: RowBuffer::default(),
            grads: RowBuffer::default(),
            accumulated: Accumulated::default(),
            logits,
            log_frequency: Vec::new(),
            item_column,
            looking,
            last_plan: None,
        }
    }
}

/// The values of a step that an observer looks at.
#[derive(Debug, Default)]
pub(super) struct Looking {
    steps: bool,
    nodes: Vec<Wanted>,
    dense_norm: f64,
    table_norms: Vec<f64>,
}

impl Looking {
    /// Returns what to copy out of each step.
    pub(super) fn new(steps: bool, nodes: Vec<Wanted>) -> Self {
        Self { steps, nodes, ..Self::default() }
    }

    fn set_norms(&mut self, dense_sq_norm: f64, grads: &RowBuffer) {
        if self.steps {
            self.dense_norm = dense_sq_norm.sqrt();
            let squares =
                |t: &TableRows| t.values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
            self.table_norms.clear();
            self.table_norms.extend(grads.tables.iter().map(|t| squares(t).sqrt()));
        }
    }
}

impl Run {
    /// Trains on a batch and returns its mean loss before the step. Where a step has several
    /// batches, only the last of them moves weights.
    ///
    /// `next` is the plan of the next batch, where that is known: the rows that it needs from disk
    /// are read meanwhile.
    pub(super) fn train_step(
        &mut self,
        planned: &Planned,
        next: Option<&LookupPlan>,
    ) -> Result<f64> {
        self.stage(Stage::Pull, |run| run.pull(planned, next))?;
        let loss = self.stage(Stage::Model, |run| run.forward_and_backward(planned))?;
        let Some(plan) = self.accumulate(planned, next.is_none())? else {
            self.end_batch(planned);
            return Ok(loss);
        };
        match self.gradient_scale(&plan)? {
            Some(scale) => self.push_and_optimize(&plan, scale)?,
            None => self.skip_step()?,
        }
        self.end_step(planned);
        Ok(loss)
    }

    /// Pulls the batch's rows. The first batch of a step begins it.
    fn pull(&mut self, planned: &Planned, next: Option<&LookupPlan>) -> Result<()> {
        let step = self.position.step + 1;
        if self.buffers.accumulated.batches() == 0 {
            let (_, scale) = self.rate_scales(step);
            self.client.begin_step(Step(step), Rates { scale })?;
        }
        // Where no pass over the data has counted the items, their rows have.
        let counts = self.buffers.item_column.is_some() && self.data.frequencies.is_none();
        let rows = std::mem::take(&mut self.buffers.rows);
        self.buffers.rows = self.client.pull(&planned.plan, Want { counts }, rows)?.wait()?;
        if let Some(next) = next.filter(|_| self.client.looks_ahead()) {
            self.client.look_ahead(&[next])?;
        }
        if let Some(profiler) = &mut self.timing.profiler {
            profiler.batch(planned, &self.buffers.rows, step);
        }
        Ok(())
    }

    /// Runs the training graph on the pulled rows. Fills the gradients of the rows, and returns the
    /// loss.
    fn forward_and_backward(&mut self, planned: &Planned) -> Result<f64> {
        let Self { job, options, data, model, buffers, position, .. } = self;
        let StepBuffers { rows, grads, accumulated, log_frequency, item_column, .. } = buffers;
        let mut inputs = Inputs::new(&planned.batch, &planned.plan, rows, true);
        if let Some(column) = *item_column {
            match &data.frequencies {
                Some(counted) => {
                    counted.log_shares(&planned.batch.sparse[column].keys, log_frequency);
                }
                None => fill_log_counts(&planned.plan, column, rows, log_frequency),
            }
            inputs.numeric.push(log_frequency);
        }
        let step = position.step + 1;
        let seed = StepSeed { seed: accumulated.seed(job.seed), step };
        grads.reshape(rows.tables.iter().map(|t| (t.rows(), t.stride)));
        let mut by_table: Vec<&mut [f32]> =
            grads.tables.iter_mut().map(|t| t.values.as_mut_slice()).collect();
        let Model { executor, params, .. } = model;
        executor.train(&options.workers, &inputs, params, seed, &mut by_table)?;
        uses::note_uses(&planned.batch, &planned.plan, &job.tables, grads);
        let loss = executor.loss().map_or(f64::NAN, f64::from);
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        Ok(loss)
    }

    /// Adds the batch to its step. Returns the plan of the whole step with its gradients in the
    /// buffer, or `None` where further batches follow.
    fn accumulate(&mut self, planned: &Planned, is_last: bool) -> Result<Option<Arc<LookupPlan>>> {
        let batches = self.job.train.accumulate.get() as u64;
        if batches == 1 {
            return Ok(Some(planned.plan.clone()));
        }
        self.stage(Stage::Optimizer, |run| {
            let Self { options, model, buffers, .. } = run;
            let StepBuffers { grads, accumulated, looking, .. } = buffers;
            accumulated.add(&planned.plan, grads, &model.executor);
            if accumulated.batches() == batches || is_last {
                return Ok(Some(Arc::new(accumulated.finish(grads))));
            }
            if looking.steps {
                let own = |id: ParamId| model.executor.param_grad(id);
                let norm = model.optimizer.sq_norm(&model.params, own, &options.workers)?;
                looking.set_norms(norm, grads);
            }
            Ok(None)
        })
    }

    /// Returns the factor of the step's gradients, which clips them, or `None` where they have no
    /// finite norm and the step must be skipped. Stages the gradients of rows where the job clips.
    fn gradient_scale(&mut self, plan: &Arc<LookupPlan>) -> Result<Option<f32>> {
        // Taken with and without clipping: a gradient that is not finite must reach no weight.
        let dense_sq_norm = self.stage(Stage::Optimizer, Self::dense_sq_norm)?;
        if !dense_sq_norm.is_finite() {
            return Ok(None);
        }
        let Some(max) = self.job.train.clip_norm else { return Ok(Some(1.0)) };
        let scale = self.stage(Stage::Staging, |run| {
            let grads = std::mem::take(&mut run.buffers.grads);
            run.buffers.grads = run.client.push(plan, grads, PushMode::Stage)?.wait()?;
            let norm = (run.client.grad_sq_norm()? + dense_sq_norm).sqrt();
            Ok::<_, Error>(clip_scale(norm, max))
        })?;
        Ok(Some(scale).filter(|scale| scale.is_finite()))
    }

    /// Returns the squared norm of the dense gradients, the regulariser included.
    fn dense_sq_norm(&mut self) -> Result<f64> {
        let Self { options, model, buffers, .. } = self;
        let grad = param_grad(&model.executor, &buffers.accumulated);
        let sq_norm = model.optimizer.sq_norm(&model.params, grad, &options.workers)?;
        buffers.looking.set_norms(sq_norm, &buffers.grads);
        Ok(sq_norm)
    }

    /// Pushes the gradients of rows and moves the dense parameters.
    ///
    /// Rows and dense weights do not depend on each other, so that a thread that is idle in one
    /// works on the other. An error of either ends the run, and nothing is saved of what the other
    /// has moved.
    fn push_and_optimize(&mut self, plan: &Arc<LookupPlan>, grad_scale: f32) -> Result<()> {
        let begin = Instant::now();
        let step = self.position.step + 1;
        let (rate_scale, _) = self.rate_scales(step);
        let Self { job, options, client, model, buffers, .. } = self;
        let StepBuffers { grads, accumulated, .. } = buffers;
        let Model { executor, params, optimizer, .. } = model;
        let workers = &*options.workers;
        let staged_scale = job.train.clip_norm.map(|_| grad_scale);
        let (pushed, optimized) = workers.join(
            || timed(|| push(client.as_mut(), plan, grads, staged_scale)),
            || {
                timed(|| {
                    let grad = param_grad(executor, accumulated);
                    Ok(optimizer.step(params, grad, rate_scale, grad_scale, workers)?)
                })
            },
        );
        let (pushing, optimizing) = (pushed?, optimized?);
        let joined = Instant::now();
        let averaged_step = step - self.position.progress.begun_at;
        self.model.update_average(averaged_step, &self.options.workers)?;
        self.count_push_and_optimizer(begin, joined, (pushing, optimizing));
        Ok(())
    }

    /// Drops the gradients of a step that has no direction: it moves no weight and is counted.
    fn skip_step(&mut self) -> Result<()> {
        self.client.discard()?;
        self.counts.skipped_steps += 1;
        let step = self.position.step + 1;
        tracing::warn!(step, "the gradient's norm is not finite: step skipped");
        Ok(())
    }

    /// Ends the step and moves on in the data.
    fn end_step(&mut self, planned: &Planned) {
        self.end_batch(planned);
        self.buffers.accumulated.clear();
        self.position.step += 1;
    }

    /// Moves on in the data.
    fn end_batch(&mut self, planned: &Planned) {
        let position = &mut self.position;
        let passed = planned.cursor.row - position.cursor.row;
        position.progress.left_out += passed - planned.batch.rows as u64;
        position.progress.rejected += planned.rejected.len() as u64;
        position.cursor = planned.cursor;
        self.counts.rows_trained += planned.batch.rows as u64;
        evaluate::add(&mut self.counts.missing_sides, &planned.batch.side_missing);
    }

    /// Shows the step that was just done to an observer that looks.
    pub(super) fn show_step(&self, planned: &Planned, loss: f64, observer: &mut dyn Observer) {
        let Looking { steps, nodes, dense_norm, table_norms } = &self.buffers.looking;
        if !steps && nodes.is_empty() {
            return;
        }
        observer.stepped(&Stepped {
            // A batch that ends no step belongs to the next one.
            step: self.position.step + u64::from(self.buffers.accumulated.batches() > 0),
            epoch: planned.cursor.epoch,
            first_row: planned.cursor.row.saturating_sub(planned.batch.rows as u64),
            loss,
            schema: &self.job.schema,
            batch: &planned.batch,
            logits: self.batch_logits().first().copied().unwrap_or_default(),
            dense_norm: *dense_norm,
            table_norms,
            fetched: &fetch::fetched(nodes, &self.model.executor),
        });
    }

    /// Returns the log odds of each task in the last batch, as they were before the step.
    pub(super) fn batch_logits(&self) -> Vec<&[f32]> {
        let output = |&id| self.model.executor.output(id).unwrap_or_default();
        self.buffers.logits.iter().map(output).collect()
    }
}

/// Pushes and applies the gradients of rows, or applies those that were staged, by this factor.
fn push(
    client: &mut dyn TrainClient,
    plan: &Arc<LookupPlan>,
    grads: &mut RowBuffer,
    staged_scale: Option<f32>,
) -> Result<()> {
    if let Some(scale) = staged_scale {
        client.apply(scale)?;
        return Ok(());
    }
    *grads = client.push(plan, std::mem::take(grads), PushMode::Apply)?.wait()?;
    client.sweep()?;
    Ok(())
}

/// Runs `work` and returns the time that it took.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// Fills in, for each row, the logarithm of the number of steps that have pushed its item, at least
/// 1.
///
/// The softmax over a batch does not see a number that is added to all rows alike, so that the
/// number of steps need not be subtracted (Yi et al. 2019 estimate the same: the share of the
/// batches that an item is in).
fn fill_log_counts(plan: &LookupPlan, column: usize, rows: &RowBuffer, logs: &mut Vec<f32>) {
    let column = &plan.columns[column];
    let counts = rows.tables[column.table].counts.as_deref().unwrap_or_default();
    let count = |&at: &u32| counts.get(at as usize).copied().unwrap_or_default().max(1);
    logs.clear();
    logs.extend(column.inverse.iter().map(|at| f64::from(count(at)).ln() as f32));
}

/// Returns the gradient of each parameter: of the batch alone, or of all batches of the step.
fn param_grad<'a>(
    executor: &'a Executor,
    accumulated: &'a Accumulated,
) -> impl Fn(ParamId) -> Option<&'a [f32]> {
    |id| match accumulated.batches() {
        0 => executor.param_grad(id),
        _ => accumulated.param_grad(id),
    }
}
