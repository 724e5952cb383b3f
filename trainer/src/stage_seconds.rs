//! The time of a run in each of its stages.

use std::time::Instant;

use serde::Serialize;

/// The seconds that the thread that drives the run has spent in each stage.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StageSeconds {
    /// The time of waiting for the next planned batch (decoding and planning run on the pool).
    pub wait: f64,
    /// The time of pulling rows.
    pub pull: f64,
    /// The time of the forward and backward pass of the dense model.
    pub model: f64,
    /// The time of staging and pushing row gradients. With several threads, the dense optimizer
    /// runs at the same time. If the push takes longer, the time of both is added to this field.
    pub push: f64,
    /// The time of the norm of the dense gradients and of the dense optimizer. With several
    /// threads, the push runs at the same time. If the optimizer takes longer, the time of both is
    /// added to this field.
    pub dense: f64,
    /// The time of the driver's work between steps, which computes the figures of the progress
    /// line.
    pub other: f64,
    /// The time of validating epochs.
    pub validate: f64,
    /// The time of writing checkpoints.
    pub checkpoint: f64,
    /// The time of publishing versions.
    pub publish: f64,
    /// The time of decoding and planning on all threads of the pool. It overlaps the other stages.
    pub decode_and_plan: f64,
}

impl StageSeconds {
    /// Returns the name and the seconds of each stage of the thread that drives the run. Their sum
    /// is the time of this thread.
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

/// A stretch of time of the thread that drives a run: its beginning and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

impl Lap {
    /// Returns the length of the stretch in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        (self.end - self.begin).as_secs_f64()
    }
}
