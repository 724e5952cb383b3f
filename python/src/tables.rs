//! Tables without a model of Zillion: rows for a model in Python, and gradients from it.
//!
//! # Concurrency
//! One lock guards the tables. A call that waits for it does not hold the lock of the interpreter.

mod opening;
mod publish;
mod rows;
mod state;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use anyhow::{Result, anyhow, bail};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use serde_json::json;
use zillion_console::exit::usage_error;

use crate::boundary::{call, call_stoppable};
use crate::job::read_job;
use publish::{Wish, format_report, read_floats};
use rows::gather_rows;
use state::State;

/// The tables of the fields of a job, which learn from gradients that the caller gives.
#[pyclass(frozen, module = "zillion._zillion")]
pub(crate) struct Tables {
    state: Mutex<State>,
}

#[pymethods]
impl Tables {
    /// Opens empty tables for the features of a job, all of which must be ids. Ctrl-C ends a wait
    /// for servers.
    #[new]
    fn new(py: Python<'_>, job: &str) -> PyResult<Self> {
        call_stoppable(py, "Tables", |stop| {
            Ok(Self { state: Mutex::new(State::open(read_job(job)?, stop)?) })
        })
    }

    /// Returns the number of floats of a row of each field.
    fn dims(&self, py: Python<'_>) -> PyResult<Vec<(String, usize)>> {
        call(py, "dims", || {
            let state = self.lock()?;
            let features = state.job.schema.sparse().enumerate();
            Ok(features.map(|(at, field)| (field.name.clone(), state.dim(at))).collect())
        })
    }

    /// Looks up ids, little-endian `i64` of shape `[rows, fields]`. Returns a ticket for the
    /// gradients and the rows, `f32` of shape `[rows, fields, dim]`. Without `trains`, unknown ids
    /// read what evaluation reads, nothing is counted, and the ticket is 0.
    fn lookup<'py>(
        &self,
        py: Python<'py>,
        fields: Vec<usize>,
        ids: &[u8],
        trains: bool,
    ) -> PyResult<(u64, Bound<'py, PyByteArray>)> {
        let (ticket, found, plan, dim, workers) = call(py, "lookup", || {
            let mut state = self.lock()?;
            let (lookup, found) = state.read(&fields, ids, trains)?;
            let plan = lookup.plan.clone();
            let (ticket, dim) = (lookup.ticket, lookup.dim);
            if trains {
                state.lookups.push(lookup);
            }
            Ok((ticket, found, plan, dim, state.workers.clone()))
        })?;
        let bytes = ids.len() / size_of::<i64>() * dim * size_of::<f32>();
        let rows = PyByteArray::new_with(py, bytes, |into| {
            call(py, "gather", || gather_rows(&workers, &plan, &fields, dim, &found, into))
        })?;
        // The memory is used again, unless another thread has looked something up meanwhile.
        if let Ok(mut state) = self.state.try_lock() {
            state.buffer = found;
        }
        Ok((ticket, rows))
    }

    /// Keeps the gradients of a lookup, `f32` of the shape of its rows, until the end of the step.
    /// Gradients that are given again are added.
    fn keep(&self, py: Python<'_>, ticket: u64, gradients: &[u8]) -> PyResult<()> {
        call(py, "keep", || {
            let mut state = self.lock()?;
            let Some(lookup) = state.lookups.iter_mut().find(|lookup| lookup.ticket == ticket)
            else {
                bail!(
                    "the lookup belongs to a step that has ended; look the ids up again after \
                     `step` or `discard`"
                );
            };
            lookup.keep(gradients)
        })
    }

    /// Pushes the kept gradients and ends the step. `scale` multiplies the learning rates. Returns
    /// the counts of changes as JSON.
    fn step(&self, py: Python<'_>, scale: f32) -> PyResult<String> {
        call(py, "step", || {
            if !(scale.is_finite() && scale > 0.0) {
                return usage_error(format!(
                    "the factor of the learning rates is {scale}; give a finite number above 0"
                ));
            }
            let report = self.lock()?.push(scale)?;
            Ok(json!({
                "pushed": report.pushed,
                "created": report.created,
                "waiting": report.waiting,
                "evicted": report.evicted,
                "refused": report.refused,
                "refused_full": report.refused_full,
                "nonfinite": report.nonfinite,
            })
            .to_string())
        })
    }

    /// Drops the gradients that are kept for this step, but not its lookups.
    fn clear_gradients(&self, py: Python<'_>) -> PyResult<()> {
        call(py, "clear_gradients", || {
            self.lock()?.clear_gradients();
            Ok(())
        })
    }

    /// Ends the step without a change.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        call(py, "discard", || self.lock()?.discard())
    }

    /// Returns the sizes and counters of the tables as JSON.
    fn statistics(&self, py: Python<'_>) -> PyResult<String> {
        call(py, "statistics", || {
            let statistics = self.lock()?.client.stats()?;
            let tables: Vec<_> = statistics
                .iter()
                .map(|table| {
                    json!({
                        "name": table.table,
                        "rows": table.rows,
                        "bytes": table.total_bytes(),
                        "candidates": table.candidates,
                        "spill": table.spill,
                        "counters": table.counters,
                    })
                })
                .collect();
            Ok(serde_json::to_string(&tables)?)
        })
    }

    /// Returns the weights of an id's row and the number of its pushes, or `None` without a row.
    fn find(&self, py: Python<'_>, field: usize, id: i64) -> PyResult<Option<(Vec<f32>, u32)>> {
        call(py, "find", || self.lock()?.find(field, id))
    }

    /// Writes the tables to a new folder, which appears whole or not at all.
    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        call(py, "save", || self.lock()?.save(&folder))
    }

    /// Publishes the tables as a version of a job. `wish` has the place and the manner as JSON,
    /// `weights` the dense parameters, and `scores` those of the sample for each task, all as
    /// little-endian `f32` by name. Returns the report as JSON.
    fn publish(
        &self,
        py: Python<'_>,
        job: &str,
        wish: &str,
        weights: Vec<(String, Vec<u8>)>,
        scores: Vec<(String, Vec<u8>)>,
    ) -> PyResult<String> {
        call(py, "publish", || {
            let job = read_job(job)?;
            let wish: Wish = serde_json::from_str(wish)?;
            let (weights, scores) = (read_floats(weights)?, read_floats(scores)?);
            Ok(format_report(&self.lock()?.publish(job, &wish, &weights, scores)?))
        })
    }

    /// Replaces all rows by those of a folder that `save` wrote.
    fn restore(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        call_stoppable(py, "restore", |stop| self.lock_any()?.restore(&folder, stop))
    }
}

impl Tables {
    /// Returns the tables.
    ///
    /// # Errors
    /// Returns an error if an earlier call has panicked, because a step may be half done, or if a
    /// `restore` has failed, because rows may be missing.
    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock_any()?;
        if !state.is_whole {
            bail!("`restore` has failed, so the tables do not have all rows; restore them again");
        }
        Ok(state)
    }

    fn lock_any(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        state.map_err(|_| anyhow!("the tables had a fault; restore other ones from a folder"))
    }
}
