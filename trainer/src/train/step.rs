//! One step: pull, forward and backward, push, the dense optimizer.
//!
//! With clipping, gradients are staged first, because the norm is over everything: tables, their
//! regularisers (over whole tables where those are dense) and dense parameters. Without it, push and
//! apply are one.

use zillion_embedding::Rates;
use zillion_feature::{RowBuffer, Step};
use zillion_nn::optim::clip_scale;
use zillion_nn::{Inputs, NodeId, ParamId, StepSeed};
use zillion_ps::{PushMode, Want};

use super::Run;
use crate::error::{Error, Result};
use crate::pipeline::Planned;
use crate::stages::Stopwatch;

/// Buffers that go round from step to step, and where the graph's results are.
#[derive(Debug)]
pub(super) struct StepBuffers {
    pub(super) rows: RowBuffer,
    pub(super) grads: RowBuffer,
    pub(super) logits: NodeId,
}

impl Run {
    /// Trains on a batch; returns its mean loss before the step.
    pub(super) fn train_step(&mut self, planned: &Planned) -> Result<f64> {
        let step = self.step + 1;
        let mut watch = Stopwatch::start();
        let rate_scale = self.progress.plateau.rate_scale();
        self.client.begin_step(Step(step), Rates { scale: rate_scale })?;
        let rows = std::mem::take(&mut self.buffers.rows);
        let rows = self.client.pull(&planned.plan, Want::default(), rows)?.wait()?;
        watch.lap(&mut self.seconds.pull);

        let inputs = Inputs::new(&planned.batch, &planned.plan, &rows, true);
        let seed = StepSeed { seed: self.job.seed, step };
        let mut grads = std::mem::take(&mut self.buffers.grads);
        grads.reshape(rows.tables.iter().map(|t| (t.rows(), t.stride)));
        let mut by_table: Vec<&mut [f32]> =
            grads.tables.iter_mut().map(|t| t.values.as_mut_slice()).collect();
        let (workers, params) = (&self.options.workers, &mut self.params);
        self.executor.train(workers, &inputs, params, seed, &mut by_table)?;
        let loss = self.executor.loss().map_or(f64::NAN, f64::from);
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        watch.lap(&mut self.seconds.model);

        let mut grad_scale = 1.0;
        let grads = match self.job.train.clip_norm {
            None => {
                let grads = self.client.push(&planned.plan, grads, PushMode::Apply)?.wait()?;
                self.client.sweep()?;
                watch.lap(&mut self.seconds.push);
                grads
            }
            Some(max) => {
                let grads = self.client.push(&planned.plan, grads, PushMode::Stage)?.wait()?;
                let tables = self.client.grad_sq_norm()?;
                watch.lap(&mut self.seconds.push);
                let dense = self.optimizer.sq_norm(
                    &self.params,
                    |id: ParamId| self.executor.param_grad(id),
                    &self.options.workers,
                )?;
                watch.lap(&mut self.seconds.dense);
                grad_scale = clip_scale((tables + dense).sqrt(), max);
                if grad_scale.is_finite() {
                    self.client.apply(grad_scale)?;
                } else {
                    // No direction can be had from such a norm: nothing moves, and it is counted.
                    self.client.discard()?;
                    self.skipped_steps += 1;
                    tracing::warn!(step, "the gradient's norm is not finite: step skipped");
                }
                watch.lap(&mut self.seconds.push);
                grads
            }
        };
        if grad_scale.is_finite() {
            self.optimizer.step(
                &mut self.params,
                |id: ParamId| self.executor.param_grad(id),
                rate_scale,
                grad_scale,
                &self.options.workers,
            )?;
        }
        watch.lap(&mut self.seconds.dense);

        self.buffers.rows = rows;
        self.buffers.grads = grads;
        self.step = step;
        self.cursor = planned.cursor;
        self.rows_trained += planned.batch.rows as u64;
        Ok(loss)
    }

    /// Log odds of the batch that was trained last, as they were before the step.
    pub(super) fn executor_logits(&self) -> &[f32] {
        self.executor.output(self.buffers.logits).unwrap_or_default()
    }
}
