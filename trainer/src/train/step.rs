//! The parts of a step on the CPU: the pull, the forward and backward pass, then the push and the
//! dense optimizer at the same time. An engine puts them together (see `engine.rs`).
//!
//! With clipping, gradients are staged first. The norm is computed over all gradients together:
//! those of tables, of their regularisers and of dense parameters. Without clipping, the push
//! applies the gradients directly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zillion_embedding::Rates;
use zillion_feature::{LookupPlan, RowBuffer, Step, TableRows};
use zillion_nn::optim::clip_scale;
use zillion_nn::{Inputs, NodeId, StepSeed};
use zillion_ps::{Arrival, PullOptions, PushMode, TrainClient};

use super::accumulate::{Accumulated, seed_of_batch};
use super::apart::Apart;
use super::joint_gradients::Joint;
use super::model::Model;
use super::round::Round;
use super::rounding::round_gradients;
use super::{Run, uses};
use crate::checkpoint::TableTime;
use crate::error::{Error, Result};
use crate::evaluate;
use crate::fetch::{self, RequestedNode};
use crate::groups::number_groups;
use crate::observer::{InspectedStep, Observer};
use crate::pipeline::Planned;
use crate::profile::Stage;

/// The buffers that all steps use, and the nodes of the graph's outputs.
#[derive(Debug, Default)]
pub(super) struct StepBuffers {
    /// The rows that the step has pulled.
    pub(super) rows: RowBuffer,
    /// The gradients of the pulled rows.
    pub(super) grads: RowBuffer,
    /// The summed gradients of the batches of a step that has not ended.
    pub(super) accumulated: Accumulated,
    /// The gradients of a step of several trainers.
    pub(super) joint: Joint,
    /// The state of a trainer that trains at its own speed.
    pub(super) apart: Apart,
    /// The rows of a trainer between two pushes.
    pub(super) round: Round,
    /// The node with the logits of each task.
    logits: Vec<NodeId>,
    /// The logarithm of the frequency of each row's item in the training data.
    pub(super) log_frequency: Vec<f32>,
    /// The number of each row's group, if the loss compares the rows of groups.
    group_numbers: Option<Vec<f32>>,
    /// The sparse column of the items, if the model reads their frequencies.
    pub(super) item_column: Option<usize>,
    /// The values that the observer requests.
    pub(super) inspection: Inspection,
    /// The event time of the tables at the end of the present step; `None` if no table needs it.
    pub(super) event_clock: Option<TableTime>,
    /// The plan of the last step.
    pub(super) last_plan: Option<Arc<LookupPlan>>,
    /// The mean loss of the last batch, until the engine returns it.
    pub(super) loss: Option<f64>,
}

impl StepBuffers {
    /// Returns the buffers of a run before its first step.
    pub(super) fn new(
        logits: Vec<NodeId>,
        item_column: Option<usize>,
        inspection: Inspection,
        compares_groups: bool,
    ) -> Self {
        let group_numbers = compares_groups.then(Vec::new);
        Self { logits, item_column, inspection, group_numbers, ..Self::default() }
    }
}

/// The values of a step that the observer requests.
#[derive(Debug, Default)]
pub(super) struct Inspection {
    pub(super) steps: bool,
    nodes: Vec<RequestedNode>,
    dense_norm: f64,
    table_norms: Vec<f64>,
}

impl Inspection {
    /// Makes the buffers for the norms and the nodes that the observer requests.
    pub(super) fn new(steps: bool, nodes: Vec<RequestedNode>) -> Self {
        Self { steps, nodes, ..Self::default() }
    }

    pub(super) fn set_dense_norm(&mut self, sq_norm: f64) {
        if self.steps {
            self.dense_norm = sq_norm.sqrt();
        }
    }

    /// Computes the norms of the gradients of rows.
    pub(super) fn set_table_norms(&mut self, grads: &RowBuffer) {
        if self.steps {
            let squares =
                |t: &TableRows| t.values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
            self.table_norms.clear();
            self.table_norms.extend(grads.tables.iter().map(|t| squares(t).sqrt()));
        }
    }
}

impl Run {
    /// Begins the next step in the tables.
    pub(super) fn begin_step(&mut self) -> Result<()> {
        let step = self.position.step + 1;
        let (_, scale) = self.rate_scales(step);
        Ok(self.client.begin_step(Step(step), Rates { scale })?)
    }

    /// Pulls the rows of a plan.
    pub(super) fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        next: Option<&Arc<LookupPlan>>,
    ) -> Result<()> {
        // If no pass over the data has counted the items, the counts of their rows are used.
        let counts = self.buffers.item_column.is_some() && self.data.frequencies.is_none();
        let rows = std::mem::take(&mut self.buffers.rows);
        self.buffers.rows = self.client.pull(plan, PullOptions { counts }, rows)?;
        if let Some(next) = next.filter(|_| self.client.looks_ahead()) {
            self.client.look_ahead(&[next])?;
        }
        Ok(())
    }

    /// Records the sizes of a batch whose rows were pulled.
    pub(super) fn profile_batch(&mut self, planned: &Planned) {
        if let Some(profiler) = &mut self.timing.profiler {
            profiler.batch(planned, &self.buffers.rows, self.position.step + 1);
        }
    }

    /// Runs the training graph on the pulled rows. Fills the gradients of the rows, rounded as the
    /// job says, and returns the loss. If `statistics` is given, the running statistics stay
    /// unchanged, and the part by which the batch moves them is appended to it.
    pub(super) fn forward_and_backward(
        &mut self,
        planned: &Planned,
        statistics: Option<&mut Vec<f32>>,
    ) -> Result<f64> {
        let Self { job, options, data, model, buffers, position, .. } = self;
        let StepBuffers {
            rows, grads, accumulated, log_frequency, item_column, group_numbers, ..
        } = buffers;
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
        if let Some(numbers) = group_numbers {
            number_groups(&planned.batch, numbers);
            inputs.numeric.push(numbers);
        }
        let batch = accumulated.batches() + options.trainer.index as u64;
        let seed = StepSeed { seed: seed_of_batch(job.seed, batch), step: position.step + 1 };
        grads.reshape(rows.tables.iter().map(|t| (t.rows(), t.stride)));
        let mut by_table: Vec<&mut [f32]> =
            grads.tables.iter_mut().map(|t| t.values.as_mut_slice()).collect();
        let workers = &options.workers;
        match statistics {
            None => model.train(workers, &inputs, seed, &mut by_table)?,
            Some(part) => {
                let Model { executor, params, .. } = model;
                executor.cpu_mut()?.train_apart(
                    workers,
                    &inputs,
                    params,
                    seed,
                    &mut by_table,
                    part,
                )?;
            }
        }
        uses::fill_uses(&planned.batch, &planned.plan, &job.tables, grads);
        if job.train.rounds_batches() {
            round_gradients(&planned.plan, grads, seed);
        }
        Ok(model.executor.loss().map_or(f64::NAN, f64::from))
    }

    /// Returns the loss of a batch, or an error if it is not finite.
    pub(super) fn check_loss(&self, loss: f64) -> Result<f64> {
        if !loss.is_finite() {
            return Err(Error::Diverged { step: self.position.step + 1, loss });
        }
        Ok(loss)
    }

    /// Returns the factor that clips the gradients of the step. Returns `None` if their norm is not
    /// finite, so the step must be skipped. If the job clips gradients, or if the step is skipped,
    /// this function also stages the gradients of the rows of `plan`. Without a plan, they are
    /// staged already.
    pub(super) fn gradient_scale(&mut self, plan: Option<&Arc<LookupPlan>>) -> Result<Option<f32>> {
        // The norm is computed even if the job does not clip gradients, because a gradient that is
        // not finite must not change any weight.
        let dense_sq_norm = self.stage(Stage::Optimizer, Self::dense_sq_norm)?;
        if !dense_sq_norm.is_finite() {
            // The keys of a skipped step count, so the tables need them.
            if let Some(plan) = plan.filter(|_| self.job.train.mode.is_sync()) {
                self.stage(Stage::Staging, |run| run.stage_rows(plan))?;
            }
            return Ok(None);
        }
        let Some(max) = self.job.train.clip_norm else { return Ok(Some(1.0)) };
        let scale = self.stage(Stage::Staging, |run| {
            if let Some(plan) = plan {
                run.stage_rows(plan)?;
            }
            let norm = (run.client.grad_sq_norm()? + dense_sq_norm).sqrt();
            Ok::<_, Error>(clip_scale(norm, max))
        })?;
        Ok(Some(scale).filter(|scale| scale.is_finite()))
    }

    /// Returns the squared norm of the dense gradients, including the regulariser.
    fn dense_sq_norm(&mut self) -> Result<f64> {
        let Self { options, model, buffers, .. } = self;
        let StepBuffers { accumulated, joint, .. } = &*buffers;
        let sq_norm = model.dense_sq_norm(accumulated, joint, &options.workers)?;
        buffers.inspection.set_dense_norm(sq_norm);
        Ok(sq_norm)
    }

    /// Stages the gradients of the rows of a plan.
    pub(super) fn stage_rows(&mut self, plan: &Arc<LookupPlan>) -> Result<()> {
        let grads = std::mem::take(&mut self.buffers.grads);
        self.buffers.grads = self.client.push(plan, grads, PushMode::Stage)?;
        Ok(())
    }

    /// Updates the rows of the step and the dense parameters.
    ///
    /// Rows and dense parameters do not depend on each other, so both are updated at the same time.
    /// If one update fails, the run ends, and no checkpoint is written that holds the changes of
    /// the other.
    pub(super) fn push_and_optimize(&mut self, rows: RowStep<'_>, grad_scale: f32) -> Result<()> {
        let begin = Instant::now();
        let step = self.position.step + 1;
        let (rate_scale, _) = self.rate_scales(step);
        let Self { options, client, model, buffers, .. } = self;
        let StepBuffers { grads, accumulated, joint, .. } = buffers;
        let workers = &*options.workers;
        let (pushed, optimized) = workers.join(
            || measure(|| update_rows(client.as_mut(), rows, grads, grad_scale)),
            || measure(|| model.optimize(accumulated, joint, (rate_scale, grad_scale), workers)),
        );
        let (pushing, optimizing) = (pushed?, optimized?);
        let joined = Instant::now();
        let averaged_step = step - self.position.progress.begun_at;
        self.model.update_average(averaged_step, &self.options.workers)?;
        self.count_push_and_optimizer(begin, joined, (pushing, optimizing));
        Ok(())
    }

    /// Drops the gradients of a step whose norm is not finite, and counts the step as skipped. The
    /// keys of the step count, so rows are created and admitted as in any other step. In the modes
    /// in which servers apply gradients when they arrive, nothing is sent, and no key counts.
    pub(super) fn skip_step(&mut self) -> Result<()> {
        if self.job.train.mode.is_sync() {
            self.client.skip()?;
        } else {
            self.client.send(None, &RowBuffer::default(), arrival(1.0))?;
        }
        self.count_skipped(self.position.step + 1);
        Ok(())
    }

    /// Counts a step that moved no weight.
    pub(super) fn count_skipped(&mut self, step: u64) {
        self.counts.skipped_steps += 1;
        tracing::warn!(step, "step skipped, because the norm of the gradients is not finite");
    }

    /// Ends the step after its last batch.
    pub(super) fn end_step(&mut self) {
        self.buffers.event_clock = None;
        self.buffers.accumulated.clear();
        self.position.step += 1;
    }

    /// Moves the position in the data to the end of the batch.
    pub(super) fn end_batch(&mut self, planned: &Planned) {
        let position = &mut self.position;
        let passed = planned.cursor.row - position.cursor.row;
        position.progress.left_out += passed - planned.batch.rows as u64;
        position.progress.rejected += planned.rejected.len() as u64;
        position.cursor = planned.cursor;
        self.counts.rows_trained += planned.batch.rows as u64;
        evaluate::add(&mut self.counts.missing_sides, &planned.batch.side_missing);
    }

    /// Returns the number of the step of the last batch.
    pub(super) fn step_of_last_batch(&self) -> u64 {
        // A batch that does not end a step belongs to the next step.
        self.position.step + u64::from(self.buffers.accumulated.batches() > 0)
    }

    /// Reports the requested values of a batch to the observer, if it requests any. The batch is
    /// the last one whose results are known, and belongs to this step.
    pub(super) fn report_step_values(
        &self,
        planned: &Planned,
        (step, loss): (u64, f64),
        observer: &mut dyn Observer,
    ) {
        let Inspection { steps, nodes, dense_norm, table_norms } = &self.buffers.inspection;
        if !steps && nodes.is_empty() {
            return;
        }
        let scores = self.batch_logits();
        observer.inspect(&InspectedStep {
            step,
            epoch: planned.cursor.epoch,
            first_row: planned.cursor.row.saturating_sub(planned.batch.rows as u64),
            loss,
            schema: &self.job.schema,
            batch: &planned.batch,
            logits: scores.first().copied().unwrap_or_default(),
            scores: &scores,
            dense_norm: *dense_norm,
            table_norms,
            fetched: &fetch::fetch_values(nodes, |id| self.model.executor.output(id)),
        });
    }

    /// Returns the log odds of each task in the last batch whose results are known, computed before
    /// the step.
    pub(super) fn batch_logits(&self) -> Vec<&[f32]> {
        let output = |&id| self.model.executor.output(id).unwrap_or_default();
        self.buffers.logits.iter().map(output).collect()
    }
}

/// The way in which the rows of a step are updated.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowStep<'a> {
    /// The gradients of the rows of a plan are pushed and applied.
    Push(&'a Arc<LookupPlan>),
    /// The gradients of rows are staged already, and are applied.
    ApplyStaged,
    /// The gradients of the rows of a plan are sent to the servers, which apply them when they
    /// arrive.
    Send {
        /// The plan; `None` for a trainer without a batch.
        plan: Option<&'a Arc<LookupPlan>>,
        /// The share of the step's rows that the trainer's batch has.
        share: f32,
    },
}

/// Updates the rows of a step, with the factor `scale` for their gradients.
fn update_rows(
    client: &mut dyn TrainClient,
    rows: RowStep<'_>,
    grads: &mut RowBuffer,
    scale: f32,
) -> Result<()> {
    match rows {
        RowStep::Push(plan) => {
            *grads = client.push(plan, std::mem::take(grads), PushMode::Apply)?;
            client.sweep()?;
        }
        RowStep::ApplyStaged => {
            client.apply(scale)?;
        }
        RowStep::Send { plan, share } => client.send(plan, grads, arrival(scale * share))?,
    }
    Ok(())
}

/// Returns a push of rows alone, with a factor for their gradients.
pub(super) fn arrival(scale: f32) -> Arrival {
    Arrival { scale, dense: Vec::new(), is_stopping: false }
}

/// Runs `work` and returns its duration.
fn measure(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

/// Fills `logs` with the natural logarithm of a count for each row: the number of steps that pushed
/// the row's item. A count of 0 is treated as 1.
///
/// The share of an item would be its count divided by the number of all steps. The function does
/// not divide, because the division would subtract the same number from the logarithms of all rows,
/// and the softmax over a batch would not change. (Yi et al. 2019 estimate the same number, the
/// share of the batches that have an item.)
pub(super) fn fill_log_counts(
    plan: &LookupPlan,
    column: usize,
    rows: &RowBuffer,
    logs: &mut Vec<f32>,
) {
    let column = &plan.columns[column];
    let counts = rows.tables[column.table].counts.as_deref().unwrap_or_default();
    let count = |&at: &u32| counts.get(at as usize).copied().unwrap_or_default().max(1);
    logs.clear();
    logs.extend(column.inverse.iter().map(|at| f64::from(count(at)).ln() as f32));
}
