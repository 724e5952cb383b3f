//! The training loop: decode → plan → pull → forward and backward → push, on the one pool.
//!
//! What it is: the job (every section put together), the loop, validation with its schedule, early
//! stop, checkpoints and resume, and the evaluation of a checkpoint. What it is not: it shows nothing
//! (see [`Observer`]), parses no command line and serves no scores.
//!
//! The main path, as the command line composes it:
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
mod job;
mod model;
mod observer;
mod pipeline;
mod predict;
mod recent;
mod rejects;
mod report;
mod stages;
mod train;

pub use check::{
    CheckReport, DataCheck, FeatureCheck, Finding, LabelCheck, MemoryCheck, Severity, TableCheck,
    check,
};
pub use checkpoint::{Best, Checkpoint, FileDigest, Manifest, Progress, RunDir, TrainingFile};
pub use error::{Error, Result};
pub use evaluate::EvalReport;
pub use job::{Job, RunConfig, TableConfig, TrainConfig};
pub use model::graph;
pub use observer::{EpochReport, Observer, Silent, StepReport};
pub use predict::{Loaded, Predicted, Prediction};
pub use rejects::RejectFile;
pub use report::TrainReport;
pub use stages::StageSeconds;
pub use train::{TrainOptions, train};
