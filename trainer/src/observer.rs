//! The reports of a run to its caller. The trainer reports; showing is the caller's business.

mod figures;
mod reports;

pub use figures::RunFigures;
pub use reports::{CheckpointReport, EpochReport, Look, PublishReport, StepReport, Stepped};

/// An observer of a run. Every method has an empty default.
pub trait Observer {
    /// Reports progress after a step, a few times a second at most and not for every step.
    fn step(&mut self, report: &StepReport) {
        let _ = report;
    }
    /// Returns what the observer wants to see of each step. It is asked once, before the first
    /// step.
    fn look(&self) -> Look {
        Look::default()
    }
    /// Shows a step that is done. It is called for every step where [`Observer::look`] asks for
    /// anything. Looking changes nothing.
    fn stepped(&mut self, step: &Stepped<'_>) {
        let _ = step;
    }
    /// Reports an epoch that is done, validated and checkpointed.
    fn epoch(&mut self, report: &EpochReport) {
        let _ = report;
    }
    /// Returns whether [`Observer::figures`] is called. It is asked once, before the first step.
    fn wants_figures(&self) -> bool {
        false
    }
    /// Reports the counts of the run, a few times a second while it trains, and after other work
    /// than a step.
    fn figures(&mut self, figures: RunFigures) {
        let _ = figures;
    }
    /// Reports a checkpoint that was written.
    fn checkpointed(&mut self, report: &CheckpointReport) {
        let _ = report;
    }
    /// Reports a version that was published, or a publication that failed.
    fn published(&mut self, report: &PublishReport<'_>) {
        let _ = report;
    }
    /// Reports an event in one line of text.
    fn note(&mut self, text: &str) {
        let _ = text;
    }
}

/// An observer that ignores every report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
