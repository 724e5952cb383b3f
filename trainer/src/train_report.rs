//! What a training run came to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use zillion_embedding::SpillStatistics;

use crate::evaluate::EvalReport;
use crate::profile::Timeline;
use crate::stage_seconds::StageSeconds;

/// What a training run came to.
#[derive(Clone, Debug, Serialize)]
pub struct TrainReport {
    /// The job's name.
    pub name: String,
    /// Stopped by a signal: checkpointed, and to be resumed.
    pub interrupted: bool,
    /// Steps done, over all sittings.
    pub steps: u64,
    /// Steps of this sitting that moved no weight, because the gradient's norm was not finite. (Batch
    /// norm's running statistics have moved.)
    pub skipped_steps: u64,
    /// Epochs completed.
    pub epochs: u64,
    /// The best epoch, counted from 1.
    pub best_epoch: Option<u64>,
    /// Its validation AUC.
    pub valid_auc: Option<f64>,
    /// The test set, scored from the best epoch's checkpoint; absent without test files.
    pub test: Option<EvalReport>,
    /// Rows trained a second in this sitting, validation and checkpoints left out.
    pub samples_per_second: Option<f64>,
    /// From the call to the end of the first step of this sitting.
    pub first_step_seconds: Option<f64>,
    /// Largest resident memory of the process, in MiB.
    pub peak_rss_mib: Option<f64>,
    /// The best epoch's checkpoint.
    pub checkpoint: PathBuf,
    /// Dense parameters that are trained.
    pub dense_parameters: u64,
    /// One entry a table.
    pub tables: Vec<TableReport>,
    /// The version that was published last, in this sitting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
    /// Rows of the latest epoch so far that were left out as bad.
    pub rejected_rows: u64,
    /// Rows of the latest epoch that this sitting ended, without those that were left out.
    pub epoch_rows: Option<u64>,
    /// Of each side table, the rows trained in this sitting whose key it does not have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing_side_rows: BTreeMap<String, u64>,
    /// Where the time of this sitting went.
    pub seconds: StageSeconds,
    /// What was recorded of it, where that was asked for.
    #[serde(skip)]
    pub profile: Option<Timeline>,
}

/// A table at the end of a run, with the counters of this sitting.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// The table's name.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Keys that wait to be admitted.
    pub candidates: u64,
    /// Bytes, index and slack included.
    pub bytes: u64,
    /// Unknown keys that were pulled (and read as their initial row).
    pub missing: u64,
    /// Rows made, by a push or from the vocabulary.
    pub created: u64,
    /// Of those, rows of keys that the table's admission has let in.
    pub admitted: u64,
    /// Row gradients dropped because their keys were not admitted yet.
    pub waiting: u64,
    /// Rows that went: on schedule, or to make room.
    pub evicted: u64,
    /// Of those, rows that went to make room in a table at its limit.
    pub displaced: u64,
    /// Keys that were forgotten before they were admitted.
    pub lapsed: u64,
    /// Pushes of unknown keys that a fixed vocabulary refused.
    pub refused: u64,
    /// Pushes of new keys that a table at its limit refused.
    pub refused_full: u64,
    /// Row gradients dropped because they were not finite.
    pub nonfinite: u64,
    /// Weights that became the largest number of their type because they were beyond it.
    pub saturated: u64,
    /// Rows that are narrow until they have been pushed often enough.
    pub narrow_rows: u64,
    /// Row gradients for such rows: what they do not have of them was dropped.
    pub narrow_gradients: u64,
    /// Narrow rows that became full.
    pub grown: u64,
    /// Rows in memory and on disk and what went between; absent where all rows are in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillStatistics>,
}
