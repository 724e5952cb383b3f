//! A training that reports to Python.
//!
//! # Concurrency
//! The training has a thread of its own. The thread of the caller waits for its reports, calls the
//! handler in Python, and looks for signals ten times a second. The training waits for the handler,
//! so the handler sees each report before the next step, and a stop takes effect at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use pyo3::prelude::*;
use serde_json::{Value, json};
use zillion_console::{compute_pool, durable_files};
use zillion_trainer::{
    CheckpointReport, EpochReport, Job, Observer, PublishReport, StepReport, TrainOptions,
    TrainerPlace,
};

use crate::boundary::{Failure, guard, start_log};
use crate::job::read_job;

/// The time after which the caller's thread looks for signals again.
const SIGNAL_PAUSE: Duration = Duration::from_millis(100);

/// A report of the training: its kind, and the figures as JSON.
struct Event {
    kind: &'static str,
    figures: String,
}

/// The end of the training's thread: its report as JSON, or the failure.
type Outcome = Result<String, Failure>;

/// Trains a job. `handler` is called with the kind of each report and its figures as JSON; the run
/// stops after a checkpoint if the handler returns `False` or raises an exception, or at Ctrl-C.
///
/// Returns the report of the run as JSON, and the exception that stopped the run, if there is one.
#[pyfunction]
pub(crate) fn train(
    py: Python<'_>,
    job: &str,
    resume: bool,
    overwrite: bool,
    start: Option<PathBuf>,
    handler: Py<PyAny>,
) -> PyResult<(String, Option<PyErr>)> {
    start_log();
    let stop = Arc::new(AtomicBool::new(false));
    let (events, received) = sync_channel(0);
    let (answer, answered) = sync_channel(0);
    let thread_stop = stop.clone();
    let job = job.to_owned();
    let work = move || {
        guard("train", || {
            let job = read_job(&job)?;
            let folder = job.output();
            let mut reporter = Reporter { events, answered, folder };
            let options = TrainOptions {
                resume,
                overwrite,
                from: start,
                workers: compute_pool(job.run.threads)?,
                files: durable_files()?,
                stop: thread_stop,
                profile: None,
                in_memory: false,
                trainer: TrainerPlace::ALONE,
            };
            run(job, options, &mut reporter)
        })
    };
    let training = thread::Builder::new().name("zillion-train".to_owned()).spawn(work)?;
    let stopped_by = serve_reports(py, &handler, &stop, received, &answer);
    let outcome: Outcome = py.detach(|| match training.join() {
        Ok(outcome) => outcome,
        // The guard has caught every panic of the work, so this is one of the thread itself.
        Err(payload) => guard("train", || std::panic::resume_unwind(payload)),
    });
    let report = outcome.map_err(|failure| failure.into_exception(py))?;
    Ok((report, stopped_by))
}

fn run(job: Job, options: TrainOptions, reporter: &mut Reporter) -> anyhow::Result<String> {
    let report = zillion_trainer::train(job, options, reporter)?;
    serde_json::to_string(&report).context("cannot write the report of the run")
}

/// Passes the reports of a training to the handler until the training ends. Returns the exception
/// that stopped the run, if there is one.
fn serve_reports(
    py: Python<'_>,
    handler: &Py<PyAny>,
    stop: &AtomicBool,
    mut received: Receiver<Event>,
    answer: &SyncSender<()>,
) -> Option<PyErr> {
    let mut stopped_by = None;
    loop {
        let event;
        (received, event) = py.detach(move || {
            let event = received.recv_timeout(SIGNAL_PAUSE);
            (received, event)
        });
        if let Err(signal) = py.check_signals() {
            stop.store(true, Ordering::Relaxed);
            stopped_by.get_or_insert(signal);
        }
        match event {
            Ok(event) => {
                // After an exception, the handler is not called any more.
                if stopped_by.is_none()
                    && let Err(error) = handle(py, handler, &event, stop)
                {
                    stop.store(true, Ordering::Relaxed);
                    stopped_by = Some(error);
                }
                // The training waits for this answer, unless it has just ended.
                let _ = answer.send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return stopped_by,
        }
    }
}

/// Calls the handler with a report, and stops the run if the handler returns `False`.
fn handle(py: Python<'_>, handler: &Py<PyAny>, event: &Event, stop: &AtomicBool) -> PyResult<()> {
    let wish = handler.call1(py, (event.kind, event.figures.as_str()))?;
    if wish.extract::<bool>(py).is_ok_and(|goes_on| !goes_on) {
        stop.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the figures of an epoch.
pub(crate) fn epoch_figures(report: &EpochReport) -> Value {
    json!({
        "epoch": report.epoch + 1,
        "loss": report.mean_loss,
        "regulariser": report.regulariser,
        "valid": report.valid,
        "rate_scale": report.rate_scale,
        "seconds": report.seconds,
        "is_best": report.is_best,
    })
}

/// The observer of a training that sends its reports to the thread of the caller.
struct Reporter {
    events: SyncSender<Event>,
    answered: Receiver<()>,
    /// The folder of the run, which receives the curves.
    folder: PathBuf,
}

impl Reporter {
    /// Sends a report and waits until it has been handled.
    fn send(&self, kind: &'static str, figures: &Value) {
        if self.events.send(Event { kind, figures: figures.to_string() }).is_ok() {
            let _ = self.answered.recv();
        }
    }
}

impl Observer for Reporter {
    fn step(&mut self, report: &StepReport) {
        let aucs: serde_json::Map<_, _> =
            report.aucs.iter().map(|(task, auc)| (task.clone(), json!(auc))).collect();
        let figures = json!({
            "step": report.step,
            "epoch": report.cursor.epoch + 1,
            "row": report.cursor.row,
            "epoch_rows": report.epoch_rows,
            "loss": report.loss,
            "auc": aucs,
            "samples_per_second": report.samples_per_second,
            "seconds_left": report.eta.map(|eta| eta.as_secs_f64()),
        });
        self.send("step", &figures);
    }

    fn epoch(&mut self, report: &EpochReport) {
        if let Err(error) = zillion_cli::write_curves(&self.folder) {
            self.note(&format!("the curves of the run cannot be written: {error:#}"));
        }
        self.send("epoch", &epoch_figures(report));
    }

    fn report_checkpoint(&mut self, report: &CheckpointReport) {
        let figures =
            json!({ "step": report.step, "seconds": report.seconds, "bytes": report.bytes });
        self.send("checkpoint", &figures);
    }

    fn report_version(&mut self, report: &PublishReport<'_>) {
        let version = report.published.map(|published| published.version.version.0);
        self.send("version", &json!({ "version": version, "seconds": report.seconds }));
    }

    fn note(&mut self, text: &str) {
        self.send("note", &json!({ "text": text }));
    }
}
