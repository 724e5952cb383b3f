//! The pruning of a run: the weights of rows nearest to zero become zero at fixed steps, and at the
//! end of each epoch.
//!
//! # Invariants
//! * The steps of prunings follow from the job and the data alone. So a run that was stopped and
//!   resumed prunes as one that was not.

use zillion_embedding::Pruned;

use super::Run;
use crate::error::Result;
use crate::evaluate::EvalReport;
use crate::profile::Stage;
use crate::publish::PruningCost;

impl Run {
    /// Prunes the tables at the end of a step, if the job does so in this step. The step has ended
    /// in the tables.
    pub(super) fn prune_after_step(&mut self) -> Result<()> {
        let step = self.position.step + 1;
        let Some(prune) = self.job.train.prune.as_ref().filter(|prune| prune.is_due(step)) else {
            return Ok(());
        };
        let share = prune.share_at(step);
        self.stage(Stage::Push, |run| run.prune(share))?;
        Ok(())
    }

    /// Prunes the tables at the end of an epoch, and returns the cost. If the run publishes, the
    /// validation data are scored before it, too.
    pub(super) fn prune_after_epoch(&mut self) -> Result<Option<PruningCost>> {
        let step = self.position.step;
        let Some(prune) = self.job.train.prune.as_ref().filter(|prune| step > prune.from) else {
            return Ok(None);
        };
        let share = prune.share_at(step);
        let whole = match self.job.publish.is_some() && self.data.valid.is_some() {
            true => self.stage(Stage::Validate, Self::validate_rows)?,
            false => None,
        };
        let pruned = self.stage(Stage::Push, |run| run.prune(share))?;
        Ok(Some(PruningCost { pruned, whole: whole.and_then(|report| report.auc) }))
    }

    fn validate_rows(&mut self) -> Result<Option<EvalReport>> {
        self.validate(zillion_rows::RowType::F32, zillion_nn::DenseType::F32)
    }

    /// Prunes this share of the weights of each table that the job prunes.
    fn prune(&mut self, share: f64) -> Result<Pruned> {
        let mut sum = Pruned::default();
        for table in self.job.pruned_tables()? {
            sum.add(self.client.prune(table, share)?);
        }
        tracing::debug!(step = self.position.step, share, zeros = sum.zeros, "tables were pruned");
        Ok(sum)
    }
}

#[cfg(test)]
mod tests;
