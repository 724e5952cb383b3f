//! The code that the commands of `zillion` and its benchmarks share for the command line.
//!
//! * [`job_file`]: job files, with the overrides by the environment and `--set`;
//! * [`exit`]: exit codes, and the formatting of errors as text;
//! * [`signals`]: the flag that Ctrl-C sets;
//! * [`svg`]: small plots;
//! * [`progress`] and [`profile`]: the progress and the timeline of a training run;
//! * this module: the compute pool, durable files, registries, and results on stdout.
//!
//! This crate contains no commands. No library crate may depend on it.

pub mod data_settings;
pub mod exit;
pub mod job_file;
pub mod profile;
pub mod progress;
pub mod signals;
pub mod svg;

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use zillion_device::{Failpoint, Files, SystemClock, Workers, machine};
use zillion_nn::DenseType;
use zillion_registry::Registry;

/// Starts the compute pool of the process. `threads` is the number of its threads, or `None` for
/// one thread per processor. A process has only one pool.
pub fn compute_pool(threads: Option<NonZeroUsize>) -> Result<Arc<Workers>> {
    let workers = Workers::new(threads.unwrap_or_else(machine::cpus))?;
    Ok(Arc::new(workers))
}

/// The environment variable with the path of this program, if the executable of the process is
/// another one: the command of the Python package runs in a Python interpreter.
pub const PROGRAM: &str = "ZILLION_PROGRAM";

/// Returns the path of this program, so that a command can start it again.
///
/// # Errors
/// Returns an error if the system does not know the path.
pub fn program() -> io::Result<PathBuf> {
    std::env::var_os(PROGRAM).map_or_else(std::env::current_exe, |path| Ok(path.into()))
}

/// Returns the object for durable writes to files. For crash tests, the environment can make one
/// operation fail: `ZILLION_FAILPOINT=N:kill`, for example, kills the process at operation N.
pub fn durable_files() -> Result<Files> {
    match std::env::var("ZILLION_FAILPOINT") {
        Ok(text) => {
            let failpoint = Failpoint::parse(&text).context("ZILLION_FAILPOINT")?;
            Ok(Files::with_failpoints(Arc::new(failpoint)))
        }
        Err(_) => Ok(Files::new()),
    }
}

/// Opens the registry with this URL.
pub fn open_registry(url: &str) -> Result<Registry> {
    Ok(Registry::open(url, durable_files()?, Arc::new(SystemClock::new()))?)
}

/// Opens the registry with this URL. Creates it if it does not exist.
pub fn create_registry(url: &str) -> Result<Registry> {
    Ok(Registry::create(url, durable_files()?, Arc::new(SystemClock::new()))?)
}

/// Parses the name of a number type of dense layers.
pub fn parse_dense_type(name: &str) -> Result<DenseType, String> {
    DenseType::try_from(name.to_owned())
}

/// Prints a value on stdout, as one line of JSON.
#[expect(clippy::print_stdout, reason = "the result of a command")]
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

/// Prints a value on stdout as one line of JSON if `json` is true, and otherwise prints nothing.
pub fn print_json_if(json: bool, value: &impl serde::Serialize) -> Result<()> {
    if json { print_json(value) } else { Ok(()) }
}

/// Prints a result on stdout. If `json` is true, the result is one line of JSON. Otherwise, `show`
/// prints it.
pub fn print_result<T: serde::Serialize>(
    json: bool,
    result: &T,
    show: impl FnOnce(&T),
) -> Result<()> {
    if json {
        return print_json(result);
    }
    show(result);
    Ok(())
}

/// Prints a line on stdout. A closed pipe is not an error: in `zillion … | head`, for example,
/// `head` closes the pipe after it has read enough lines.
pub fn print_line(line: &str) {
    use io::Write as _;
    // SIGPIPE ends a command that only prints, at its first write after the reader has closed the
    // pipe.
    let _ = writeln!(io::stdout().lock(), "{line}");
}
