//! The time of a run by stage.

use std::time::Instant;

use serde::Serialize;

/// The seconds spent in each stage, by the thread that drives the run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StageSeconds {
    /// The wait for the next planned batch (decoding and planning run ahead on the pool).
    pub wait: f64,
    /// The pull of the rows.
    pub pull: f64,
    /// The forward and backward pass of the dense model.
    pub model: f64,
    /// The staging and the push of row gradients; with several threads, also the dense optimizer
    /// beside it, where the push is the longer.
    pub push: f64,
    /// The norm of the dense gradients and the dense optimizer; with several threads, also the push
    /// beside it, where the optimizer is the longer.
    pub dense: f64,
    /// The driver's work between steps: the figures of the progress line.
    pub other: f64,
    /// The validation of epochs.
    pub validate: f64,
    /// The writing of checkpoints.
    pub checkpoint: f64,
    /// The publishing of versions.
    pub publish: f64,
    /// The decoding and planning, on any thread of the pool. It overlaps the others.
    pub decode_and_plan: f64,
}

impl StageSeconds {
    /// Returns the stages of the thread that drives the run, by name. Together they are its time.
    pub fn of_the_driver(&self) -> [(&'static str, f64); 9] {
        [
            ("wait", self.wait),
            ("pull", self.pull),
            ("model", self.model),
            ("push", self.push),
            ("dense", self.dense),
            ("other", self.other),
            ("validate", self.validate),
            ("checkpoint", self.checkpoint),
            ("publish", self.publish),
        ]
    }

    /// Returns the seconds of the steps, without validation, checkpoints and versions.
    pub fn training(&self) -> f64 {
        self.wait + self.pull + self.model + self.push + self.dense + self.other
    }
}

/// A stretch of time of the thread that drives a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

impl Lap {
    /// Returns its length in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        (self.end - self.begin).as_secs_f64()
    }
}
