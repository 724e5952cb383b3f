//! A checkpoint that is loaded for evaluation and prediction.

use std::path::Path;
use std::sync::Arc;

use zillion_device::{Workers, gpu};
use zillion_feature::{Batch, Statistics};
use zillion_nn::{DenseType, Mode, Params};
use zillion_reader::Dataset;
use zillion_rows::{PartSource, RoundedRows, RowType, TableSpec};
use zillion_scorer::Scorer;

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::evaluate::{self, EvalReport, Judge, Predicted};
use crate::fetch::{self, Fetched};
use crate::frequencies::Frequencies;
use crate::importance::{ImportanceOptions, ImportanceReport, Measured};
use crate::job::Job;
use crate::pipeline::Planned;
use crate::retrieval::Towers;

/// A checkpoint that is loaded and ready to score rows.
pub struct Loaded {
    /// The job that wrote the checkpoint.
    pub job: Job,
    checkpoint: Checkpoint,
    scorer: Scorer,
    towers: Option<Towers>,
    frequencies: Frequencies,
    rows: PartSource,
    params: Params,
    workers: Arc<Workers>,
}

/// The scores of one batch of rows.
#[derive(Clone, Copy, Debug)]
pub struct Prediction<'a> {
    /// The rows that were scored.
    pub batch: &'a Batch,
    /// The log odds of each of the job's [`tasks`](Job::tasks), one for each row.
    pub logits: &'a [&'a [f32]],
    /// The positions of the bad rows that were left out after the end of the previous batch and
    /// before the end of this batch. Positions are counted from 0 over all files.
    pub rejected: &'a [u64],
}

/// The values of nodes over one batch of rows.
#[derive(Clone, Copy, Debug)]
pub struct InspectedBatch<'a> {
    /// The number of the first row, counted from 0 among the rows that are not left out as bad.
    pub first_row: u64,
    /// The rows of the batch.
    pub batch: &'a Batch,
    /// The values of the nodes, in the requested order.
    pub fetched: &'a [Fetched<'a>],
}

impl Loaded {
    /// Loads a checkpoint. `path` is the folder of a checkpoint or the folder of a run. For the
    /// folder of a run, the function loads the checkpoint of the best epoch.
    pub fn open(path: &Path, workers: Arc<Workers>) -> Result<Self> {
        Self::from_checkpoint(Checkpoint::find(path)?, workers)
    }

    /// Loads a checkpoint that is already open.
    pub fn from_checkpoint(checkpoint: Checkpoint, workers: Arc<Workers>) -> Result<Self> {
        let job = checkpoint.job()?;
        let graph = job.graph(Mode::Infer)?;
        let params = checkpoint.params(&graph.params)?;
        let rows = checkpoint.rows(&job, &workers)?;
        let settings = job.train.settings()?;
        let scorer = Scorer::new(&graph, settings, workers.clone())?;
        let towers = Towers::new(&job, &graph, settings, &workers)?;
        let frequencies = checkpoint.frequencies()?.unwrap_or_default();
        Ok(Self { job, checkpoint, scorer, towers, frequencies, rows, params, workers })
    }

    /// Returns the checkpoint that was loaded.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Returns the statistics of the training data's numeric features.
    pub fn statistics(&self) -> &Statistics {
        &self.checkpoint.manifest.statistics
    }

    /// Sets the number type in which dense layers are computed from now on, as in a server that
    /// loads a version with it. The vectors of users and items stay f32, and so do the nodes of
    /// [`Loaded::inspect`].
    pub fn set_dense(&mut self, dense: DenseType) {
        let pack = || self.scorer.pack(dense, &self.params, &mut || ());
        let packed = (!dense.is_exact()).then(pack);
        self.scorer.set_packed(packed);
    }

    /// Lets the device with this name (`cuda:0`) compute the scores from now on, in f32, with the
    /// same bits. Rows are looked up on the host, and the vectors of users and items are computed
    /// on processors, and so are the nodes of [`Loaded::inspect`].
    ///
    /// # Errors
    /// Returns an error if the device cannot be used, or cannot compute the model.
    pub fn set_device(&mut self, name: &str) -> Result<()> {
        let gpu = gpu::open(name, None).map_err(zillion_scorer::Error::from)?;
        Ok(self.scorer.set_device(Arc::from(gpu))?)
    }

    /// Scores a data set and compares it with its labels.
    pub fn evaluate(&mut self, dataset: &Dataset) -> Result<EvalReport> {
        let Self { job, scorer, towers, frequencies, rows, params, workers, .. } = self;
        let towers = towers.as_mut();
        let judge =
            Judge { job, scorer, towers, frequencies, source: rows, params, workers, stop: None };
        judge.evaluate(dataset)
    }

    /// Scores a data set with the rows as a version of the number type `row_type` has them, and
    /// compares it with its labels.
    ///
    /// # Errors
    /// Returns an error if the rows of a table cannot have the type, or if the data cannot be read.
    pub fn evaluate_as(&mut self, dataset: &Dataset, row_type: RowType) -> Result<EvalReport> {
        let mut tables = self.job.tables.clone();
        tables.iter_mut().for_each(|table| table.published = row_type);
        tables.iter().try_for_each(TableSpec::validate)?;
        let layouts = tables.iter().map(TableSpec::layout).collect();
        let Self { job, scorer, towers, frequencies, rows, params, workers, .. } = self;
        let source = &mut RoundedRows::new(rows, layouts);
        let towers = towers.as_mut();
        let judge = Judge { job, scorer, towers, frequencies, source, params, workers, stop: None };
        judge.evaluate(dataset)
    }

    /// Measures the importance of each feature over the first rows of a data set. `progress` gets
    /// the number of evaluations that are done and the number of all.
    ///
    /// # Errors
    /// Returns an error if the job has no label, if no label has the metric over these rows, or if
    /// the data cannot be read.
    pub fn measure_importance(
        &mut self,
        dataset: &Dataset,
        options: &ImportanceOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ImportanceReport> {
        let Self { job, scorer, rows, params, workers, .. } = self;
        let measured = Measured { job, scorer, source: rows, params, workers };
        measured.measure(dataset, options, progress)
    }

    /// Scores every row in file order, batch by batch, until `sink` returns `false`.
    pub fn predict(
        &mut self,
        dataset: &Dataset,
        mut sink: impl FnMut(Prediction<'_>) -> Result<bool>,
    ) -> Result<Predicted> {
        let Self { job, scorer, rows, params, workers, .. } = self;
        let score = |batch: &Batch, logits: &[&[f32]], rejected: &[u64]| {
            sink(Prediction { batch, logits, rejected })
        };
        evaluate::for_each_scored(job, dataset, scorer, rows, params, workers, score)
    }

    /// Scores every row like [`Loaded::predict`], and reads the values of nodes of the inference
    /// graph. Passes these values to `sink` batch by batch until `sink` returns `false`.
    ///
    /// # Errors
    /// Returns an error if a name is not the name of a node.
    pub fn inspect(
        &mut self,
        dataset: &Dataset,
        nodes: &[String],
        mut sink: impl FnMut(InspectedBatch<'_>) -> Result<bool>,
    ) -> Result<()> {
        let graph = self.job.graph(Mode::Infer)?;
        let wanted = fetch::find_nodes(&graph, nodes)?;
        let ids: Vec<_> = wanted.iter().map(|node| node.id).collect();
        let settings = self.job.train.settings()?;
        let mut scorer = Scorer::with_results(&graph, &ids, settings, self.workers.clone())?;
        let mut pipeline = evaluate::pipeline(&self.job, dataset, &self.workers)?;
        let mut first_row = 0;
        while let Some(Planned { batch, plan, .. }) = pipeline.next()? {
            scorer.score(&batch, &plan, &mut self.rows, &self.params)?;
            let fetched = fetch::fetch_values(&wanted, |id| scorer.output(id));
            if !sink(InspectedBatch { first_row, batch: &batch, fetched: &fetched })? {
                break;
            }
            first_row += batch.rows as u64;
        }
        Ok(())
    }
}
