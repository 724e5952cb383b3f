//! The output of a run while it trains: progress, values of nodes after steps, and pauses after
//! steps.

mod fetch;
mod stepper;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zillion_console::progress::Progress;
use zillion_stream::gate::Verdict;
use zillion_stream::validation::ClosedWindow;
use zillion_trainer::{
    CheckpointReport, EpochReport, FeedStatus, InspectOptions, InspectedStep, Observer,
    PublishReport, RunFigures, StepReport,
};

pub(crate) use fetch::{Choice, Lines};
pub(crate) use stepper::Stepper;

use crate::curves::write_curves;
use crate::metrics::{StreamMetrics, TrainerMetrics};
use crate::operator::{Trail, describe_publication};

/// An observer of a run that shows progress and the other output that the command line asks for.
pub(crate) struct Watch {
    /// The audit log of what the run publishes, with the pointer that its versions move.
    pub(crate) trail: Option<(Trail, String)>,
    pub(crate) progress: Progress,
    /// The series of the metrics endpoint, or `None` if the run has no such endpoint.
    pub(crate) metrics: Option<TrainerMetrics>,
    pub(crate) nodes: Vec<String>,
    pub(crate) rows: Choice,
    /// The interval at which values are printed, in steps.
    pub(crate) every: u64,
    pub(crate) stepper: Option<Stepper>,
    /// The folder of the run, which receives the curves; `None` if the run has no epochs, or if
    /// another trainer writes them.
    pub(crate) folder: Option<PathBuf>,
    /// The flag that stops the run. When it is set, the run writes a checkpoint and ends.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Watch {
    /// Returns the series of the streams, if the run follows streams and has a metrics endpoint.
    fn streams(&mut self) -> Option<&mut StreamMetrics> {
        self.metrics.as_mut()?.streams.as_mut()
    }

    /// Prints the values of a step. If standard output is closed or full, the run writes a
    /// checkpoint and ends.
    fn print(&mut self, step: &InspectedStep<'_>) {
        let mut lines = Lines::new(Some(step.step));
        for fetched in step.fetched {
            lines.add(fetched, step.batch, 0, &self.rows, true);
        }
        if let Err(error) = lines.print() {
            self.progress.note(&format!("cannot write the values of nodes ({error}): stopping"));
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Observer for Watch {
    fn step(&mut self, report: &StepReport) {
        self.progress.step(report);
    }

    fn inspect_options(&self) -> InspectOptions {
        InspectOptions { nodes: self.nodes.clone(), steps: self.stepper.is_some() }
    }

    fn inspect(&mut self, step: &InspectedStep<'_>) {
        let stopping = self.stop.load(Ordering::Relaxed);
        if !self.nodes.is_empty() && step.step.is_multiple_of(self.every) && !stopping {
            self.print(step);
        }
        if let Some(stepper) = &mut self.stepper
            && stepper.count_step()
        {
            self.progress.note(&stepper::describe(step));
            if stepper.ask() {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }

    fn epoch(&mut self, report: &EpochReport) {
        self.progress.epoch(report);
        self.metrics.iter().for_each(|metrics| metrics.epoch(report));
        if let Some(Err(error)) = self.folder.as_deref().map(write_curves) {
            self.progress.note(&format!("the curves of the run cannot be written: {error:#}"));
        }
    }

    fn needs_figures(&self) -> bool {
        self.metrics.is_some()
    }

    fn figures(&mut self, figures: RunFigures) {
        self.metrics.iter().for_each(|metrics| metrics.figures(&figures));
    }

    fn report_checkpoint(&mut self, report: &CheckpointReport) {
        self.metrics.iter().for_each(|metrics| metrics.report_checkpoint(report));
    }

    fn report_version(&mut self, report: &PublishReport<'_>) {
        self.metrics.iter().for_each(|metrics| metrics.report_version(report));
        let Some((trail, pointer)) = &self.trail else { return };
        let written = match report.published {
            Some(published) => trail.write("done", &describe_publication(published, pointer)),
            // A pointer may have been moved all the same: the log of its moves says so.
            None => trail.write("failed", "the log of the training has the reason"),
        };
        if let Err(error) = written {
            self.progress.note(&format!("a publication is not in the audit log: {error}"));
        }
    }

    fn report_streams(&mut self, status: &FeedStatus) {
        self.streams().into_iter().for_each(|streams| streams.report_streams(status));
    }

    fn report_window(&mut self, window: &ClosedWindow) {
        self.streams().into_iter().for_each(|streams| streams.report_window(window));
    }

    fn report_hold(&mut self, seconds: f64) {
        self.streams().into_iter().for_each(|streams| streams.report_hold(seconds));
    }

    fn report_verdict(&mut self, verdict: &Verdict) {
        self.streams().into_iter().for_each(|streams| streams.report_verdict(verdict));
    }

    fn note(&mut self, text: &str) {
        self.progress.note(text);
    }
}

#[cfg(test)]
mod tests {
    use zillion_access::verify_audit_log;

    use super::*;

    #[test]
    fn each_publication_of_a_run_is_in_the_audit_log() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.jsonl");
        let trail = Trail::open(&path, "publish", "clicks").expect("a log");
        let mut watch = Watch {
            trail: Some((trail, "stable".to_owned())),
            progress: Progress::new(),
            metrics: None,
            nodes: Vec::new(),
            rows: Choice::First(1),
            every: 1,
            stepper: None,
            folder: None,
            stop: Arc::default(),
        };
        for _ in 0..2 {
            watch.report_version(&PublishReport { published: None, seconds: 1.0 });
        }
        let text = std::fs::read_to_string(&path).expect("a log");
        let lines = text.lines().filter(|line| {
            line.contains("\"publish\"") && line.contains("clicks") && line.contains("failed")
        });
        assert_eq!(lines.count(), 2, "{text}");
        assert_eq!(verify_audit_log(&path).expect("it can be read").problem, None);
    }
}
