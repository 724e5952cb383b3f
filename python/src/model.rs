//! A checkpoint that scores rows for Python.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use anyhow::{Result, anyhow};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zillion_console::{compute_pool, data_settings};
use zillion_feature::LabelKind;
use zillion_reader::{Dataset, Labels};
use zillion_trainer::{Loaded, Prediction};

use crate::boundary::call;

/// A checkpoint that is loaded and ready to score rows. Calls from several threads wait for each
/// other, because the scorer has the buffers of one batch.
#[pyclass(frozen, module = "zillion._zillion")]
pub(crate) struct Model {
    loaded: Mutex<Loaded>,
}

/// The predictions of a file. Rows that were left out as bad have NaN.
#[derive(Default)]
struct Predictions {
    /// The values of each task, one for each row of the data.
    columns: Vec<Vec<f64>>,
    rows: u64,
}

#[pymethods]
impl Model {
    /// Loads a checkpoint. `path` is the folder of a checkpoint or of a run, whose best epoch is
    /// loaded then.
    #[new]
    #[pyo3(signature = (path, threads=None))]
    fn new(py: Python<'_>, path: PathBuf, threads: Option<NonZeroUsize>) -> PyResult<Self> {
        call(py, "Model", || {
            let loaded = Loaded::open(&path, compute_pool(threads)?)?;
            Ok(Self { loaded: Mutex::new(loaded) })
        })
    }

    /// Scores the rows of files. Returns the names of the columns, the columns as little-endian
    /// `f64`, one value for each row, and the number of rows that were left out as bad.
    fn predict<'py>(
        &self,
        py: Python<'py>,
        files: Vec<PathBuf>,
        format: Option<String>,
    ) -> PyResult<(Vec<String>, Vec<Bound<'py, PyBytes>>, u64)> {
        let (names, columns, rejected) = call(py, "predict", || {
            let mut loaded = self.lock()?;
            predict(&mut loaded, &files, format)
        })?;
        let columns = columns.iter().map(|column| PyBytes::new(py, bytemuck::cast_slice(column)));
        Ok((names, columns.collect(), rejected))
    }

    /// Scores the labelled rows of files. Returns the figures of the evaluation as JSON.
    fn evaluate(
        &self,
        py: Python<'_>,
        files: Vec<PathBuf>,
        format: Option<String>,
    ) -> PyResult<String> {
        call(py, "evaluate", || {
            let mut loaded = self.lock()?;
            let dataset = open(&loaded, &files, format, Labels::Required)?;
            Ok(serde_json::to_string(&loaded.evaluate(&dataset)?)?)
        })
    }
}

impl Model {
    /// Returns the checkpoint.
    ///
    /// # Errors
    /// Returns an error if an earlier call has panicked, because the buffers may be damaged.
    fn lock(&self) -> Result<MutexGuard<'_, Loaded>> {
        self.loaded.lock().map_err(|_| anyhow!("the loaded model had a fault; load it again"))
    }
}

fn open(
    loaded: &Loaded,
    files: &[PathBuf],
    format: Option<String>,
    labels: Labels,
) -> Result<Dataset> {
    let sets: Vec<String> = format.iter().map(|format| format!("data.format={format:?}")).collect();
    let data = data_settings::of_checkpoint(&loaded.job, &sets)?;
    let dataset = Dataset::open_with(&data, files, &loaded.job.schema, labels)?;
    Ok(dataset.with_statistics(loaded.statistics().clone()))
}

fn predict(
    loaded: &mut Loaded,
    files: &[PathBuf],
    format: Option<String>,
) -> Result<(Vec<String>, Vec<Vec<f64>>, u64)> {
    let dataset = open(loaded, files, format, Labels::Optional)?;
    let labels = &loaded.job.schema.labels;
    let kind_of = |label: usize| labels.get(label).map(|label| label.kind).unwrap_or_default();
    let tasks = loaded.job.tasks().into_iter();
    let (mut names, kinds): (Vec<String>, Vec<Option<LabelKind>>) =
        tasks.map(|task| (task.name.clone(), Some(kind_of(task.label.of())))).unzip();
    let mut predictions = Predictions { columns: vec![Vec::new(); names.len().max(1)], rows: 0 };
    let outcome = loaded.predict(&dataset, |prediction| {
        predictions.add(&prediction, &kinds);
        Ok(true)
    })?;
    predictions.leave_out(&outcome.rejected_last);
    if names.is_empty() {
        // A retrieval model without labels has one score, which predicts no label.
        names.push("score".to_owned());
    }
    Ok((names, predictions.columns, outcome.rejected))
}

impl Predictions {
    /// Adds the rows of a batch. `kinds` has the kind of each task's label; a score without a task
    /// stays as it is.
    fn add(&mut self, prediction: &Prediction<'_>, kinds: &[Option<LabelKind>]) {
        let mut rejected = prediction.rejected.iter().peekable();
        let rows = prediction.logits.first().map_or(0, |first| first.len());
        for at in 0..rows {
            while rejected.next_if(|&&row| row == self.rows).is_some() {
                self.add_row(|_| f64::NAN);
            }
            self.add_row(|task| {
                let score = prediction.logits[task][at];
                let kind = kinds.get(task).copied().flatten();
                kind.map_or(f64::from(score), |kind| kind.predict_exactly(score))
            });
        }
        rejected.for_each(|_| self.add_row(|_| f64::NAN));
    }

    /// Adds the bad rows after the last batch.
    fn leave_out(&mut self, rejected: &[u64]) {
        rejected.iter().for_each(|_| self.add_row(|_| f64::NAN));
    }

    fn add_row(&mut self, value: impl Fn(usize) -> f64) {
        self.columns.iter_mut().enumerate().for_each(|(task, column)| column.push(value(task)));
        self.rows += 1;
    }
}
