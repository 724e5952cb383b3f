//! The reports of a run to its caller. The trainer reports; showing is the caller's business.

mod figures;
mod reports;

pub use figures::RunFigures;
pub use reports::{CheckpointReport, EpochReport, Look, PublishReport, StepReport, Stepped};

/// Watches a run. Every method has an empty default.
pub trait Observer {
    /// Some step is done. Called a few times a second at most, not for every step.
    fn step(&mut self, report: &StepReport) {
        let _ = report;
    }
    /// What is to be looked into. Asked once, before the first step.
    fn look(&self) -> Look {
        Look::default()
    }
    /// A step is done, and this is what it was. Called for every one where [`Observer::look`] asks for
    /// anything. Looking changes nothing.
    fn stepped(&mut self, step: &Stepped<'_>) {
        let _ = step;
    }
    /// An epoch is done, validated and checkpointed.
    fn epoch(&mut self, report: &EpochReport) {
        let _ = report;
    }
    /// Whether [`Observer::figures`] is called. Asked once, before the first step.
    fn wants_figures(&self) -> bool {
        false
    }
    /// What is counted of the run, now: a few times a second while it trains, and when something other than a step
    /// was done.
    fn figures(&mut self, figures: RunFigures) {
        let _ = figures;
    }
    /// A checkpoint was written.
    fn checkpointed(&mut self, report: &CheckpointReport) {
        let _ = report;
    }
    /// A version was published, or could not be.
    fn published(&mut self, report: &PublishReport<'_>) {
        let _ = report;
    }
    /// Something worth a line happened.
    fn note(&mut self, text: &str) {
        let _ = text;
    }
}

/// An observer that does not look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
