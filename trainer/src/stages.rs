//! Where the time of a run goes.

use std::time::{Duration, Instant};

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

/// What a stopwatch added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

/// Adds the time since it was started (or last asked) to a stage.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn lap(&mut self, stage: &mut f64) -> Lap {
        self.lap_for(self.0.elapsed(), stage)
    }

    /// [`Stopwatch::lap`] that took so long.
    pub(crate) fn lap_for(&mut self, took: Duration, stage: &mut f64) -> Lap {
        let lap = Lap { begin: self.0, end: self.0 + took };
        *stage += (lap.end - lap.begin).as_secs_f64();
        self.0 = lap.end;
        lap
    }

    /// The time since it was started, of no stage that is counted.
    pub(crate) fn time(&self) -> Lap {
        Lap { begin: self.0, end: Instant::now() }
    }
}
