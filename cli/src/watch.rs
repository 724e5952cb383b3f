//! The output of a run while it trains: progress, values of nodes after steps, and pauses after
//! steps.

mod fetch;
mod stepper;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zillion_console::progress::Progress;
use zillion_trainer::{
    CheckpointReport, EpochReport, InspectOptions, InspectedStep, Observer, PublishReport,
    RunFigures, StepReport,
};

pub(crate) use fetch::{Choice, Lines};
pub(crate) use stepper::Stepper;

use crate::metrics::TrainerMetrics;

/// An observer of a run that shows progress and the other output that the command line asks for.
pub(crate) struct Watch {
    pub(crate) progress: Progress,
    /// The series of the metrics endpoint, or `None` if the run has no such endpoint.
    pub(crate) metrics: Option<TrainerMetrics>,
    pub(crate) nodes: Vec<String>,
    pub(crate) rows: Choice,
    /// The interval at which values are printed, in steps.
    pub(crate) every: u64,
    pub(crate) stepper: Option<Stepper>,
    /// The flag that stops the run. When it is set, the run writes a checkpoint and ends.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Watch {
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
    }

    fn note(&mut self, text: &str) {
        self.progress.note(text);
    }
}
