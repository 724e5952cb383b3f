//! The position of a run: its step, its position in the data, and its progress.

use zillion_feature::Cursor;
use zillion_nn::optim::{Plateau, PlateauSpec};

use crate::checkpoint::Progress;
use crate::job::Job;

/// The position of a run between two steps.
pub(super) struct Position {
    /// The number of steps done.
    pub(super) step: u64,
    /// The position in the order of rows.
    pub(super) cursor: Cursor,
    /// The state of the schedule and of the epoch.
    pub(super) progress: Progress,
}

impl Position {
    /// Returns the position before the first step.
    pub(super) fn new(job: &Job) -> Self {
        let progress = Progress {
            plateau: new_plateau(job),
            best: None,
            loss_sum: 0.0,
            left_out: 0,
            rejected: 0,
            newest_event_ms: None,
            event_clock: None,
            begun_at: 0,
            lost_pushes: 0,
        };
        Self { step: 0, cursor: Cursor::default(), progress }
    }
}

/// Returns the job's schedule. A job without a schedule gets one that never changes the learning
/// rate and never stops the run, because the schedule also finds the best epoch.
fn new_plateau(job: &Job) -> Plateau {
    let never =
        PlateauSpec { factor: 1.0, patience: u32::MAX, metric: job.judge(), ..Default::default() };
    Plateau::new(job.train.plateau.clone().unwrap_or(never), job.train.optimizer.lr())
}
