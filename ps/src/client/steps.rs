//! The calls of one training step on tables.

use std::sync::Arc;

use zillion_embedding::{Counters, Rates};
use zillion_feature::{LookupPlan, RowBuffer, Step};

use super::TableAccess;
use crate::error::Result;

/// The part of a client that does training steps. [`TrainClient`](super::TrainClient) describes the
/// order of the calls.
pub trait StepClient: TableAccess {
    /// Begins a step. Steps are counted from 1, and the number of a step is greater than that of
    /// the last applied step.
    ///
    /// # Errors
    /// Returns [`Error::Order`](crate::Error::Order) if staged gradients of the previous step are
    /// not applied yet.
    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()>;

    /// Returns whether [`StepClient::look_ahead`] has an effect.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Announces the next plans that will be pulled, so that their rows are read from disk in time.
    /// The call does not wait and changes no result.
    ///
    /// # Errors
    /// Returns an error if a plan does not fit the tables.
    fn look_ahead(&mut self, _plans: &[&LookupPlan]) -> Result<()> {
        Ok(())
    }

    /// Reads the rows of a plan into `buffer`, whose memory is reused.
    ///
    /// # Errors
    /// Returns an error if no step has begun, if the step was pushed, or if the plan does not fit
    /// the tables.
    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        options: PullOptions,
        buffer: RowBuffer,
    ) -> Result<RowBuffer>;

    /// Pushes the gradients of the step, and returns a buffer for the next gradients. With
    /// [`PushMode::Apply`], this is the same buffer. [`PushMode::Stage`] keeps the buffer and
    /// returns the one that was kept before.
    ///
    /// # Errors
    /// Returns an error if no step has begun, if the step was pushed already, or if the gradients
    /// do not fit the plan.
    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<RowBuffer>;

    /// Returns the squared norm of the staged gradients, including the gradients of regularisers.
    /// The norm is over all rows of tables with whole-table rules, and over the rows of the plan in
    /// other tables.
    ///
    /// # Errors
    /// Returns an error if no gradients are staged.
    fn grad_sq_norm(&mut self) -> Result<f64>;

    /// Returns the loss of the regularisers, `(l2 / 2) * |w|^2` with the present weights. The sum
    /// is over all rows of tables with whole-table rules, and over the rows of the plan in other
    /// tables.
    ///
    /// # Errors
    /// Returns an error if the plan does not fit the tables.
    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64>;

    /// Applies the staged gradients and the whole-table rules, `g' = (g + l2 * w) * scale`, and
    /// ends the step.
    ///
    /// # Errors
    /// Returns an error if no gradients are staged, or if the factor is not finite or is negative.
    fn apply(&mut self, scale: f32) -> Result<StepReport>;

    /// Applies the whole-table rules after `push(Apply)`, ends the step, and returns its report.
    ///
    /// # Errors
    /// Returns an error if nothing was pushed.
    fn sweep(&mut self) -> Result<StepReport>;

    /// Drops the staged gradients, if there are any, and skips the step.
    ///
    /// # Errors
    /// Returns an error after `push(Apply)`, which cannot be undone.
    fn discard(&mut self) -> Result<()>;
}

/// The values that a pull reads in addition to the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// Whether to read the number of pushes that each row has had.
    pub counts: bool,
}

/// The treatment of pushed gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushMode {
    /// The gradients are applied in one pass with the lookup (in tables with whole-table rules, by
    /// [`StepClient::sweep`]).
    Apply,
    /// The gradients are kept until [`StepClient::apply`], which clips them.
    Stage,
}

/// The counts of the changes that one step made to the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// The number of row gradients that were pushed.
    pub pushed: u64,
    /// The number of rows that were created.
    pub created: u64,
    /// The number of row gradients that were dropped because their keys are not admitted yet.
    pub waiting: u64,
    /// The number of rows that were evicted, on schedule or to free memory for others.
    pub evicted: u64,
    /// The number of row gradients for keys outside of a fixed vocabulary.
    pub refused: u64,
    /// The number of row gradients for new keys that a table at its limit refused.
    pub refused_full: u64,
    /// The number of row gradients that were dropped because they were not finite.
    pub nonfinite: u64,
}

impl From<Counters> for StepReport {
    fn from(counted: Counters) -> Self {
        Self {
            pushed: counted.pushed,
            created: counted.created,
            waiting: counted.waiting,
            evicted: counted.evicted,
            refused: counted.refused,
            refused_full: counted.refused_full,
            nonfinite: counted.nonfinite,
        }
    }
}
