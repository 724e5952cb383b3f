//! The dense half of a step: its gradients, their norm and its update, on the host or on a GPU.
//!
//! # Invariants
//! * If the parameters stay on a GPU, the newest ones and the state of their optimizer are there
//!   between steps. Whatever reads them on the host calls [`Model::settle`] first: checkpoints,
//!   validations, publications and scores.
//! * The host changes parameters only while a run is prepared. [`Model::leave_gpu`] then lets the
//!   next step copy them to the GPU again.

use zillion_device::Workers;
use zillion_nn::{Inputs, ParamId, StepSeed};

use super::accumulate::Accumulated;
use super::graph_executor::GraphExecutor;
use super::joint_gradients::Joint;
use super::model::Model;
use crate::error::Result;

impl Model {
    /// Runs the training graph on a batch, and fills the gradients of its rows.
    pub(super) fn train(
        &mut self,
        workers: &Workers,
        inputs: &Inputs<'_>,
        seed: StepSeed,
        row_grads: &mut [&mut [f32]],
    ) -> Result<()> {
        let Self { executor, params, optimizer, resident, .. } = self;
        if let (Some(resident), GraphExecutor::Gpu(executor)) = (resident, &mut *executor) {
            if !executor.keeps_params() {
                executor.keep_params(params, optimizer)?;
            }
            // The running statistics move in this call, before the update of the parameters.
            resident.is_behind = true;
            resident.sq_norm = executor.train_kept(inputs, params, seed, row_grads)?;
            return Ok(());
        }
        executor.train(workers, inputs, params, seed, row_grads)
    }

    /// Returns the squared norm of the dense gradients of the step, including the regulariser.
    pub(super) fn dense_sq_norm(
        &self,
        accumulated: &Accumulated,
        joint: &Joint,
        workers: &Workers,
    ) -> Result<f64> {
        if let Some(resident) = &self.resident {
            return Ok(resident.sq_norm);
        }
        let grad = param_grad(&self.executor, accumulated, joint);
        Ok(self.optimizer.sq_norm(&self.params, grad, workers)?)
    }

    /// Updates the dense parameters by the gradients of the step.
    pub(super) fn optimize(
        &mut self,
        accumulated: &Accumulated,
        joint: &Joint,
        (rate_scale, grad_scale): (f32, f32),
        workers: &Workers,
    ) -> Result<()> {
        let Self { executor, params, optimizer, resident, .. } = self;
        if let (Some(_), GraphExecutor::Gpu(executor)) = (resident, &mut *executor) {
            return Ok(executor.optimize(optimizer, rate_scale, grad_scale)?);
        }
        let grad = param_grad(executor, accumulated, joint);
        Ok(optimizer.step(params, grad, rate_scale, grad_scale, workers)?)
    }

    /// Copies the newest parameters and the state of their optimizer to the host, if they are on a
    /// GPU alone.
    pub(super) fn settle(&mut self) -> Result<()> {
        let Self { executor, params, optimizer, resident, .. } = self;
        if let (Some(resident), GraphExecutor::Gpu(executor)) = (resident, executor)
            && resident.is_behind
        {
            executor.settle_params(params, optimizer)?;
            resident.is_behind = false;
        }
        Ok(())
    }

    /// Drops the parameters on the GPU, because the caller is about to replace those of the host.
    pub(super) fn leave_gpu(&mut self) -> Result<()> {
        if let (Some(resident), GraphExecutor::Gpu(executor)) =
            (&mut self.resident, &mut self.executor)
        {
            executor.drop_kept()?;
            resident.is_behind = false;
        }
        Ok(())
    }
}

/// Returns a function that finds the gradient of a parameter, summed over the batches of the step.
fn param_grad<'a>(
    executor: &'a GraphExecutor,
    accumulated: &'a Accumulated,
    joint: &'a Joint,
) -> impl Fn(ParamId) -> Option<&'a [f32]> {
    |id| match accumulated.batches() {
        _ if joint.is_exchanged() => joint.param_grad(id),
        0 => executor.param_grad(id),
        _ => accumulated.param_grad(id),
    }
}
