//! One step: pull, forward and backward, then push and the dense optimizer at once.
//!
//! With clipping, gradients are staged first, because the norm is over everything: tables, their
//! regularisers (over whole tables where those are dense) and dense parameters. Without it, push and
//! apply are one.

use std::time::Instant;

use zillion_embedding::Rates;
use zillion_feature::{LookupPlan, RowBuffer, Step, TableRows};
use zillion_nn::optim::clip_scale;
use zillion_nn::{Executor, Inputs, NodeId, ParamId, StepSeed};
use zillion_ps::{PushMode, Want};

use super::accumulate::{Accumulated, whole_step};
use super::{Run, uses};
use crate::error::{Error, Result};
use crate::evaluate;
use crate::fetch::{self, Wanted};
use crate::observer::{Observer, Stepped};
use crate::pipeline::Planned;
use crate::profile::{Note, Stage};
use crate::stages::Stopwatch;

/// Buffers that go round from step to step, and where the graph's results are.
#[derive(Debug)]
pub(super) struct StepBuffers {
    pub(super) rows: RowBuffer,
    pub(super) grads: RowBuffer,
    /// One a task.
    pub(super) logits: Vec<NodeId>,
    /// Of each row, the logarithm of its item's share of the training data.
    pub(super) log_frequency: Vec<f32>,
    /// The column of the items, where the model is told that.
    pub(super) item_column: Option<usize>,
}

/// What an observer looks into.
#[derive(Debug, Default)]
pub(super) struct Looking {
    pub(super) steps: bool,
    pub(super) nodes: Vec<Wanted>,
    dense_norm: f64,
    table_norms: Vec<f64>,
}

impl Looking {
    pub(super) fn new(steps: bool, nodes: Vec<Wanted>) -> Self {
        Self { steps, nodes, ..Self::default() }
    }

    fn norms(&mut self, dense_sq_norm: f64, grads: &RowBuffer) {
        if self.steps {
            self.dense_norm = dense_sq_norm.sqrt();
            let squares =
                |t: &TableRows| t.values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
            self.table_norms.clear();
            self.table_norms.extend(grads.tables.iter().map(|t| squares(t).sqrt()));
        }
    }
}

/// Of each row, the logarithm of how many steps have pushed its item, and of 1 for one that none has. The softmax
/// over a batch does not see what is added to all alike, so that the number of steps need not be taken off
/// (Yi et al. 2019 estimate the same: in which share of the batches an item is).
fn log_counts(plan: &LookupPlan, column: usize, rows: &RowBuffer, logs: &mut Vec<f32>) {
    let column = &plan.columns[column];
    let counts = rows.tables[column.table].counts.as_deref().unwrap_or_default();
    let count = |&at: &u32| counts.get(at as usize).copied().unwrap_or_default().max(1);
    logs.clear();
    logs.extend(column.inverse.iter().map(|at| f64::from(count(at)).ln() as f32));
}

/// The gradient of each parameter: of the batch alone, or of all batches of the step.
fn param_grad<'a>(
    executor: &'a Executor,
    accumulated: &'a Accumulated,
) -> impl Fn(ParamId) -> Option<&'a [f32]> {
    |id| match accumulated.batches() {
        0 => executor.param_grad(id),
        _ => accumulated.param_grad(id),
    }
}

impl Run {
    /// Shows the step that was just done to whoever looks.
    pub(super) fn show(&self, planned: &Planned, loss: f64, observer: &mut dyn Observer) {
        let Looking { steps, nodes, dense_norm, table_norms } = &self.looking;
        if !steps && nodes.is_empty() {
            return;
        }
        observer.stepped(&Stepped {
            // Of a step of several batches, the one that they are of.
            step: self.step + u64::from(self.accumulated.batches() > 0),
            epoch: planned.cursor.epoch,
            first_row: planned.cursor.row.saturating_sub(planned.batch.rows as u64),
            loss,
            schema: &self.job.schema,
            batch: &planned.batch,
            logits: self.executor_logits().first().copied().unwrap_or_default(),
            dense_norm: *dense_norm,
            table_norms,
            fetched: &fetch::fetched(nodes, &self.executor),
        });
    }

    /// Trains on a batch; returns its mean loss before the step. Where a step has several batches, only the last
    /// of them moves weights.
    ///
    /// `next` is the plan of the step behind it, where that is known: what it will need of the disk is read
    /// meanwhile.
    pub(super) fn train_step(
        &mut self,
        planned: &Planned,
        next: Option<&LookupPlan>,
    ) -> Result<f64> {
        let step = self.step + 1;
        let mut watch = Stopwatch::start();
        let (rate_scale, table_scale) = self.rate_scales(step);
        if self.accumulated.batches() == 0 {
            self.client.begin_step(Step(step), Rates { scale: table_scale })?;
        }
        let rows = std::mem::take(&mut self.buffers.rows);
        // What no pass over the data has counted, the items' rows have.
        let counts = self.buffers.item_column.is_some() && self.frequencies.is_none();
        let rows = self.client.pull(&planned.plan, Want { counts }, rows)?.wait()?;
        if let Some(next) = next.filter(|_| self.client.looks_ahead()) {
            self.client.look_ahead(&[next])?;
        }
        watch.lap(&mut self.seconds.pull).note(&mut self.profiler, Stage::Pull);
        if let Some(profiler) = &mut self.profiler {
            profiler.batch(planned, &rows, step);
        }

        let mut inputs = Inputs::new(&planned.batch, &planned.plan, &rows, true);
        if let Some(column) = self.buffers.item_column {
            let logs = &mut self.buffers.log_frequency;
            match &self.frequencies {
                Some(counted) => counted.log_shares(&planned.batch.sparse[column].keys, logs),
                None => log_counts(&planned.plan, column, &rows, logs),
            }
            inputs.numeric.push(&self.buffers.log_frequency);
        }
        let seed = StepSeed { seed: self.accumulated.seed(self.job.seed), step };
        let mut grads = std::mem::take(&mut self.buffers.grads);
        grads.reshape(rows.tables.iter().map(|t| (t.rows(), t.stride)));
        let mut by_table: Vec<&mut [f32]> =
            grads.tables.iter_mut().map(|t| t.values.as_mut_slice()).collect();
        let (workers, params) = (&self.options.workers, &mut self.params);
        self.executor.train(workers, &inputs, params, seed, &mut by_table)?;
        uses::note(&planned.batch, &planned.plan, &self.job.tables, &mut grads);
        let loss = self.executor.loss().map_or(f64::NAN, f64::from);
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        watch.lap(&mut self.seconds.model).note(&mut self.profiler, Stage::Model);
        let batches = self.job.train.accumulate.get() as u64;
        if batches > 1 {
            self.accumulated.add(&planned.plan, &grads, &self.executor);
            if self.accumulated.batches() < batches && next.is_some() {
                if self.looking.steps {
                    let own = |id: ParamId| self.executor.param_grad(id);
                    let norm = self.optimizer.sq_norm(&self.params, own, &self.options.workers)?;
                    self.looking.norms(norm, &grads);
                }
                self.end_batch(planned, rows, grads);
                watch.lap(&mut self.seconds.dense).note(&mut self.profiler, Stage::Optimizer);
                return Ok(loss);
            }
        }
        let plan = whole_step(&mut self.accumulated, &planned.plan, &mut grads);

        // The dense norm is taken in both modes: a gradient that is not finite must reach no weight.
        let dense_sq_norm = self.optimizer.sq_norm(
            &self.params,
            param_grad(&self.executor, &self.accumulated),
            &self.options.workers,
        )?;
        self.looking.norms(dense_sq_norm, &grads);
        watch.lap(&mut self.seconds.dense).note(&mut self.profiler, Stage::Optimizer);
        if !dense_sq_norm.is_finite() {
            self.client.discard()?;
            return Ok(self.end_step(planned, rows, grads, loss, false));
        }

        let mut grad_scale = 1.0;
        if let Some(max) = self.job.train.clip_norm {
            grads = self.client.push(&plan, grads, PushMode::Stage)?.wait()?;
            let tables = self.client.grad_sq_norm()?;
            grad_scale = clip_scale((tables + dense_sq_norm).sqrt(), max);
            watch.lap(&mut self.seconds.push).note(&mut self.profiler, Stage::Staging);
            if !grad_scale.is_finite() {
                self.client.discard()?;
                return Ok(self.end_step(planned, rows, grads, loss, false));
            }
        }
        // Rows and dense weights know nothing of each other, so that a thread that is idle in one works on the other. An error
        // of either ends the run, and nothing is saved of what the other has moved.
        let Self { client, optimizer, params, executor, accumulated, options, job, .. } = self;
        let (workers, is_staged) = (&*options.workers, job.train.clip_norm.is_some());
        let (pushed, moved) = workers.join(
            || {
                let began = Instant::now();
                if is_staged {
                    client.apply(grad_scale)?;
                } else {
                    grads = client.push(&plan, grads, PushMode::Apply)?.wait()?;
                    client.sweep()?;
                }
                Ok::<_, Error>((grads, began.elapsed()))
            },
            || {
                let began = Instant::now();
                let grad = param_grad(executor, accumulated);
                optimizer.step(params, grad, rate_scale, grad_scale, workers)?;
                Ok::<_, Error>(began.elapsed())
            },
        );
        let ((grads, pushing), moving) = (pushed?, moved?);
        let profiler = &mut self.profiler;
        // One thread has done one behind the other. Several have done both at once, which is the time of the longer.
        if self.options.workers.threads() == 1 {
            watch.lap_for(pushing, &mut self.seconds.push).note(profiler, Stage::Push);
        } else if pushing >= moving {
            watch.lap(&mut self.seconds.push).note(profiler, Stage::Push);
        }
        self.average()?;
        watch.lap(&mut self.seconds.dense).note(&mut self.profiler, Stage::Optimizer);
        Ok(self.end_step(planned, rows, grads, loss, true))
    }

    /// Keeps the buffers and moves on. A step without a direction moves no weight and is counted.
    fn end_step(
        &mut self,
        planned: &Planned,
        rows: RowBuffer,
        grads: RowBuffer,
        loss: f64,
        moved: bool,
    ) -> f64 {
        self.end_batch(planned, rows, grads);
        self.accumulated.clear();
        self.step += 1;
        if !moved {
            self.skipped_steps += 1;
            tracing::warn!(step = self.step, "the gradient's norm is not finite: step skipped");
        }
        loss
    }

    /// Keeps the buffers and moves on in the data.
    fn end_batch(&mut self, planned: &Planned, rows: RowBuffer, grads: RowBuffer) {
        self.buffers.rows = rows;
        self.buffers.grads = grads;
        let passed = planned.cursor.row - self.cursor.row;
        self.progress.left_out += passed - planned.batch.rows as u64;
        self.progress.rejected += planned.rejected.len() as u64;
        self.cursor = planned.cursor;
        self.rows_trained += planned.batch.rows as u64;
        evaluate::add(&mut self.missing_sides, &planned.batch.side_missing);
    }

    /// Log odds of each task in the batch that was trained last, as they were before the step.
    pub(super) fn executor_logits(&self) -> Vec<&[f32]> {
        let output = |&id| self.executor.output(id).unwrap_or_default();
        self.buffers.logits.iter().map(output).collect()
    }
}
