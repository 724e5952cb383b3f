//! Steps that count their keys and move no weight.

use zillion_device::Workers;
use zillion_feature::{LookupPlan, RowBuffer};

use crate::error::Result;
use crate::set::{TableSet, Update};
use crate::shape::TableStep;
use crate::statistics::Counters;

impl TableSet {
    /// Ends a step whose gradients are not applied, because their norm is not finite. No weight and
    /// no optimizer state moves. Everything else is as in [`TableSet::apply`] and then
    /// [`TableSet::sweep`]: keys are counted and admitted, rows are created, marked as pushed in
    /// this step, and evicted. So these changes depend on the keys alone. The gradients of rows are
    /// counted as not finite.
    ///
    /// # Errors
    /// Returns an error under the conditions of [`TableSet::push`].
    pub fn skip(
        &mut self,
        workers: &Workers,
        plan: &LookupPlan,
        gradients: &RowBuffer,
        update: Update,
    ) -> Result<Counters> {
        let skipped = |mut steps: Vec<Option<TableStep>>| {
            steps.iter_mut().flatten().for_each(|step| step.is_skipped = true);
            steps
        };
        let steps = skipped(self.steps(update, false)?);
        let mut counted = self.apply_steps(workers, plan, gradients, (update.step, steps))?;
        let steps = skipped(self.steps(update, true)?);
        counted.add(self.sweep_steps(workers, update.step, &steps)?);
        Ok(counted)
    }
}
