//! The batches of a job, as the trainer gets them, for Python.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, anyhow};
use bytemuck::NoUninit;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use zillion_console::compute_pool;
use zillion_feature::{Batch, Cursor, Schema};
use zillion_reader::{BatchOrder, BatchStream, Dataset, Labels, Paths};
use zillion_trainer::Job;

use crate::boundary::call;
use crate::job::read_job;
use crate::stepper::BatchRows;

/// An iterator over the batches of one pass over data.
#[pyclass(frozen, module = "zillion._zillion")]
pub(crate) struct BatchReader {
    stream: Mutex<BatchStream>,
    schema: Arc<Schema>,
}

#[pymethods]
impl BatchReader {
    /// Opens the files of a job. `split` is `train`, `valid` or `test`. The rows of `train` are
    /// those that a training reads: with `data.sample`, `data.negatives` and whole groups. Batches
    /// are those of the epoch `epoch`, counted from 0, if it is given.
    #[new]
    fn new(
        py: Python<'_>,
        job: &str,
        split: &str,
        batch_rows: Option<NonZeroUsize>,
        epoch: Option<u64>,
    ) -> PyResult<Self> {
        call(py, "BatchReader", || {
            let job = read_job(job)?;
            let stream = open(&job, split, batch_rows, epoch)?;
            Ok(Self { stream: Mutex::new(stream), schema: Arc::new(job.schema) })
        })
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Returns the next batch, whose columns are bytes of little-endian numbers.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let batch = call(py, "next", || {
            let mut stream =
                self.stream.lock().map_err(|_| anyhow!("the batches had a fault; read again"))?;
            Ok(stream.next().transpose()?)
        })?;
        batch
            .map(|(batch, _)| {
                let columns = as_dict(py, &batch, &self.schema)?;
                columns.set_item("handle", BatchRows::new(batch, &self.schema))?;
                Ok(columns)
            })
            .transpose()
    }
}

fn open(
    job: &Job,
    split: &str,
    batch_rows: Option<NonZeroUsize>,
    epoch: Option<u64>,
) -> Result<BatchStream> {
    let workers = compute_pool(job.run.threads)?;
    let data_of = |paths: &Paths, labels: Labels| -> Result<Dataset> {
        let files = job.data.files(paths)?;
        Ok(Dataset::open_with(&job.data, &files, &job.schema, labels)?)
    };
    let paths = match split {
        "valid" => &job.data.valid,
        "test" => &job.data.test,
        _ => &job.data.train,
    };
    let is_train = !matches!(split, "valid" | "test");
    let mut dataset = data_of(paths, Labels::Optional)?;
    if is_train {
        // Statistics below come from the same rows as those of a training.
        dataset = dataset.thinned(&job.data, job.seed)?;
        dataset = if job.compares_groups() { dataset.with_whole_groups() } else { dataset };
    }
    if job.schema.features.iter().any(|feature| feature.needs_statistics()) {
        let train = data_of(&job.data.train, Labels::Optional)
            .and_then(|train| Ok(train.thinned(&job.data, job.seed)?))
            .context("the features need statistics of the training data")?;
        dataset = dataset.with_statistics(zillion_reader::statistics(&train, &workers)?);
    }
    let order = BatchOrder {
        seed: job.seed,
        shuffle: epoch.is_some() && job.data.shuffle,
        batch_rows: batch_rows.unwrap_or(job.train.batch_size).get(),
        drop_last: epoch.is_some() && is_train && job.train.drop_last,
    };
    let from = Cursor { epoch: epoch.unwrap_or_default(), row: 0 };
    Ok(dataset.batches(order, from, workers)?)
}

/// Returns the columns of a batch by the names of their features.
pub(crate) fn as_dict<'py>(
    py: Python<'py>,
    batch: &Batch,
    schema: &Schema,
) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("rows", batch.rows)?;
    let sparse = PyDict::new(py);
    for (feature, column) in schema.sparse().zip(&batch.sparse) {
        let keys = as_bytes(py, &column.keys);
        let offsets = column.offsets.as_deref().map(|offsets| as_bytes(py, offsets));
        let weights = column.weights.as_deref().map(|weights| as_bytes(py, weights));
        sparse.set_item(&feature.name, (keys, offsets, weights))?;
    }
    found.set_item("sparse", sparse)?;
    let numeric = PyDict::new(py);
    let mut columns = batch.numeric.iter();
    for feature in schema.numeric() {
        let of_feature = columns.by_ref().take(feature.numeric_width());
        let of_feature: Vec<_> = of_feature.map(|values| as_bytes(py, values)).collect();
        numeric.set_item(&feature.name, of_feature)?;
    }
    found.set_item("numeric", numeric)?;
    let labels = PyDict::new(py);
    for (label, column) in schema.labels.iter().zip(&batch.labels) {
        // Without the column, as in data to be scored, the batch has no values for the label.
        if column.values.len() == batch.rows {
            let mask: Option<Vec<u8>> =
                column.mask.as_ref().map(|mask| mask.iter().map(|&has| u8::from(has)).collect());
            let mask = mask.map(|mask| as_bytes(py, &mask));
            labels.set_item(&label.name, (as_bytes(py, &column.values), mask))?;
        }
    }
    found.set_item("labels", labels)?;
    found.set_item("weight", batch.weight.as_deref().map(|values| as_bytes(py, values)))?;
    found.set_item("group", batch.group.as_deref().map(|values| as_bytes(py, values)))?;
    found.set_item("event_time", batch.event_time.as_deref().map(|times| as_bytes(py, times)))?;
    Ok(found)
}

/// Returns the bytes of numbers. The machines of Zillion are little-endian.
fn as_bytes<'py, T: NoUninit>(py: Python<'py>, values: &[T]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, bytemuck::cast_slice(values))
}
