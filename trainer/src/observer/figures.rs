//! What is counted of a run while it goes on: for a scrape, not for a person.
//!
//! Plain numbers at one moment. Whatever is a count only grows, from 0 at the start of the sitting, so that whoever
//! keeps counters of his own can follow by differences.

use zillion_embedding::TableStatistics;
use zillion_feature::Cursor;
use zillion_reader::ReadCounts;

use crate::stage_seconds::StageSeconds;

/// A run at one moment. Counts are of this sitting.
#[derive(Clone, Debug, Default)]
pub struct RunFigures {
    /// Steps done, over all sittings.
    pub step: u64,
    /// Position in the order of rows.
    pub cursor: Cursor,
    /// Epochs of the job, at most.
    pub epochs: u64,
    /// Rows trained.
    pub samples: u64,
    /// Rows of the training data that training has gone over: trained, bad, or not drawn.
    pub passed_rows: u64,
    /// Of these, the bad ones.
    pub bad_rows: u64,
    /// Steps that moved no weight, because the gradient's norm was not finite.
    pub skipped_steps: u64,
    /// Mean loss of the rows trained since the last figures; absent where there were none.
    pub loss: Option<f64>,
    /// AUC of each task's most recent predictions, made before each batch was learned from.
    pub aucs: Vec<(String, Option<f64>)>,
    /// Learning-rate multiplier of the schedule.
    pub rate_scale: f32,
    /// Seconds of each step since the last figures, without waiting for its rows.
    pub step_seconds: Vec<f64>,
    /// Where the time went.
    pub seconds: StageSeconds,
    /// What was read and left out, by data set: `train`, `valid`, `test` where the job has them.
    pub read: Vec<(&'static str, ReadCounts)>,
    /// Rows trained whose key a side table does not have, one entry a side table of the job.
    pub missing_side_rows: Vec<(String, u64)>,
    /// The tables, with their counters.
    pub tables: Vec<TableStatistics>,
    /// When the newest event that was trained on happened, in milliseconds since 1970, where the job says how its
    /// data tells it.
    pub newest_event_ms: Option<u64>,
}
