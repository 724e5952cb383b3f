//! The scores of a batch before the run learns from it.

use zillion_feature::{Batch, LookupPlan};
use zillion_nn::zoo::TaskLabel;
use zillion_stream::joiner::correction_weight;

use super::super::Run;
use super::super::model::{Model, select_scoring_params};
use crate::error::Result;

impl Run {
    /// Scores a batch as a server would with the present weights. Returns the log odds of each
    /// task.
    pub(super) fn score_before(
        &mut self,
        batch: &Batch,
        plan: &LookupPlan,
    ) -> Result<Vec<Vec<f32>>> {
        self.score_with_missing(batch, plan).map(|(logits, _)| logits)
    }

    /// Scores a batch as [`Run::score_before`] does. Also returns the number of unique keys without
    /// a row.
    pub(in crate::train) fn score_with_missing(
        &mut self,
        batch: &Batch,
        plan: &LookupPlan,
    ) -> Result<(Vec<Vec<f32>>, u64)> {
        let Self { client, model, .. } = self;
        model.settle()?;
        let Model { scorer, params, average, .. } = model;
        let params = select_scoring_params(average.as_ref(), params);
        let mut rows = client.row_source()?;
        let scores = scorer.score(batch, plan, rows.as_mut(), params)?;
        let logits = scores.outputs.iter().map(|output| output.to_vec()).collect();
        Ok((logits, scores.missing))
    }

    /// Sets the weights of rows that take back an earlier negative. The weight depends on the
    /// probability that the model gives to the row now.
    pub(super) fn weigh_corrections(
        &mut self,
        batch: &mut Batch,
        plan: &LookupPlan,
        cancels: &[f32],
    ) -> Result<()> {
        let logits = self.score_before(batch, plan)?;
        let tasks = self.job.tasks();
        let rows = batch.rows;
        let weights = batch.weight.get_or_insert_with(|| vec![1.0; rows]);
        for row in (0..rows).filter(|&row| cancels[row] != 0.0) {
            // A correction has one label. The labels of other tasks are unknown.
            let is_known =
                |label: usize| batch.labels[label].mask.as_ref().is_none_or(|mask| mask[row]);
            let of_task = tasks.iter().position(|task| match task.label {
                TaskLabel::Own { label } => is_known(label),
                TaskLabel::Both { .. } | TaskLabel::Given { .. } | TaskLabel::Class { .. } => false,
            });
            let Some(logits) = of_task.and_then(|task| logits.get(task)) else { continue };
            let probability = 1.0 / (1.0 + (-logits[row]).exp());
            weights[row] = correction_weight(weights[row], cancels[row], probability);
        }
        Ok(())
    }
}
