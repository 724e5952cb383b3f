//! A training run: its preparation, its epochs, and the test of the best epoch.
//!
//! # Invariants
//! In the mode `sync`, the result of a run depends only on the job without `[run]` and `[ps]`, and
//! on the number of trainers. It does not depend on threads, shards, servers, time, or the steps
//! after which the run was interrupted.

mod accumulate;
mod apart;
mod asynchronous;
mod behind;
mod by_time;
mod continuing;
mod counts;
mod data;
mod device;
mod engine;
mod epoch;
mod event_time;
mod finish;
mod geo;
mod gpu_engine;
mod graph_executor;
mod joint;
mod joint_gradients;
mod meetings;
mod model;
mod note;
mod online;
mod opening;
mod output;
mod output_bias;
mod overwrite;
mod position;
mod prepare;
mod products;
mod pruning;
mod publish;
mod rates;
mod resident;
mod resumed;
mod rewind;
mod round;
mod rounding;
mod row_placement;
mod saving;
mod step;
mod stepped;
mod timing;
mod uses;
mod warm_start;
mod window;

#[cfg(test)]
mod class_tests;
#[cfg(test)]
mod data_tests;
#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod joint_tests;
#[cfg(test)]
mod label_tests;
#[cfg(test)]
mod steep;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use zillion_device::{Files, Workers};
use zillion_ps::{TrainClient, TrainerPlace};

pub use by_time::{TimedReport, TimedScores, test_then_train};
pub use online::{
    REWIND_FILE, RewindPlan, RewindRequest, check_replay_target, has_rewound, plan_rewind,
    quarantine_versions, replay_online, request_rewind, rewind_stopped, train_online,
    versions_after,
};

pub use stepped::{StepBatch, SteppedRun};

use crate::error::Result;
use crate::job::Job;
use crate::observer::Observer;
use crate::profile::{ProfileOptions, Profiler, Stage};
use crate::stage_seconds::Lap;
use crate::train_report::TrainReport;
use behind::Begun;
use counts::Counts;
use data::Data;
use engine::Engine;
use model::Model;
use opening::{Open, open_client};
use output::Output;
use position::Position;
use prepare::Start;
use rewind::Rewinds;
use step::StepBuffers;
use timing::Timing;

/// The options of a run, which do not belong to the job.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Whether to resume from the newest checkpoint of the run's folder. Without a checkpoint, the
    /// run begins at the first step.
    pub resume: bool,
    /// Whether an old run in the run's folder is removed, once the job is checked and the lock of
    /// the folder is held. A folder with files but no run is refused.
    pub overwrite: bool,
    /// The folder of a checkpoint or of a run from which a new run begins. The new run takes the
    /// rows, the dense parameters, the optimizer state and the statistics. It does not take the
    /// position in the data and the schedule.
    pub from: Option<PathBuf>,
    /// The pool of compute threads.
    pub workers: Arc<Workers>,
    /// The writer of durable files.
    pub files: Files,
    /// The flag that the caller sets to stop the run after the present step. The run then writes a
    /// checkpoint and returns.
    pub stop: Arc<AtomicBool>,
    /// The settings of a profile of the run's time ([`TrainReport::profile`]), which changes no
    /// result.
    pub profile: Option<ProfileOptions>,
    /// Whether all batches of an epoch are decoded and planned before its first step. The memory
    /// must be large enough for all of them. The option serves a benchmark of the cost of reading.
    /// With it, an error of the data ends the epoch before its first step, and a stop takes effect
    /// only after all batches are made. The option does not change the result of training.
    pub in_memory: bool,
    /// The place of this trainer among the trainers of the run. With several trainers, each step
    /// has one batch of each trainer, and gives the result of one trainer with `train.accumulate`
    /// set to their number. Only trainer 0 writes checkpoints, publishes and tests.
    pub trainer: TrainerPlace,
}

impl TrainOptions {
    /// Returns the options of a new run on this number of threads.
    ///
    /// # Errors
    /// Returns an error if the system refuses a thread.
    pub fn new(threads: usize) -> Result<Self> {
        let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
        Ok(Self {
            resume: false,
            overwrite: false,
            from: None,
            workers: Arc::new(Workers::new(threads)?),
            files: Files::new(),
            stop: Arc::default(),
            profile: None,
            in_memory: false,
            trainer: TrainerPlace::ALONE,
        })
    }
}

/// Trains a job to its end, or until the caller stops it, and tests the best epoch.
///
/// # Errors
/// Returns an error if the job or its data is wrong, if a file cannot be written, or if the loss
/// diverges. Earlier checkpoints stay intact.
pub fn train(job: Job, options: TrainOptions, observer: &mut dyn Observer) -> Result<TrainReport> {
    train_over(job, options, &mut open_client, observer)
}

/// Trains a job over the tables that `open` opens. If a generation of the tables ends, the function
/// opens them again and continues from the newest checkpoint.
fn train_over(
    job: Job,
    options: TrainOptions,
    open: &mut Open<'_>,
    observer: &mut dyn Observer,
) -> Result<TrainReport> {
    let began = Instant::now();
    let profiler = options.profile.map(|profile| Profiler::new(profile, &options.workers));
    let (mut run, basis) = Run::open(job, options, began, open, observer)?;
    let mut start = Start::From(Box::new(basis));
    run.timing.profiler = profiler.map(Box::new);
    let mut prepare_began = began;
    loop {
        let mut error = match run.prepare_and_train(start, prepare_began, observer) {
            Err(error) if error.rewound().is_some() => error,
            Err(error) => {
                // The other trainers end too, instead of waiting for this one.
                run.client.abort(&error.to_string());
                return Err(error);
            }
            Ok(report) => return Ok(report),
        };
        prepare_began = Instant::now();
        // A new generation may also end while the run enters it.
        start = loop {
            match run.rewind(error, open, observer) {
                Err(again) if again.rewound().is_some() => error = again,
                Err(error) => {
                    run.client.abort(&error.to_string());
                    return Err(error);
                }
                Ok(start) => break start,
            }
        };
    }
}

/// The state of a run between two steps.
struct Run {
    job: Arc<Job>,
    options: TrainOptions,
    /// The data that the run reads.
    data: Data,
    /// The tables that the run trains.
    client: Box<dyn TrainClient>,
    /// The engine that computes the steps.
    engine: Box<dyn Engine>,
    /// The batches whose results have not been observed, the oldest first.
    behind: VecDeque<Begun>,
    /// The dense model that the run trains.
    model: Model,
    /// The buffers of a step.
    buffers: StepBuffers,
    /// The step and the position in the data.
    position: Position,
    /// The folder, the checkpoints and the versions.
    output: Output,
    /// The counts since the process started.
    counts: Counts,
    /// The time of each stage since the process started.
    timing: Timing,
    /// The rewinds of the run.
    rewinds: Rewinds,
    /// The factor by which the caller multiplies the learning rates, beside the schedule.
    rate_factor: f32,
    /// Whether the flag that stops the run also ends a validation, as an error.
    stops_validation: bool,
}

impl Run {
    /// Prepares the run, trains it to its end, and tests the best epoch. If a GPU ends the run, the
    /// error names the checkpoint to resume from.
    fn prepare_and_train(
        &mut self,
        start: Start,
        began: Instant,
        observer: &mut dyn Observer,
    ) -> Result<TrainReport> {
        let trained = self.train_from(start, began, observer);
        trained.map_err(|error| self.name_checkpoint(error))
    }

    fn train_from(
        &mut self,
        start: Start,
        began: Instant,
        observer: &mut dyn Observer,
    ) -> Result<TrainReport> {
        self.prepare(start, observer)?;
        self.timing.add(Stage::Prepare, Lap { begin: began, end: Instant::now() });
        self.report_figures(None, observer)?;
        let trained = self.train_epochs(observer);
        let trained = self.finish_checkpoint_after(trained, observer);
        self.save_rejects_after(trained)?;
        self.finish(observer)
    }

    fn is_finished(&self) -> bool {
        self.position.progress.plateau.is_stopped()
            || self.position.cursor.epoch >= self.job.train.epochs
    }

    fn train_epochs(&mut self, observer: &mut dyn Observer) -> Result<()> {
        while !self.is_finished() && !self.is_stopped() {
            self.train_epoch(observer)?;
        }
        Ok(())
    }

    /// Writes the file of rejected rows, even if an error ends the run, because the error may be
    /// about these rows.
    fn save_rejects_after<T>(&mut self, outcome: Result<T>) -> Result<T> {
        let saved = self.data.save_rejects(&self.options.files);
        let outcome = outcome?;
        saved.map(|()| outcome)
    }
}
