//! What a run tells whoever watches it. The trainer reports; showing is the caller's business.

use std::time::Duration;

use zillion_feature::Cursor;

/// Watches a run. Every method has an empty default.
pub trait Observer {
    /// Some step is done. Called a few times a second at most, not for every step.
    fn step(&mut self, report: &StepReport) {
        let _ = report;
    }
    /// An epoch is done, validated and checkpointed.
    fn epoch(&mut self, report: &EpochReport) {
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

/// Where training stands after a step.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Steps done, over all epochs.
    pub step: u64,
    /// Position in the order of rows.
    pub cursor: Cursor,
    /// Rows of an epoch, those that are left out among them as in the position, where known.
    pub epoch_rows: Option<u64>,
    /// Mean loss since the last report.
    pub loss: f64,
    /// AUC of the most recent predictions, made before each batch was learned from.
    pub auc: Option<f64>,
    /// Rows trained a second since the last report.
    pub samples_per_second: f64,
    /// Time to the end of the epoch at this pace, where the number of rows is known.
    pub eta: Option<Duration>,
}

/// What an epoch came to.
#[derive(Clone, Copy, Debug)]
pub struct EpochReport {
    /// Epoch, counted from 0.
    pub epoch: u64,
    /// Mean training loss over the epoch's rows, each before it was learned from.
    pub mean_loss: f64,
    /// What the regularisers add to the loss, with the weights at the end of the epoch.
    pub regulariser: f64,
    /// Validation AUC, where there is validation data of both classes.
    pub valid_auc: Option<f64>,
    /// Validation logloss.
    pub valid_logloss: Option<f64>,
    /// Learning-rate multiplier of the epoch that follows.
    pub rate_scale: f32,
    /// Seconds that the epoch took, validation and checkpoint included.
    pub seconds: f64,
    /// Whether its weights are the best so far.
    pub is_best: bool,
}
