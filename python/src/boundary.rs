//! The boundary between Python and Rust. Every function of the module runs its work by [`call`] or
//! turns its failure into an exception by [`Failure`].
//!
//! # Invariants
//! The lock of the interpreter is released while the work runs. A panic of the work becomes an
//! exception, like an error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pyo3::prelude::*;
use tracing_subscriber::EnvFilter;
use zillion_console::exit;
use zillion_trainer::Error;

/// The module with the exceptions. They are Python classes, so that users see their documentation.
const EXCEPTIONS: &str = "zillion._errors";
/// The environment variable that makes a call panic, for tests of this boundary. Its value is the
/// name of the call.
const PANIC: &str = "ZILLION_PYTHON_PANIC";
/// The environment variable that makes a call wait for another thread of Python, for tests of this
/// boundary. Its value is the name of the call, `=` and a file. The call writes the file, and goes
/// on when the thread has removed it. If the call held the lock of the interpreter, no thread
/// could.
const HOLD: &str = "ZILLION_PYTHON_HOLD";
/// The longest time that a call waits for the other thread.
const HOLD_LIMIT: Duration = Duration::from_secs(20);
/// The time between two looks for signals while a call waits.
const SIGNAL_PAUSE: Duration = Duration::from_millis(20);

/// The failure of a call: the name of an exception, and its text.
#[derive(Debug)]
pub(crate) struct Failure {
    exception: &'static str,
    text: String,
}

impl Failure {
    /// Returns the failure for an error. The text is that of the command line, without its flags.
    fn from_error(error: &anyhow::Error) -> Self {
        let code = exit::exit_code(error);
        let exception = if code == ExitCode::from(2) {
            "JobError"
        } else if code == exit::refused() {
            "Refused"
        } else {
            "Error"
        };
        let mut text = exit::format_causes(error);
        text.extend(error.chain().filter_map(name_arguments));
        Self { exception, text }
    }

    /// Returns the failure for a panic.
    fn from_panic(payload: &(dyn Any + Send)) -> Self {
        let message = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = message.or_else(|| payload.downcast_ref::<String>().cloned());
        let message = message.unwrap_or_else(|| "without a message".to_owned());
        let text = format!("a fault in Zillion itself; please report it: {message}");
        Self { exception: "InternalError", text }
    }

    /// Returns the exception, whose class is looked up in the package.
    pub(crate) fn into_exception(self, py: Python<'_>) -> PyErr {
        let class = py.import(EXCEPTIONS).and_then(|module| module.getattr(self.exception));
        match class.and_then(|class| class.call1((self.text,))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    }
}

/// Returns a hint with the arguments of `Job.train` that resolve an error.
fn name_arguments(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match cause.downcast_ref()? {
        Error::WouldOverwrite { .. } => Some(
            " (`resume=True` resumes, `overwrite=True` replaces, `out=..` chooses another \
                 folder)",
        ),
        Error::OtherModel { .. } => Some(" (`start=..` names the checkpoint to begin from)"),
        _ => None,
    }
}

/// Runs the work of a call. The lock of the interpreter is released meanwhile.
///
/// # Errors
/// Returns an exception if the work fails or panics.
pub(crate) fn call<T: Send>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    start_log();
    py.detach(|| guard(name, work)).map_err(|failure| failure.into_exception(py))
}

/// Runs the work of a call that may wait for long. The work gets a flag that a signal sets, as
/// Ctrl-C does, and the exception of the signal is raised after the work has ended.
///
/// # Errors
/// Returns an exception if the work fails or panics, or if a signal came.
pub(crate) fn call_stoppable<T: Send>(
    py: Python<'_>,
    name: &str,
    work: impl FnOnce(&Arc<AtomicBool>) -> Result<T> + Send,
) -> PyResult<T> {
    let stop = Arc::default();
    call_with_flag(py, name, &stop, || work(&stop))
}

/// Runs the work of a call that looks at the flag `stop`, which a signal sets as Ctrl-C does. The
/// exception of the signal is raised after the work has ended, and the flag is reset then.
///
/// # Errors
/// Returns an exception if the work fails or panics, or if a signal came.
pub(crate) fn call_with_flag<T: Send>(
    py: Python<'_>,
    name: &str,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    start_log();
    thread::scope(|scope| {
        let caller = thread::current();
        let builder = thread::Builder::new().name("zillion-call".to_owned());
        let working = builder.spawn_scoped(scope, move || {
            let outcome = guard(name, work);
            caller.unpark();
            outcome
        })?;
        let mut stopped_by = None;
        while !working.is_finished() {
            py.detach(|| thread::park_timeout(SIGNAL_PAUSE));
            if let Err(signal) = py.check_signals() {
                stop.store(true, Ordering::Relaxed);
                stopped_by = Some(signal);
            }
        }
        let outcome = match working.join() {
            Ok(outcome) => outcome.map_err(|failure| failure.into_exception(py)),
            Err(payload) => Err(Failure::from_panic(payload.as_ref()).into_exception(py)),
        };
        // The next call begins without this signal.
        stop.store(false, Ordering::Relaxed);
        stopped_by.map_or(outcome, Err)
    })
}

/// Runs the work of a call on this thread, and returns its error or panic as a failure.
pub(crate) fn guard<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T, Failure> {
    let guarded = || {
        let is_chosen = std::env::var(PANIC).is_ok_and(|chosen| chosen == name);
        assert!(!is_chosen, "the environment variable {PANIC} asks for this panic of `{name}`");
        if let Ok(chosen) = std::env::var(HOLD)
            && let Some((call, file)) = chosen.split_once('=')
            && call == name
        {
            wait_for_removal(file)?;
        }
        work()
    };
    match catch_unwind(AssertUnwindSafe(guarded)) {
        Ok(outcome) => outcome.map_err(|error| Failure::from_error(&error)),
        Err(payload) => Err(Failure::from_panic(payload.as_ref())),
    }
}

/// Writes a file, and waits until another thread has removed it.
///
/// # Errors
/// Returns an error if the file cannot be written, or if no thread has removed it in time.
fn wait_for_removal(file: &str) -> Result<()> {
    std::fs::write(file, b"")?;
    let until = Instant::now() + HOLD_LIMIT;
    while Path::new(file).exists() {
        if Instant::now() > until {
            bail!(
                "no other thread of Python has run meanwhile; release the lock of the interpreter"
            );
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Starts the log of the process: warnings on stderr, or what `ZILLION_LOG` chooses. A process has
/// one log, so a log that the user's program has started stays.
pub(crate) fn start_log() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let filter = std::env::var("ZILLION_LOG").unwrap_or_else(|_| "warn".to_owned());
        let log = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .with_target(false);
        // The error says that there is a log already.
        let _ = log.try_init();
    });
}
