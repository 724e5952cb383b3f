//! The command line, as the command `zillion` of the package runs it.

use std::ffi::OsString;
use std::process::ExitCode;

use pyo3::prelude::*;

use crate::boundary::{Failure, guard};

/// Runs a command of `zillion` and returns its exit code. The first argument is the name of the
/// program. The process ends if the arguments are wrong or ask for help.
#[pyfunction]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    // The command starts a log of its own, so this call does not start the usual one.
    let code = py.detach(|| guard("run_command", || Ok(zillion_cli::run(arguments))));
    code.map(number_of).map_err(|failure: Failure| failure.into_exception(py))
}

/// Returns the number of an exit code, which the standard library does not give.
fn number_of(code: ExitCode) -> u8 {
    (0..u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(u8::MAX)
}
