//! The gradients of dense parameters that the trainers of a run have exchanged.

use std::ops::Range;

use zillion_nn::ParamId;

use super::graph_executor::GraphExecutor;
use crate::error::{Error, Result};

/// The gradients of dense parameters over the batches of all trainers, and the decision of the
/// trainers about the end of the run.
#[derive(Debug, Default)]
pub(super) struct Joint {
    /// The gradients of all parameters, one after another.
    pub(super) gradients: Vec<f32>,
    /// The place of each parameter's gradient. Empty before the first step.
    pub(super) places: Vec<(ParamId, Range<usize>)>,
    /// Whether a trainer was stopped. All trainers then end after the same step.
    pub(super) is_stopped: bool,
}

impl Joint {
    /// Returns whether the gradients were exchanged with other trainers.
    pub(super) fn is_exchanged(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns the gradient of a parameter over the batches of all trainers. Returns `None` if the
    /// loss does not depend on the parameter.
    pub(super) fn param_grad(&self, id: ParamId) -> Option<&[f32]> {
        let at = self.places.binary_search_by_key(&id, |(param, _)| *param).ok()?;
        self.gradients.get(self.places[at].1.clone())
    }

    /// Copies the gradients of the batch that `executor` ran last.
    pub(super) fn collect(&mut self, executor: &GraphExecutor) {
        self.gradients.clear();
        for (_, grad) in executor.param_grads() {
            self.gradients.extend_from_slice(grad);
        }
    }

    /// Keeps the gradients over all batches of the step, which the trainers have exchanged.
    pub(super) fn keep(&mut self, gradients: Vec<f32>, executor: &GraphExecutor) -> Result<()> {
        self.places.clear();
        let mut end = 0;
        for (param, grad) in executor.param_grads() {
            self.places.push((param, end..end + grad.len()));
            end += grad.len();
        }
        if gradients.len() != end {
            return Err(Error::Exchange {
                problem: format!(
                    "the gradients have {} numbers, but the model has {end}",
                    gradients.len()
                ),
            });
        }
        self.gradients = gradients;
        Ok(())
    }
}
