//! The accumulation of the gradients of several batches into one step (`train.accumulate`).
//!
//! A step of N batches equals a step of one batch with all their rows ([`MergedGradients`]). Every
//! batch of a step reads the same weights. Some values still depend on one batch only: the
//! statistics of batch norm, a loss that is averaged over weights or labels, and the items of a
//! softmax.
//!
//! # Invariants
//! A checkpoint is written between steps and never holds a part of a step.

use zillion_feature::random::combine;
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_nn::ParamId;
use zillion_ps::{MergedDense, MergedGradients};

use super::graph_executor::GraphExecutor;

/// The sums of the gradients of a step's batches so far.
#[derive(Debug, Default)]
pub(super) struct Accumulated {
    /// The gradient of each parameter; empty if the loss does not depend on the parameter.
    dense: Vec<MergedDense>,
    /// The gradients of the tables' rows.
    sparse: MergedGradients,
}

impl Accumulated {
    /// Returns the number of batches in the step so far.
    pub(super) fn batches(&self) -> u64 {
        self.sparse.batches()
    }

    /// Adds the gradients of the batch that `executor` ran last.
    pub(super) fn add(&mut self, plan: &LookupPlan, grads: &RowBuffer, executor: &GraphExecutor) {
        for (param, grad) in executor.param_grads() {
            let index = param.0 as usize;
            if self.dense.len() <= index {
                self.dense.resize_with(index + 1, MergedDense::default);
            }
            self.dense[index].add(plan.rows, grad);
        }
        self.sparse.add(plan, grads);
    }

    /// Returns the lookup plan of the step, and fills `buffer` with the gradients of its rows.
    /// [`Accumulated::param_grad`] then returns the gradients of parameters.
    pub(super) fn finish(&mut self, buffer: &mut RowBuffer) -> LookupPlan {
        let rows = self.sparse.rows();
        self.dense.iter_mut().for_each(|sum| sum.finish(rows));
        self.sparse.finish(buffer)
    }

    /// Returns the gradient of a parameter, after [`Accumulated::finish`] has ended the step.
    pub(super) fn param_grad(&self, id: ParamId) -> Option<&[f32]> {
        self.dense.get(id.0 as usize).map(MergedDense::values).filter(|sum| !sum.is_empty())
    }

    /// Resets the sums for the next step, and keeps the memory of the buffers.
    pub(super) fn clear(&mut self) {
        self.dense.iter_mut().for_each(MergedDense::clear);
        self.sparse.clear();
    }
}

/// Returns the seed for the random numbers of the batch with this number in its step, counted from
/// 0. Each batch of a step has a different seed. `seed` is the seed of the first batch.
pub(super) fn seed_of_batch(seed: u64, batch: u64) -> u64 {
    if batch == 0 { seed } else { combine(seed, batch) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_batch_of_a_step_has_its_own_seed() {
        assert_eq!(seed_of_batch(5, 0), 5);
        assert_ne!(seed_of_batch(5, 1), 5);
        assert_ne!(seed_of_batch(5, 1), seed_of_batch(5, 2));
    }
}
