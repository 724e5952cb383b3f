//! Where the time of a run goes.

use std::time::Instant;

use serde::Serialize;

/// Seconds spent in each stage, by the thread that drives the run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StageSeconds {
    /// Waiting for the next planned batch (decoding and planning run ahead on the pool).
    pub wait: f64,
    /// Pulling rows.
    pub pull: f64,
    /// Forward and backward of the dense model.
    pub model: f64,
    /// Staging and pushing row gradients; with several threads, beside it the dense optimizer, where that is the shorter.
    pub push: f64,
    /// The norm of the dense gradients and the dense optimizer; with several threads, beside that the push, where that is the shorter.
    pub dense: f64,
    /// What the driver does between steps: the figures of the progress line.
    pub other: f64,
    /// Validation.
    pub validate: f64,
    /// Checkpoints.
    pub checkpoint: f64,
    /// Versions.
    pub publish: f64,
    /// Decoding and planning, on whatever thread of the pool did it. Overlaps the others.
    pub decode_and_plan: f64,
}

impl StageSeconds {
    /// The stages of the thread that drives the run, by name: together they are its time.
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

    /// Seconds of training proper: validation, checkpoints and versions left out.
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
