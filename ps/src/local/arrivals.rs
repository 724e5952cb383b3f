//! The reading and updating of tables for trainers that do not wait for each other. A server checks
//! the order of the calls of each trainer itself.

use std::sync::Arc;

use zillion_embedding::{Rates, Update};
use zillion_feature::{LookupPlan, RowBuffer, Step};

use super::{COPIED_PART, LocalClient};
use crate::client::PullOptions;
use crate::error::Result;

impl LocalClient {
    /// Reads the rows of a plan outside of a step.
    pub(crate) fn read_rows(
        &mut self,
        plan: &LookupPlan,
        options: PullOptions,
        mut buffer: RowBuffer,
    ) -> Result<RowBuffer> {
        self.check_whole()?;
        self.tables.pull(&self.workers, plan, options.counts, &mut buffer)?;
        Ok(buffer)
    }

    /// Applies gradients at once, and then the whole-table rules and the eviction of the step.
    pub(crate) fn apply_now(
        &mut self,
        plan: &Arc<LookupPlan>,
        gradients: &RowBuffer,
        (step, rates, scale): (Step, Rates, f32),
    ) -> Result<()> {
        self.check_settled("update")?;
        let update = Update { step, rates, scale };
        let pushed = self.tables.push(&self.workers, plan, gradients, update);
        self.counted = self.note_failure(pushed)?;
        if self.tables.needs_sweep() {
            let swept = self.tables.sweep(&self.workers, update);
            let counted = self.note_failure(swept)?;
            self.counted.add(counted);
        }
        self.copy_on(COPIED_PART);
        Ok(())
    }
}
