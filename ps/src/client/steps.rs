//! The part of the contract for training steps.

use std::sync::Arc;

use zillion_embedding::{Counters, EventClock, Rates};
use zillion_feature::{LookupPlan, RowBuffer, Step};

use super::TableAccess;
use crate::error::Result;

/// The part of a client that does training steps. [`TrainClient`](super::TrainClient) describes the
/// order of the calls.
pub trait StepClient: TableAccess {
    /// Begins a step. Steps are counted from 1, and each step must have a greater number than the
    /// last applied step.
    ///
    /// # Errors
    /// Returns [`Error::Order`](crate::Error::Order) if staged gradients of the previous step are
    /// not applied yet, and [`Error::Argument`](crate::Error::Argument) if the number of the step
    /// is not allowed.
    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()>;

    /// Gives the event time of the step, which the tables that go by event time need. The call
    /// comes after `begin_step` and before the push. Other tables ignore it.
    ///
    /// # Errors
    /// Returns an error if no step has begun, if the time goes back, or if the tables are on
    /// servers, whose protocol does not carry event time.
    fn set_clock(&mut self, clock: EventClock) -> Result<()>;

    /// Returns whether a call of [`StepClient::look_ahead`] has an effect.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Announces the plans of the next pulls, so that their keys are sent, or their rows are read
    /// from disk, in time. The call does not wait for the disk or a server, and changes no result.
    ///
    /// # Errors
    /// Returns an error if a plan does not fit the tables.
    fn look_ahead(&mut self, _plans: &[&Arc<LookupPlan>]) -> Result<()> {
        Ok(())
    }

    /// Reads the rows of a plan, and returns them in `buffer`, whose memory is reused.
    ///
    /// # Errors
    /// Returns an error if no step has begun, if the gradients of the step were pushed already, or
    /// if the plan does not fit the tables.
    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        options: PullOptions,
        buffer: RowBuffer,
    ) -> Result<RowBuffer>;

    /// Pushes the gradients of the step, and returns a buffer for the next gradients.
    /// [`PushMode::Apply`] returns the same buffer. [`PushMode::Stage`] keeps the buffer and
    /// returns the buffer that it kept in an earlier step.
    ///
    /// # Errors
    /// Returns an error if no step has begun, if the gradients of the step were pushed already, or
    /// if the gradients do not fit the plan.
    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<RowBuffer>;

    /// Returns the squared norm of the staged gradients, including the gradients of regularisers.
    /// In a table with whole-table rules, the sum includes all rows. In any other table, the sum
    /// includes only the rows of the plan.
    ///
    /// # Errors
    /// Returns an error if no gradients are staged.
    fn grad_sq_norm(&mut self) -> Result<f64>;

    /// Returns the loss of the regularisers, `(l2 / 2) * |w|^2` with the present weights. In a
    /// table with whole-table rules, the sum includes all rows. In any other table, the sum
    /// includes only the rows of the plan.
    ///
    /// # Errors
    /// Returns an error if the plan does not fit the tables.
    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64>;

    /// Applies the staged gradients and the whole-table rules, and ends the step. Each gradient `g`
    /// becomes `(g + l2 * w) * scale`.
    ///
    /// # Errors
    /// Returns an error if no gradients are staged, or if `scale` is negative or not finite.
    fn apply(&mut self, scale: f32) -> Result<StepReport>;

    /// Ends the step without its staged gradients, because their norm is not finite. No weight and
    /// no optimizer state moves. Everything else is as in [`StepClient::apply`]: keys are counted
    /// and admitted, rows are created and evicted. The gradients of rows are counted as not finite.
    ///
    /// # Errors
    /// Returns an error if no gradients are staged.
    fn skip(&mut self) -> Result<StepReport>;

    /// Applies the whole-table rules after `push(Apply)`, ends the step, and returns its report.
    ///
    /// # Errors
    /// Returns an error if nothing was pushed.
    fn sweep(&mut self) -> Result<StepReport>;

    /// Drops the staged gradients, if there are any, and ends the step as if it had not begun.
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

/// The way in which a push treats its gradients: it applies them or stages them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushMode {
    /// The gradients are applied at once, in the same pass as the lookup of their rows. In tables
    /// with whole-table rules, [`StepClient::sweep`] applies them.
    Apply,
    /// The gradients are kept until [`StepClient::apply`], which multiplies them by the factor of
    /// clipping.
    Stage,
}

/// The counts of the changes that one step made to the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// The number of row gradients that were applied.
    pub pushed: u64,
    /// The number of rows that were created.
    pub created: u64,
    /// The number of row gradients that were dropped because their keys are not admitted yet.
    pub waiting: u64,
    /// The number of rows that were evicted, either on schedule or to make room in a table at its
    /// limit.
    pub evicted: u64,
    /// The number of row gradients that were dropped because their keys are not in the fixed
    /// vocabulary.
    pub refused: u64,
    /// The number of row gradients that were dropped because their keys were new and the table was
    /// at its limit.
    pub refused_full: u64,
    /// The number of row gradients that were dropped because they, or the norm of their step, were
    /// not finite. The pushes of their keys count.
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
