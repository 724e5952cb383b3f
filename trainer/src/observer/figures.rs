//! The counts of a run while it trains, for metrics.
//!
//! Counts start from 0 at the start of the process and never decrease, so a caller can add their
//! differences to counters of its own.

use serde::Serialize;
use zillion_embedding::TableStatistics;
use zillion_feature::Cursor;
use zillion_reader::ReadCounts;

use crate::stage_seconds::StageSeconds;

/// The counts of a run at one moment, since the process started or resumed it.
#[derive(Clone, Debug, Default)]
pub struct RunFigures {
    /// The number of steps since the beginning of the run, including steps of earlier processes.
    pub step: u64,
    /// The position in the order of rows.
    pub cursor: Cursor,
    /// The largest number of epochs of the job.
    pub epochs: u64,
    /// The number of rows that were trained on.
    pub samples: u64,
    /// The number of rows of the training data that were read: trained on, bad, or not drawn.
    pub passed_rows: u64,
    /// The number of bad rows of the training data that were read.
    pub bad_rows: u64,
    /// The number of steps that changed no weight, because the norm of the gradients was not
    /// finite.
    pub skipped_steps: u64,
    /// The number of times that the run continued from its newest checkpoint, because a server or
    /// another trainer was lost.
    pub rewinds: u64,
    /// The number of steps that the run did again after rewinds.
    pub repeated_steps: u64,
    /// The number of pushes of this trainer that were lost with servers of the tables.
    pub lost_pushes: u64,
    /// The mean loss of the rows that were trained on since the last figures; absent if there are
    /// no such rows.
    pub loss: Option<f64>,
    /// The AUC of the most recent predictions of each task. Each prediction was made before its
    /// batch was trained on.
    pub aucs: Vec<(String, Option<f64>)>,
    /// The learning-rate multiplier of the schedule.
    pub rate_scale: f32,
    /// The duration of each step since the last figures in seconds, without the wait for its batch.
    pub step_seconds: Vec<f64>,
    /// The time of each stage, in seconds.
    pub seconds: StageSeconds,
    /// The counts of rows that were read and left out, for each data set of the job: `train`,
    /// `valid`, `test`.
    pub read: Vec<(&'static str, ReadCounts)>,
    /// The number of trained rows whose key is not in a side table, for each side table.
    pub missing_side_rows: Vec<(String, u64)>,
    /// The work of the GPU; absent if the run trains on processors.
    pub gpu: Option<GpuFigures>,
    /// The sizes and counters of the tables.
    pub tables: Vec<TableStatistics>,
    /// The time of the newest event that was trained on, in milliseconds since 1970; absent if the
    /// job does not give the unit of its event times.
    pub newest_event_ms: Option<u64>,
}

/// The work of a GPU since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuFigures {
    /// Whether the rows of the tables are on the GPU. Otherwise each step copies its rows to the
    /// GPU, and waits for their gradients.
    pub has_rows: bool,
    /// Whether the rows on the GPU are a cache of those of the host.
    pub has_cache: bool,
    /// The number of rows for which the cache has memory.
    pub cache_slots: u64,
    /// The number of rows that batches wanted from the cache.
    pub cache_wanted_rows: u64,
    /// The number of these rows that were in the cache when their batch was first seen.
    pub cache_found_rows: u64,
    /// The number of rows that were copied to the cache.
    pub cache_rows_in: u64,
    /// The number of changed rows that were copied from the cache to make room.
    pub cache_rows_out: u64,
    /// The number of steps that began before all of their rows were in the cache or on their way.
    pub cache_waited_steps: u64,
    /// The number of steps that were computed on the GPU.
    pub steps: u64,
    /// The number of steps in which the host waited for the GPU. Waits between steps, for a
    /// checkpoint, a validation or a version, are not counted.
    pub waited_steps: u64,
    /// The number of steps that allocated memory of the GPU, or pinned memory of the host.
    pub allocating_steps: u64,
    /// The number of steps whose batch was in pinned memory before they began. The other steps have
    /// written their batch themselves.
    pub staged_steps: u64,
    /// The bytes of the GPU's memory that are allocated.
    pub bytes: u64,
}
