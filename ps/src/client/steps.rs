//! One training step on tables.

use std::sync::Arc;

use zillion_embedding::{Counters, Rates};
use zillion_feature::{LookupPlan, RowBuffer, Step};

use super::TableAccess;
use crate::error::Result;
use crate::pending::Pending;

/// The calls of a training step, in the order that [`TrainClient`](super::TrainClient) describes.
pub trait StepClient: TableAccess {
    /// Begins a step. Steps are counted from 1, and a step comes after the last one that was
    /// applied.
    ///
    /// # Errors
    /// [`Error::Order`](crate::Error::Order) while gradients of the step before wait to be applied.
    fn begin_step(&mut self, step: Step, rates: Rates) -> Result<()>;

    /// Returns whether [`StepClient::look_ahead`] does anything.
    fn looks_ahead(&self) -> bool {
        false
    }

    /// Announces the plans that will be pulled after those announced before, so that their rows are
    /// read from disk in time. It waits for nothing and changes no result.
    ///
    /// # Errors
    /// For a plan that is not for these tables.
    fn look_ahead(&mut self, plans: &[&LookupPlan]) -> Result<()> {
        let _ = plans;
        Ok(())
    }

    /// Reads the plan's rows into `buffer`, whose memory is reused.
    ///
    /// # Errors
    /// Outside of a step, after its push, or for a plan that is not for these tables.
    fn pull(
        &mut self,
        plan: &Arc<LookupPlan>,
        want: Want,
        buffer: RowBuffer,
    ) -> Result<Pending<RowBuffer>>;

    /// Hands over the step's gradients, and returns a buffer to fill next. In [`PushMode::Apply`]
    /// that is the same buffer; in [`PushMode::Stage`], which keeps it, it is the buffer kept
    /// before.
    ///
    /// # Errors
    /// Outside of a step, a second time in a step, or for gradients that do not fit the plan.
    fn push(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: RowBuffer,
        mode: PushMode,
    ) -> Result<Pending<RowBuffer>>;

    /// Returns the squared norm of the staged gradients, the regulariser's gradients included. It
    /// is over the whole table where its rules are, else over the rows of the plan.
    ///
    /// # Errors
    /// Without staged gradients.
    fn grad_sq_norm(&mut self) -> Result<f64>;

    /// Returns the regulariser's loss, `(l2 / 2) * |w|^2` with the weights as they are. It is over
    /// the whole table where the regulariser is, else over the rows of the plan.
    ///
    /// # Errors
    /// For a plan that is not for these tables.
    fn regulariser_loss(&mut self, plan: &LookupPlan) -> Result<f64>;

    /// Applies the staged gradients and the whole-table rules: `g' = (g + l2 * w) * scale`. Ends
    /// the step.
    ///
    /// # Errors
    /// Without staged gradients, or for a factor that is not finite or is negative.
    fn apply(&mut self, scale: f32) -> Result<StepReport>;

    /// Applies the whole-table rules after `push(Apply)`, and reports the step. Ends the step.
    ///
    /// # Errors
    /// Where nothing was pushed.
    fn sweep(&mut self) -> Result<StepReport>;

    /// Drops the staged gradients, if there are any, and skips the step.
    ///
    /// # Errors
    /// After `push(Apply)`, which cannot be undone.
    fn discard(&mut self) -> Result<()>;
}

/// The values that a pull reads beside the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Whether to read how often each row has been pushed.
    pub counts: bool,
}

/// The treatment of pushed gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushMode {
    /// Apply them in one pass with the lookup (by [`StepClient::sweep`] in tables with whole-table
    /// rules).
    Apply,
    /// Keep them until [`StepClient::apply`], which clips them.
    Stage,
}

/// The changes that one step made to the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepReport {
    /// The rows that had a gradient.
    pub pushed: u64,
    /// The rows that were created.
    pub created: u64,
    /// The gradients that were dropped because their keys are not admitted yet.
    pub waiting: u64,
    /// The rows that were evicted, on schedule or to free memory for others.
    pub evicted: u64,
    /// The gradients for keys outside of a fixed vocabulary.
    pub refused: u64,
    /// The gradients for new keys that a table at its limit refused.
    pub refused_full: u64,
    /// The gradients that were dropped because they were not finite.
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
