//! Jobs: reading, printing, validation and the check. A job crosses the boundary as JSON whose keys
//! are those of the job file, in their order.

use std::path::PathBuf;

use anyhow::{Context, Result};
use pyo3::prelude::*;
use toml::{Table, Value};
use zillion_console::{compute_pool, exit, job_file};
use zillion_trainer::Job;

use crate::boundary::call;

/// Reads a job file, with the files that it extends, and returns the job as JSON. Settings in the
/// environment are not read, because a program in Python sets them itself.
#[pyfunction]
pub(crate) fn load(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    call(py, "load", || {
        let value = job_file::load(&path, std::iter::empty(), &[])?;
        Ok(serde_json::to_string(&value)?)
    })
}

/// Parses a job in TOML, and returns it as JSON.
#[pyfunction]
pub(crate) fn parse(py: Python<'_>, text: &str) -> PyResult<String> {
    call(py, "parse", || {
        let table: Table =
            text.parse().context("the text is not valid TOML").map_err(exit::as_usage)?;
        if table.contains_key("extends") {
            return exit::usage_error(
                "`extends` needs the folder of a job file; give the path of the job file instead \
                 of its text",
            );
        }
        Ok(serde_json::to_string(&table)?)
    })
}

/// Returns a job as TOML, as it was written.
#[pyfunction]
pub(crate) fn print(py: Python<'_>, job: &str) -> PyResult<String> {
    call(py, "print", || Ok(toml::to_string(&read_value(job)?)?))
}

/// Returns a job as TOML, with its defaults.
#[pyfunction]
pub(crate) fn effective(py: Python<'_>, job: &str) -> PyResult<String> {
    call(py, "effective", || Ok(read_job(job)?.in_force()?))
}

/// Returns an error if a key or a value of a job is wrong, and otherwise the folder of its run.
#[pyfunction]
pub(crate) fn validate(py: Python<'_>, job: &str) -> PyResult<PathBuf> {
    call(py, "validate", || Ok(read_job(job)?.output()))
}

/// Checks a job and `sample` rows of its training data. Returns the report as JSON.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, job: &str, sample: u64) -> PyResult<String> {
    call(py, "check", || {
        let job = read_job(job)?;
        let report = zillion_trainer::check(&job, sample, &compute_pool(job.run.threads)?)?;
        Ok(serde_json::to_string(&report)?)
    })
}

/// Reads a job from JSON. Errors are those of a job file.
pub(crate) fn read_job(json: &str) -> Result<Job> {
    Ok(Job::from_value(read_value(json)?)?)
}

/// Reads the sections of a job from JSON. The order of the keys is kept, because the order of the
/// features belongs to the model.
fn read_value(json: &str) -> Result<Value> {
    serde_json::from_str(json).context("the job cannot be written as TOML").map_err(exit::as_usage)
}
