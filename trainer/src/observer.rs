//! The interface by which a run reports to its caller. The trainer prints nothing itself.

mod figures;
mod reports;

pub use figures::RunFigures;
pub use reports::{
    CheckpointReport, EpochReport, InspectOptions, InspectedStep, PublishReport, StepReport,
};

/// An observer of a run. Every method has an empty default.
pub trait Observer {
    /// Reports progress after a step, a few times a second at most and not for every step.
    fn step(&mut self, _report: &StepReport) {}
    /// Returns the values of each step that the observer needs. This method is called once, before
    /// the first step.
    fn inspect_options(&self) -> InspectOptions {
        InspectOptions::default()
    }
    /// Reports the requested values of a step. This method is called after every step if
    /// [`Observer::inspect_options`] requests any value. The values are copies, so the result does
    /// not change.
    fn inspect(&mut self, _step: &InspectedStep<'_>) {}
    /// Reports the outcome of an epoch, after its validation and its checkpoint.
    fn epoch(&mut self, _report: &EpochReport) {}
    /// Returns whether [`Observer::figures`] is to be called. This method is called once, before
    /// the first step.
    fn needs_figures(&self) -> bool {
        false
    }
    /// Reports the counts of the run, a few times a second while it trains, and after work other
    /// than a step.
    fn figures(&mut self, _figures: RunFigures) {}
    /// Reports a checkpoint that was written.
    fn report_checkpoint(&mut self, _report: &CheckpointReport) {}
    /// Reports a version that was published, or a publication that failed.
    fn report_version(&mut self, _report: &PublishReport<'_>) {}
    /// Reports an event in one line of text.
    fn note(&mut self, _text: &str) {}
}

/// An observer that ignores every report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
