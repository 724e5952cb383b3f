//! Parity rows: raw rows of the job's data and the scores that training gives them.

use zillion_feature::{Batch, Encoder, LookupPlan, PlanScratch, RawColumns};
use zillion_nn::Params;
use zillion_reader::{Paths, RawRows};
use zillion_rows::RowSource;
use zillion_scorer::{ParityRows, Scorer};

use crate::error::{Error, Result};
use crate::job::Job;

/// The parity rows of a job, raw and encoded as a server encodes them.
pub(super) struct Parity {
    columns: RawColumns<'static>,
    /// The encoded rows, each in a batch of its own, because a server replays them one by one.
    rows: Vec<(Batch, LookupPlan)>,
}

impl Parity {
    /// Reads the first rows of the job's validation data. If there is no validation data, reads the
    /// test data. If there is neither, reads the training data.
    pub(super) fn read(job: &Job, encoder: &Encoder, limit: usize) -> Result<Self> {
        let data = &job.data;
        let has = |paths: &&Paths| !paths.is_empty();
        let paths = [&data.valid, &data.test, &data.train].into_iter().find(has);
        let paths = paths.unwrap_or(&data.train);
        let files = data.files(paths)?;
        let none = || {
            Error::Unsupported(
                "the data has no rows for the parity check of a version; add rows to `data.valid`"
                    .to_owned(),
            )
        };
        let block = RawRows::open(data, &files, &job.schema)?.next_block(limit)?;
        let columns = block.ok_or_else(none)?.columns;
        let mut single = RawRows::open(data, &files, &job.schema)?;
        let mut rows = Vec::with_capacity(limit);
        let mut scratch = PlanScratch::default();
        while rows.len() < limit
            && let Some(row) = single.next_block(1)?
        {
            let batch = encoder
                .encode(row.rows, &row.columns)
                .map_err(|e| Error::Scorer(zillion_scorer::Error::Input(e)))?;
            let plan = LookupPlan::build(&batch, &job.schema, &mut scratch);
            rows.push((batch, plan));
        }
        Ok(Self { columns, rows })
    }

    /// Scores the rows, and returns them with their scores in the form of a version's parity rows.
    pub(super) fn score(
        &self,
        scorer: &mut Scorer,
        source: &mut dyn RowSource,
        params: &Params,
    ) -> Result<ParityRows> {
        let mut logits: Vec<Vec<f32>> = Vec::new();
        for (batch, plan) in &self.rows {
            let scores = scorer.score(batch, plan, source, params)?;
            logits.resize(scores.outputs.len(), Vec::new());
            for (of_task, scored) in logits.iter_mut().zip(&scores.outputs) {
                of_task.extend_from_slice(scored);
            }
        }
        Ok(ParityRows::new(self.rows.len(), &self.columns, logits))
    }
}
