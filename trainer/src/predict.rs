//! A checkpoint, loaded for scoring: what `eval` and `predict` run on.

use std::path::Path;
use std::sync::Arc;

use zillion_device::Workers;
use zillion_embedding::PartSource;
use zillion_feature::{Batch, Statistics};
use zillion_nn::{Mode, Params, Settings};
use zillion_reader::Dataset;
use zillion_registry::Scorer;

use crate::checkpoint::{Checkpoint, RunDir};
use crate::error::{Error, Result};
use crate::evaluate::{self, EvalReport};
use crate::job::Job;
use crate::model;

/// A checkpoint's model, ready to score.
pub struct Loaded {
    /// The job that wrote it.
    pub job: Job,
    checkpoint: Checkpoint,
    scorer: Scorer,
    rows: PartSource,
    params: Params,
    workers: Arc<Workers>,
}

/// Scores of some rows.
#[derive(Clone, Copy, Debug)]
pub struct Prediction<'a> {
    /// The rows.
    pub batch: &'a Batch,
    /// Log odds, one a row.
    pub logits: &'a [f32],
    /// Which rows of the data, counted from 0 over all files, were left out as bad, from the rows before up
    /// to the last of these.
    pub rejected: &'a [u64],
}

/// What scoring rows came to.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// Unique keys that the tables did not have, summed over batches.
    pub missing: u64,
    /// Rows left out as bad.
    pub rejected: u64,
    /// Of these, the ones behind the last row that was scored.
    pub rejected_last: Vec<u64>,
}

impl Loaded {
    /// Loads a checkpoint: its own folder, or a run's folder (then the best epoch's).
    pub fn open(path: &Path, workers: Arc<Workers>) -> Result<Self> {
        Self::from_checkpoint(find(path)?, workers)
    }

    /// Loads a checkpoint that is already open.
    pub fn from_checkpoint(checkpoint: Checkpoint, workers: Arc<Workers>) -> Result<Self> {
        let job = checkpoint.job()?;
        let graph = model::graph(&job, Mode::Infer)?;
        let params = checkpoint.params(&graph.params)?;
        let rows = checkpoint.rows(&job, &workers)?;
        let settings =
            Settings { lanes: job.train.lanes.get(), tile_rows: job.train.tile_rows.get() };
        let scorer = Scorer::new(&graph, settings, workers.clone())?;
        Ok(Self { job, checkpoint, scorer, rows, params, workers })
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What the first pass over the training data learned.
    pub fn statistics(&self) -> &Statistics {
        &self.checkpoint.manifest.statistics
    }

    /// Scores a data set and compares it with its labels.
    pub fn evaluate(&mut self, dataset: &Dataset) -> Result<EvalReport> {
        let Self { job, scorer, rows, params, workers, .. } = self;
        evaluate::evaluate(job, dataset, scorer, rows, params, workers)
    }

    /// Scores every row in file order, a batch at a time, until the sink says `false`.
    pub fn predict(
        &mut self,
        dataset: &Dataset,
        mut sink: impl FnMut(Prediction<'_>) -> Result<bool>,
    ) -> Result<Predicted> {
        let Self { job, scorer, rows, params, workers, .. } = self;
        let score = |batch: &Batch, logits: &[f32], rejected: &[u64]| {
            sink(Prediction { batch, logits, rejected })
        };
        let scored = evaluate::for_each_scored(job, dataset, scorer, rows, params, workers, score)?;
        let evaluate::Scored { missing, rejected, rejected_last } = scored;
        Ok(Predicted { missing, rejected, rejected_last })
    }
}

fn find(path: &Path) -> Result<Checkpoint> {
    if path.join("MANIFEST").exists() {
        return Checkpoint::open(path);
    }
    if !path.is_dir() {
        return Err(Error::NoCheckpoint { path: path.to_owned() });
    }
    RunDir::new(path).best()
}
