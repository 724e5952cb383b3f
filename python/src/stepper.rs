//! A run whose steps Python takes one at a time.
//!
//! # Concurrency
//! A run has the buffers of one step, so calls from several threads wait for each other. After a
//! panic in a call, further calls are refused, because the state may not be that of a whole step.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context as _, Result, anyhow};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde_json::{Value, json};
use zillion_console::exit::usage_error;
use zillion_console::{compute_pool, durable_files};
use zillion_feature::{Batch, LabelKind, LabelSpec, Schema};
use zillion_trainer::{
    EpochReport, InspectOptions, InspectedStep, Job, Observer, StepBatch, SteppedRun, TrainOptions,
    TrainerPlace,
};

use crate::batches::as_dict;
use crate::boundary::{call, call_with_flag};
use crate::job::read_job;
use crate::train::epoch_figures;

/// The rows of a batch, for a step.
#[pyclass(frozen, module = "zillion._zillion")]
pub(crate) struct BatchRows {
    rows: StepBatch,
    /// The features and labels by which the rows were read.
    schema: Arc<Schema>,
}

impl BatchRows {
    /// Makes the rows of a batch that were read by `schema`.
    pub(crate) fn new(batch: Batch, schema: &Arc<Schema>) -> Self {
        Self { rows: batch.into(), schema: schema.clone() }
    }
}

/// A run between two steps.
#[pyclass(frozen, module = "zillion._zillion")]
pub(crate) struct Stepper {
    state: Mutex<Option<State>>,
    schema: Arc<Schema>,
    /// The flag of the run, which ends a wait for servers and a validation.
    stop: Arc<AtomicBool>,
}

/// The run, and what its observer keeps of the present call.
struct State {
    run: SteppedRun,
    kept: Kept,
    /// The folder of the run, which receives the curves.
    folder: PathBuf,
}

/// The values of a step, and the reports of a call.
#[derive(Default)]
struct Kept {
    inspect: InspectOptions,
    norms: Value,
    fetched: Vec<FetchedNode>,
    epoch: Value,
    notes: Vec<String>,
}

/// The values of a node in the last step.
struct FetchedNode {
    name: String,
    columns: usize,
    values: Vec<f32>,
}

/// The values of a column that replace those of a batch: its kind (`numeric` or `label`), the place
/// of its first column, and the bytes of each column as little-endian floats.
type Fed = (String, usize, Vec<Vec<u8>>);

/// The results of a step: figures as JSON, the bytes of the scores of each task, and for each
/// fetched node its name, its number of columns and its bytes.
type Stepped<'py> = (String, Vec<Bound<'py, PyBytes>>, Vec<(String, usize, Bound<'py, PyBytes>)>);

#[pymethods]
impl Stepper {
    /// Opens a run. `replacing` tells whether the run in the folder is resumed, and whether it is
    /// replaced. `fetch` names the nodes whose values each step returns. With `norms`, a step
    /// returns the norms of the gradients. Ctrl-C ends a wait for servers.
    #[new]
    fn new(
        py: Python<'_>,
        job: &str,
        replacing: (bool, bool),
        start: Option<PathBuf>,
        fetch: Vec<String>,
        norms: bool,
    ) -> PyResult<Self> {
        let stop: Arc<AtomicBool> = Arc::default();
        call_with_flag(py, "Stepper", &stop, || {
            let job = read_job(job)?;
            let schema = Arc::new(job.schema.clone());
            let inspect = InspectOptions { nodes: fetch, steps: norms };
            let mut kept = Kept { inspect, ..Kept::default() };
            let run =
                SteppedRun::open(job.clone(), options(&job, replacing, start, &stop)?, &mut kept)?;
            let folder = job.output();
            let state = Mutex::new(Some(State { run, kept, folder }));
            Ok(Self { state, schema, stop: stop.clone() })
        })
    }

    /// Returns the next batch of the run's epoch: its columns, and its rows for a step. Returns
    /// `None` at the end of the epoch.
    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let next = call(py, "next_batch", || {
            self.with(|State { run, kept, .. }| Ok(run.next_batch(kept)?))
        })?;
        next.map(|batch| {
            let columns = as_dict(py, batch.batch(), &self.schema)?;
            columns.set_item("handle", BatchRows { rows: batch, schema: self.schema.clone() })?;
            Ok(columns)
        })
        .transpose()
    }

    /// Trains on a batch. `fed` replaces columns of the batch. `rate` multiplies the learning
    /// rates.
    fn step<'py>(
        &self,
        py: Python<'py>,
        batch: &Bound<'py, BatchRows>,
        fed: Vec<Fed>,
        rate: f32,
    ) -> PyResult<Stepped<'py>> {
        let BatchRows { rows, schema } = batch.get();
        let (figures, scores, fetched) = call(py, "take_step", || {
            let mut rows = rows.clone();
            let is_other = schema.features != self.schema.features
                || schema.labels != self.schema.labels
                || schema.weight != self.schema.weight
                || schema.sparse_tables() != self.schema.sparse_tables();
            if !Arc::ptr_eq(schema, &self.schema) && is_other {
                return usage_error(
                    "the batch was read with other features or labels than those of the job; read \
                     it with this job",
                );
            }
            feed(&mut rows, &self.schema, fed)?;
            self.with(|State { run, kept, .. }| {
                run.set_rate_factor(rate)?;
                kept.clear();
                let count = rows.batch().rows;
                let loss = run.step(rows, kept)?;
                let figures = json!({
                    "step": run.steps(),
                    "epoch": run.epoch() + 1,
                    "rows": count,
                    "loss": loss,
                    "norms": kept.norms.take(),
                });
                let scores: Vec<Vec<f32>> = run.scores().iter().map(|of| of.to_vec()).collect();
                Ok((figures.to_string(), scores, std::mem::take(&mut kept.fetched)))
            })
        })?;
        let bytes = |values: &Vec<f32>| PyBytes::new(py, bytemuck::cast_slice(values));
        let scores = scores.iter().map(bytes).collect();
        let fetched = fetched.iter().map(|f| (f.name.clone(), f.columns, bytes(&f.values)));
        Ok((figures, scores, fetched.collect()))
    }

    /// Returns the notes of the run since the last call, each a line for people.
    fn take_notes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        call(py, "take_notes", || self.with(|state| Ok(std::mem::take(&mut state.kept.notes))))
    }

    /// Ends the epoch. Returns its figures as JSON. Ctrl-C ends the validation; the epoch has not
    /// ended then.
    fn end_epoch(&self, py: Python<'_>) -> PyResult<String> {
        call_with_flag(py, "end_epoch", &self.stop, || {
            self.with(|State { run, kept, folder }| {
                kept.clear();
                run.end_epoch(kept)?;
                if let Err(error) = zillion_cli::write_curves(folder) {
                    kept.note(&format!("the curves of the run cannot be written: {error:#}"));
                }
                Ok(kept.epoch.take().to_string())
            })
        })
    }

    /// Validates the present state. Returns the figures as JSON, `null` without validation data.
    /// Ctrl-C ends it.
    fn validate(&self, py: Python<'_>) -> PyResult<String> {
        call_with_flag(py, "validate_run", &self.stop, || {
            self.with(|state| Ok(serde_json::to_string(&state.run.validate()?)?))
        })
    }

    /// Writes a checkpoint of the present state.
    fn save(&self, py: Python<'_>) -> PyResult<()> {
        call(py, "save_run", || self.with(|State { run, kept, .. }| Ok(run.save(kept)?)))
    }

    /// Returns the step, the epoch and whether the run has ended, as JSON.
    fn position(&self, py: Python<'_>) -> PyResult<String> {
        call(py, "position", || {
            self.with(|State { run, .. }| {
                let position = json!({
                    "step": run.steps(),
                    "epoch": run.epoch(),
                    "is_finished": run.is_finished(),
                });
                Ok(position.to_string())
            })
        })
    }

    /// Returns the sizes and counters of the tables as JSON.
    fn tables(&self, py: Python<'_>) -> PyResult<String> {
        call(py, "tables_of_run", || {
            self.with(|State { run, .. }| Ok(serde_json::to_string(&run.table_statistics()?)?))
        })
    }

    /// Ends the run. Returns its report as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        call(py, "finish", || {
            let State { run, mut kept, .. } = self.lock()?.take().ok_or_else(ended)?;
            let report = run.finish(&mut kept)?;
            serde_json::to_string(&report).context("cannot write the report of the run")
        })
    }
}

impl Stepper {
    fn lock(&self) -> Result<MutexGuard<'_, Option<State>>> {
        self.state
            .lock()
            .map_err(|_| anyhow!("the run had a fault; open it again from its newest checkpoint"))
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        work(self.lock()?.as_mut().ok_or_else(ended)?)
    }
}

fn ended() -> anyhow::Error {
    anyhow!("the run has been finished; open it again to go on")
}

fn options(
    job: &Job,
    (resume, overwrite): (bool, bool),
    start: Option<PathBuf>,
    stop: &Arc<AtomicBool>,
) -> Result<TrainOptions> {
    Ok(TrainOptions {
        resume,
        overwrite,
        from: start,
        workers: compute_pool(job.run.threads)?,
        files: durable_files()?,
        stop: stop.clone(),
        profile: None,
        in_memory: false,
        trainer: TrainerPlace::ALONE,
    })
}

/// Replaces columns of a batch.
fn feed(rows: &mut StepBatch, schema: &Schema, fed: Vec<Fed>) -> Result<()> {
    let count = rows.batch().rows;
    let (numbers, labels) = rows.columns_mut();
    for (kind, first, columns) in fed {
        for (column, bytes) in (first..).zip(columns) {
            let floats = bytes.as_chunks::<4>().0.iter().map(|&float| f32::from_le_bytes(float));
            let values: Vec<f32> = floats.collect();
            let place = match kind.as_str() {
                "numeric" => numbers.get_mut(column),
                _ => {
                    let label = schema.labels.get(column);
                    label.map_or(Ok(()), |label| check_label(label, &values))?;
                    labels.get_mut(column).map(|label| &mut label.values)
                }
            };
            match place {
                Some(place) if values.len() == count => *place = values,
                Some(_) => {
                    return usage_error(format!(
                        "a fed column has {} values, but the batch has {count} rows; give one for \
                         each row",
                        values.len(),
                    ));
                }
                None => {
                    return usage_error(format!(
                        "the batch has no {kind} column {column}; read it with this job"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Checks that fed labels are values that the label may have.
fn check_label(label: &LabelSpec, values: &[f32]) -> Result<()> {
    let classes = label.classes.as_ref().map_or(0.0, |classes| classes.count() as f32);
    let (fits, wanted): (Box<dyn Fn(f32) -> bool>, _) = match label.kind {
        LabelKind::Binary => (Box::new(|x| (0.0..=1.0).contains(&x)), "a number from 0 to 1"),
        LabelKind::Number => (Box::new(f32::is_finite), "a finite number"),
        LabelKind::Count => (Box::new(|x| x.is_finite() && x >= 0.0), "a finite number from 0 on"),
        LabelKind::Class => {
            let is_index = move |x: f32| x.fract() == 0.0 && (0.0..classes).contains(&x);
            (Box::new(is_index), "the index of a class")
        }
    };
    match values.iter().find(|&&x| !fits(x)) {
        Some(x) => {
            usage_error(format!("the fed label `{}` has the value {x}; give {wanted}", label.name))
        }
        None => Ok(()),
    }
}

impl Kept {
    fn clear(&mut self) {
        self.norms = Value::Null;
        self.epoch = Value::Null;
        self.fetched.clear();
    }
}

impl Observer for Kept {
    fn inspect_options(&self) -> InspectOptions {
        self.inspect.clone()
    }

    fn inspect(&mut self, step: &InspectedStep<'_>) {
        if self.inspect.steps {
            self.norms = json!({ "dense": step.dense_norm, "tables": step.table_norms });
        }
        let copy = |node: &zillion_trainer::Fetched<'_>| FetchedNode {
            name: node.name.to_owned(),
            columns: node.shape.cols,
            values: node.values.to_vec(),
        };
        self.fetched = step.fetched.iter().map(copy).collect();
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.epoch = epoch_figures(report);
    }

    fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }
}
