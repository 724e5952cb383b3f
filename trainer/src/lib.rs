//! Training: a loop over batches that decodes rows, plans lookups, pulls rows, runs the forward and
//! backward pass, and pushes gradients. All of this runs on one pool of threads.
//!
//! The crate contains the job with all its sections, the training loop, validation, schedules,
//! early stopping, checkpoints, resuming, and the evaluation of a checkpoint. It does not print
//! anything (see [`Observer`]), parse a command line, or serve scores.
//!
//! The main path of the crate trains a job:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use zillion_trainer::{Job, Silent, TrainOptions, train};
//!
//! let value: toml::Table = std::fs::read_to_string("job.toml")?.parse()?;
//! let job = Job::from_value(value.into())?;
//! let report = train(job, TrainOptions::new(2)?, &mut Silent)?;
//! println!("{:?}", report.test.and_then(|t| t.auc));
//! # Ok(())
//! # }
//! ```

mod check;
mod checkpoint;
mod error;
mod evaluate;
mod fetch;
mod frequencies;
mod graph_inputs;
mod groups;
mod importance;
mod job;
mod observer;
mod online;
mod online_report;
mod online_status;
mod overlap;
mod pipeline;
mod plan;
mod predict;
pub mod profile;
mod publish;
mod recent_auc;
mod rejects;
mod retrieval;
mod run_record;
mod segments;
mod stage_seconds;
mod tasks;
mod trace_span;
mod train;
mod train_report;
mod unseen;
mod validation_history;

pub use check::{
    CheckReport, DataCheck, FeatureCheck, Finding, GradientCheck, GradientGroup, LabelCheck,
    MemoryCheck, Severity, TableCheck, check, gradients,
};
pub use checkpoint::{
    Best, Checkpoint, FileDigest, KeptAlgorithm, Manifest, Parent, ProductChoice, Progress, RunDir,
    Shrunk, TableTime, TrainingFile,
};
pub use error::{Error, Result};
pub use evaluate::{EvalReport, Predicted};
pub use fetch::Fetched;
pub use importance::{FeatureImportance, ImportanceOptions, ImportanceReport, TaskImportance};
pub use job::{
    AvroConfig, DeviceChoice, EmitConfig, EvalConfig, FakeQuantize, ItemCounts, ItemsConfig, Job,
    JoinConfig, LateConfig, Memory, Mode, OnlineConfig, OutputBias, Precision, ProtobufConfig,
    PruneConfig, PsConfig, PublishConfig, RateConfig, RunConfig, ServerLoss, StreamConfig,
    StreamFormat, StreamKind, StreamRole, TableConfig, TrainConfig, TuneConfig, TuneRange,
    TuneResource, TuneValues, WarmStart, Wire,
};
pub use observer::{
    CheckpointReport, EpochReport, GpuFigures, InspectOptions, InspectedStep, Observer,
    PublishReport, RunFigures, Silent, StepReport,
};
pub use online::{
    FeedStatus, Forgotten, JoinStatus, NeededMessages, PAUSED, PartitionReset, PartitionStatus,
    ResetPlan, SnapshotLink, consume_streams, list_needed, plan_reset, reset_streams,
    schema_folder, stream_folder,
};
pub use online_report::OnlineReport;
pub use online_status::{STATUS_FILE, StreamStatus};
pub use plan::{Growth, PlanOptions, PlanReport, Size, TablePlan, plan_tables};
pub use predict::{InspectedBatch, Loaded, Prediction};
pub use publish::{
    CheckpointWish, CompactionCounts, DenseModel, ExpectedScores, InputChange, Published,
    RoundingCost, TablesPublisher, fill_params, make_run_id, publish_checkpoint,
};
pub use rejects::RejectFile;
pub use run_record::{EpochRecord, LossCurve, LossPoint, RECORD_FILE, RunRecord};
pub use segments::SegmentReport;
pub use stage_seconds::StageSeconds;
pub use tasks::TaskReport;
pub use train::{
    REWIND_FILE, RewindPlan, RewindRequest, StepBatch, SteppedRun, TimedReport, TimedScores,
    TrainOptions, check_replay_target, has_rewound, plan_rewind, quarantine_versions,
    replay_online, request_rewind, rewind_stopped, test_then_train, train, train_online,
    versions_after,
};
pub use train_report::TrainReport;
pub use unseen::UnseenIds;
pub use validation_history::HISTORY_FILE;
pub use zillion_ps::TrainerPlace;
