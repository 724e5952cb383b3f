//! The report of a training run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use zillion_embedding::SpillStatistics;

use crate::evaluate::EvalReport;
use crate::profile::Timeline;
use crate::stage_seconds::StageSeconds;

/// The outcome of a training run.
#[derive(Clone, Debug, Serialize)]
pub struct TrainReport {
    /// The name of the job.
    pub name: String,
    /// Whether a signal stopped the run, which has written a checkpoint and can be resumed.
    pub interrupted: bool,
    /// The number of steps done, over all sessions.
    pub steps: u64,
    /// The steps of this session that moved no weight, because the gradient's norm was not finite.
    /// (Batch norm's running statistics have moved.)
    pub skipped_steps: u64,
    /// The number of epochs completed.
    pub epochs: u64,
    /// The best epoch, counted from 1.
    pub best_epoch: Option<u64>,
    /// The validation AUC of the best epoch.
    pub valid_auc: Option<f64>,
    /// The figures of the test set, scored from the best epoch's checkpoint; absent without test
    /// files.
    pub test: Option<EvalReport>,
    /// The rows trained a second in this session, without validation and checkpoints.
    pub samples_per_second: Option<f64>,
    /// The seconds from the call to the end of the first step of this session.
    pub first_step_seconds: Option<f64>,
    /// The largest resident memory of the process, in MiB.
    pub peak_rss_mib: Option<f64>,
    /// The folder of the best epoch's checkpoint.
    pub checkpoint: PathBuf,
    /// The number of dense parameters that are trained.
    pub dense_parameters: u64,
    /// The reports of the tables.
    pub tables: Vec<TableReport>,
    /// The version that this session published last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
    /// The rows of the latest epoch so far that were left out as bad.
    pub rejected_rows: u64,
    /// The rows of the latest epoch that this session ended, without those that were left out.
    pub epoch_rows: Option<u64>,
    /// The rows trained in this session whose key a side table does not have, by side table.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing_side_rows: BTreeMap<String, u64>,
    /// The time of this session by stage.
    pub seconds: StageSeconds,
    /// The profile of the run, where the caller asked for one.
    #[serde(skip)]
    pub profile: Option<Timeline>,
}

/// A table at the end of a run, with the counters of this session.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// The name of the table.
    pub name: String,
    /// The number of rows.
    pub rows: u64,
    /// The keys that wait to be admitted.
    pub candidates: u64,
    /// The bytes of memory, index and slack included.
    pub bytes: u64,
    /// The unknown keys that were pulled (and read as their initial row).
    pub missing: u64,
    /// The rows that a push or the vocabulary created.
    pub created: u64,
    /// The created rows of keys that the table's admission had to admit.
    pub admitted: u64,
    /// The row gradients that were dropped because their keys were not admitted yet.
    pub waiting: u64,
    /// The rows that were evicted, on schedule or to free memory for others.
    pub evicted: u64,
    /// The evicted rows that a table at its limit replaced by others.
    pub displaced: u64,
    /// The keys that were forgotten before they were admitted.
    pub lapsed: u64,
    /// The pushes of unknown keys that a fixed vocabulary refused.
    pub refused: u64,
    /// The pushes of new keys that a table at its limit refused.
    pub refused_full: u64,
    /// The row gradients that were dropped because they were not finite.
    pub nonfinite: u64,
    /// The weights that became the largest number of their type because they were beyond it.
    pub saturated: u64,
    /// The rows that are narrow until they have been pushed often enough.
    pub narrow_rows: u64,
    /// The gradients of narrow rows, of which the part without weights was dropped.
    pub narrow_gradients: u64,
    /// The narrow rows that became full.
    pub grown: u64,
    /// The rows in memory and on disk and the traffic between them; absent where all rows are in
    /// memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillStatistics>,
}
