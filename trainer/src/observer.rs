//! The interface by which a run reports to its caller. The trainer prints nothing itself.

use zillion_stream::gate::Verdict;
use zillion_stream::validation::ClosedWindow;

use crate::online::FeedStatus;

mod figures;
mod reports;

pub use figures::{GpuFigures, RunFigures};
pub use reports::{
    CheckpointReport, EpochReport, InspectOptions, InspectedStep, PublishReport, StepReport,
};

/// An observer of a run. Every method has an empty default.
pub trait Observer {
    /// Reports the progress of the run after a step. It is called at most a few times a second, and
    /// not after every step.
    fn step(&mut self, _report: &StepReport) {}
    /// Returns which values of each step the observer needs. This method is called once, before the
    /// first step.
    fn inspect_options(&self) -> InspectOptions {
        InspectOptions::default()
    }
    /// Reports the requested values of a step. This method is called after every step if
    /// [`Observer::inspect_options`] requests any value. The values are copies, so the result does
    /// not change.
    fn inspect(&mut self, _step: &InspectedStep<'_>) {}
    /// Reports the outcome of an epoch, after its validation and its checkpoint.
    fn epoch(&mut self, _report: &EpochReport) {}
    /// Returns whether the observer needs calls of [`Observer::figures`]. This method is called
    /// once, before the first step.
    fn needs_figures(&self) -> bool {
        false
    }
    /// Reports the counts of the run. It is called a few times a second during training, and after
    /// work other than a step.
    fn figures(&mut self, _figures: RunFigures) {}
    /// Reports a checkpoint that was written.
    fn report_checkpoint(&mut self, _report: &CheckpointReport) {}
    /// Reports a version that was published, or a publication that failed.
    fn report_version(&mut self, _report: &PublishReport<'_>) {}
    /// Reports the state of the streams of a resident run, a few times a second.
    fn report_streams(&mut self, _status: &FeedStatus) {}
    /// Reports a window of progressive validation that was closed.
    fn report_window(&mut self, _window: &ClosedWindow) {}
    /// Reports the verdict of the gate on the state that is about to be published.
    fn report_verdict(&mut self, _verdict: &Verdict) {}
    /// Reports the event time for which the gate has held all versions, in seconds; 0: no version
    /// is held.
    fn report_hold(&mut self, _seconds: f64) {}
    /// Reports an event in one line of text.
    fn note(&mut self, _text: &str) {}
}

/// An observer that ignores every report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
