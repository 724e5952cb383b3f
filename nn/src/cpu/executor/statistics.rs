//! The running statistics of a training program, when several processes train the batches of one
//! step.
//!
//! A step of several batches moves the running statistics once for each batch, in the order of the
//! batches. Each process trains its own batch, and computes the part by which this batch moves the
//! statistics. Every process then applies the parts of all batches, in the order of the batches. So
//! all processes have the statistics of one process that trains all batches.

use super::*;

use crate::ops::{running_part, weigh_running};

impl Executor {
    /// Runs a training program as [`Executor::train`] does, but leaves the running statistics
    /// unchanged. The part by which the batch moves the statistics is appended to `part`, for
    /// [`Executor::apply_statistics`].
    ///
    /// # Errors
    /// Returns an error if the inputs or the parameters do not fit the program.
    pub fn train_apart(
        &mut self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        params: &Params,
        seed: StepSeed,
        row_grads: &mut [&mut [f32]],
        part: &mut Vec<f32>,
    ) -> Result<()> {
        self.run_training(workers, inputs, params, seed, row_grads)?;
        for &(_, node) in &self.program.lowered.updates {
            let node = self.program.lowered.graph.node(node);
            let (&Op::BatchNormRunning { momentum, variance }, &[_, stats]) =
                (&node.op, node.inputs.as_slice())
            else {
                continue;
            };
            let dim = self.program.lowered.work_rows(stats);
            let rows = inputs.span(dim, &(0..inputs.rows)).len();
            // A batch without values does not move the statistics.
            part.push(if rows == 0 { 0.0 } else { 1.0 });
            let stats = constant(&self.program, &self.consts, stats).unwrap_or_default();
            part.extend(running_part(momentum, variance, rows, stats));
        }
        Ok(())
    }

    /// Moves the running statistics in `params` by the part of one batch.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the part belongs to another model.
    pub fn apply_statistics(&self, params: &mut Params, part: &[f32]) -> Result<()> {
        let updates = &self.program.lowered.updates;
        let expected: usize = updates.iter().map(|&(param, _)| 1 + params.value(param).len()).sum();
        if part.len() != expected {
            let reason = format!(
                "found {} numbers, but the model has {expected}; train the same model in all \
                 processes",
                part.len()
            );
            return Err(Error::Input {
                input: "the part of the running statistics".into(),
                reason,
            });
        }
        let mut rest = part;
        for &(param, node) in updates {
            let running = params.value_mut(param);
            let (own, after) = rest.split_at(1 + running.len());
            rest = after;
            if let Op::BatchNormRunning { momentum, .. } = self.program.lowered.graph.node(node).op
                && own[0] != 0.0
            {
                for (value, &part) in running.iter_mut().zip(&own[1..]) {
                    *value = weigh_running(momentum, *value, part);
                }
            }
        }
        Ok(())
    }
}
