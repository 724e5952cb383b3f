//! The counts of a run while it goes on, for metrics and not for a person.
//!
//! They are plain numbers at one moment. A count only grows, from 0 at the start of the session, so
//! that a caller with counters of its own can follow by differences.

use zillion_embedding::TableStatistics;
use zillion_feature::Cursor;
use zillion_reader::ReadCounts;

use crate::stage_seconds::StageSeconds;

/// The counts of a run at one moment. They are of this session.
#[derive(Clone, Debug, Default)]
pub struct RunFigures {
    /// The number of steps done, over all sessions.
    pub step: u64,
    /// The position in the order of rows.
    pub cursor: Cursor,
    /// The largest number of epochs of the job.
    pub epochs: u64,
    /// The number of rows trained.
    pub samples: u64,
    /// The rows of the training data that training has gone over: trained, bad, or not drawn.
    pub passed_rows: u64,
    /// The bad rows among them.
    pub bad_rows: u64,
    /// The steps that moved no weight, because the gradient's norm was not finite.
    pub skipped_steps: u64,
    /// The mean loss of the rows trained since the last figures; absent where there were none.
    pub loss: Option<f64>,
    /// The AUC of each task's most recent predictions, made before each batch was learned from.
    pub aucs: Vec<(String, Option<f64>)>,
    /// The learning-rate multiplier of the schedule.
    pub rate_scale: f32,
    /// The seconds of each step since the last figures, without waiting for its rows.
    pub step_seconds: Vec<f64>,
    /// The time by stage.
    pub seconds: StageSeconds,
    /// The counts of rows read and left out, by data set: `train`, `valid`, `test` where the job
    /// has them.
    pub read: Vec<(&'static str, ReadCounts)>,
    /// The rows trained whose key a side table does not have, by side table of the job.
    pub missing_side_rows: Vec<(String, u64)>,
    /// The tables, with their counters.
    pub tables: Vec<TableStatistics>,
    /// The time of the newest event that was trained on, in milliseconds since 1970, where the job
    /// gives the unit of its event times.
    pub newest_event_ms: Option<u64>,
}
