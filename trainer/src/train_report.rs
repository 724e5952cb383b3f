//! The report of a training run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use zillion_embedding::SpillStatistics;

use crate::evaluate::EvalReport;
use crate::job::is_zero;
use crate::observer::GpuFigures;
use crate::profile::Timeline;
use crate::run_record::EpochRecord;
use crate::stage_seconds::StageSeconds;

/// The outcome of a training run.
#[derive(Clone, Debug, Serialize)]
pub struct TrainReport {
    /// The name of the job.
    pub name: String,
    /// Whether the run was stopped. It has then written a checkpoint and can be resumed.
    pub interrupted: bool,
    /// The number of steps since the beginning of the run, including steps of earlier processes.
    pub steps: u64,
    /// The number of steps in this process that changed no weight, because the norm of the
    /// gradients was not finite. (Such a step still changes the running statistics of batch norm.)
    pub skipped_steps: u64,
    /// The number of times that the run continued from its newest checkpoint, because a server or
    /// another trainer was lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub rewinds: u64,
    /// The number of steps that the run did again after rewinds.
    #[serde(skip_serializing_if = "is_zero")]
    pub repeated_steps: u64,
    /// The number of pushes that the run has lost with servers of its tables. A push of one trainer
    /// to two servers counts twice.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost_pushes: u64,
    /// The number of complete epochs.
    pub epochs: u64,
    /// The best epoch, counted from 1.
    pub best_epoch: Option<u64>,
    /// The validation AUC of the best epoch.
    pub valid_auc: Option<f64>,
    /// The figures of the test set, scored with the best epoch's checkpoint; absent without test
    /// files.
    pub test: Option<EvalReport>,
    /// The number of rows per second that were trained on since the process started, without the
    /// time of validation and checkpoints.
    pub samples_per_second: Option<f64>,
    /// The time from the call to the end of the first step in this process, in seconds.
    pub first_step_seconds: Option<f64>,
    /// The largest resident memory of the process, in MiB.
    pub peak_rss_mib: Option<f64>,
    /// The folder of the best epoch's checkpoint.
    pub checkpoint: PathBuf,
    /// The number of dense parameters that are trained.
    pub dense_parameters: u64,
    /// The reports of the tables.
    pub tables: Vec<TableReport>,
    /// The number of the last version that this process published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<u64>,
    /// The number of bad rows that were left out of the latest epoch up to its present position.
    pub rejected_rows: u64,
    /// The number of trained rows in the latest epoch that ended in this process; absent if no
    /// epoch ended.
    pub epoch_rows: Option<u64>,
    /// The number of trained rows in this process whose key is not in a side table, for each side
    /// table.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub missing_side_rows: BTreeMap<String, u64>,
    /// The work of the GPU in this process; absent if the run trained on processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuFigures>,
    /// The time of each stage since the process started, in seconds.
    pub seconds: StageSeconds,
    /// The profile of the run, if the caller asked for one.
    #[serde(skip)]
    pub profile: Option<Timeline>,
    /// The epochs of the run, including those of earlier processes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<EpochRecord>,
}

/// The size of a table at the end of a run, and its counters since the process started.
#[derive(Clone, Debug, Serialize)]
pub struct TableReport {
    /// The name of the table.
    pub name: String,
    /// The number of rows.
    pub rows: u64,
    /// The number of keys that have a count and are not admitted yet.
    pub candidates: u64,
    /// The memory of the table in bytes, including its index and unused space.
    pub bytes: u64,
    /// The number of pulls of unknown keys, which read the initial values of a row.
    pub missing: u64,
    /// The number of rows that a push or the vocabulary created.
    pub created: u64,
    /// The number of rows that the rule of admission created.
    pub admitted: u64,
    /// The number of row gradients that were dropped because their keys were not admitted yet.
    pub waiting: u64,
    /// The number of rows that were evicted, on schedule or to free memory for other rows.
    pub evicted: u64,
    /// The number of rows that a table at its limit evicted to make room for new rows.
    pub displaced: u64,
    /// The number of candidates whose counts were removed before they were admitted.
    pub lapsed: u64,
    /// The number of row gradients that a fixed vocabulary refused because their keys are unknown.
    pub refused: u64,
    /// The number of row gradients of new keys that a table at its limit refused.
    pub refused_full: u64,
    /// The number of row gradients that were dropped because they were not finite: by the servers,
    /// and in the mode `geo` also by this trainer.
    pub nonfinite: u64,
    /// The number of weights that became too large for their type and were set to its largest
    /// number.
    pub saturated: u64,
    /// The number of narrow rows at the end of the run.
    pub narrow_rows: u64,
    /// The number of row gradients that reached narrow rows. Their part beyond the narrow row was
    /// dropped.
    pub narrow_gradients: u64,
    /// The number of narrow rows that became full.
    pub grown: u64,
    /// The number of rows in memory and on disk, and the traffic between them; absent if all rows
    /// are in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillStatistics>,
}
