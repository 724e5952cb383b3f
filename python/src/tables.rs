//! Tables without a model of Zillion: rows for a model in Python, and gradients from it.
//!
//! # Concurrency
//! One lock guards the tables. A call that waits for it does not hold the lock of the interpreter.

mod lookup;
mod opening;
mod publish;
mod rows;
mod state;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use anyhow::{Result, anyhow, bail};
use numpy::{PyReadonlyArrayDyn, PyReadwriteArrayDyn};
use pyo3::prelude::*;
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

    /// Looks up ids of shape `[rows, fields]`, and writes their rows to `rows`, of shape
    /// `[rows, fields, dim]`. Returns a ticket for the gradients. Without `trains`, unknown ids
    /// read what evaluation reads, nothing is counted, and the ticket is 0.
    fn lookup(
        &self,
        py: Python<'_>,
        fields: Vec<usize>,
        ids: PyReadonlyArrayDyn<'_, i64>,
        trains: bool,
        mut rows: PyReadwriteArrayDyn<'_, f32>,
    ) -> PyResult<u64> {
        let (ids, rows) = (ids.as_slice()?, rows.as_slice_mut()?);
        call(py, "lookup", || {
            let mut state = self.lock()?;
            let dim = state.dim(fields.first().copied().unwrap_or_default());
            if rows.len() != ids.len() * dim {
                bail!(
                    "memory of {} floats for {} rows of {dim} floats; give one float for each",
                    rows.len(),
                    ids.len()
                );
            }
            let (lookup, found) = state.read(&fields, ids, trains)?;
            let (plan, workers) = (lookup.plan.clone(), state.workers.clone());
            let ticket = lookup.ticket;
            if trains {
                state.lookups.push(lookup);
            }
            drop(state);
            gather_rows(&workers, &plan, &fields, dim, &found, rows);
            // The memory is used again, unless another thread is looking something up.
            if let Ok(mut state) = self.state.try_lock() {
                state.buffer = found;
            }
            Ok(ticket)
        })
    }

    /// Adds the gradients of a lookup, of the shape of its rows, to those of the step.
    fn keep(
        &self,
        py: Python<'_>,
        ticket: u64,
        gradients: PyReadonlyArrayDyn<'_, f32>,
    ) -> PyResult<()> {
        let gradients = gradients.as_slice()?;
        call(py, "keep", || self.lock()?.keep(ticket, gradients))
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
