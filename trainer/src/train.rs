//! A training run: its preparation, its epochs, and the test of the best one.
//!
//! # Invariants
//! The result of a run depends on the job without `[run]` and on nothing else: not on threads,
//! shards, time, or the places where it was interrupted.

mod accumulate;
mod counts;
mod data;
mod epoch;
mod finish;
mod model;
mod output;
mod position;
mod prepare;
mod publish;
mod rates;
mod saving;
mod step;
mod timing;
mod uses;
mod warm_start;
mod window;

#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use zillion_device::{Files, Workers};
use zillion_ps::TrainClient;

use crate::error::Result;
use crate::job::Job;
use crate::observer::Observer;
use crate::profile::{ProfileOptions, Profiler, Stage};
use crate::stage_seconds::Lap;
use crate::train_report::TrainReport;
use counts::Counts;
use data::Data;
use model::Model;
use output::Output;
use position::Position;
use step::StepBuffers;
use timing::Timing;

/// The options that a run is carried out with.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Whether to resume from the newest checkpoint of the run's folder, or begin if there is none.
    pub resume: bool,
    /// The checkpoint, or a run's folder, that a new run begins from. It takes the rows, dense
    /// parameters, optimizer state and statistics, and neither the position in the data nor the
    /// schedule.
    pub from: Option<PathBuf>,
    /// The pool of compute threads.
    pub workers: Arc<Workers>,
    /// The way in which files are written.
    pub files: Files,
    /// A flag that the caller sets to finish the batch, write a checkpoint and return.
    pub stop: Arc<AtomicBool>,
    /// The settings of a profile of the run's time ([`TrainReport::profile`]), which changes no
    /// result.
    pub profile: Option<ProfileOptions>,
    /// Whether all batches of an epoch are decoded and planned before its first step and held in
    /// memory, which must be large enough for them. It is for a benchmark of the cost of reading
    /// beside the steps. Data that cannot be read then ends the epoch before its first step, and a
    /// stop takes effect once all batches are made; the result is the same.
    pub in_memory: bool,
}

impl TrainOptions {
    /// Returns the options of a fresh run on this many threads.
    ///
    /// # Errors
    /// Threads that the system refuses.
    pub fn new(threads: usize) -> Result<Self> {
        let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
        Ok(Self {
            resume: false,
            from: None,
            workers: Arc::new(Workers::new(threads)?),
            files: Files::new(),
            stop: Arc::default(),
            profile: None,
            in_memory: false,
        })
    }
}

/// Trains a job to its end (or to the next signal) and tests the best epoch.
///
/// # Errors
/// Bad configuration or data, a full disk, a diverged loss. Checkpoints written before are intact.
pub fn train(job: Job, options: TrainOptions, observer: &mut dyn Observer) -> Result<TrainReport> {
    let began = Instant::now();
    let profiler = options.profile.map(|profile| Profiler::new(profile, &options.workers));
    let prepare_began = Instant::now();
    let mut run = Run::prepare(job, options, began, observer)?;
    run.timing.profiler = profiler.map(Box::new);
    run.timing.add(Stage::Prepare, Lap { begin: prepare_began, end: Instant::now() });
    run.report_figures(None, observer)?;
    let trained = run.train_epochs(observer);
    let trained = run.finish_checkpoint_after(trained, observer);
    run.save_rejects_after(trained)?;
    run.finish(observer)
}

/// A run between two steps.
struct Run {
    job: Arc<Job>,
    options: TrainOptions,
    /// The data that the run reads.
    data: Data,
    /// The tables that the run trains.
    client: Box<dyn TrainClient>,
    /// The dense model that the run trains.
    model: Model,
    /// The buffers of a step.
    buffers: StepBuffers,
    /// The step and the place in the data.
    position: Position,
    /// The folder, the checkpoints and the versions.
    output: Output,
    /// The counts of this session.
    counts: Counts,
    /// The time of this session.
    timing: Timing,
}

impl Run {
    fn is_finished(&self) -> bool {
        self.position.progress.plateau.is_stopped()
            || self.position.cursor.epoch >= self.job.train.epochs
    }

    fn is_stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }

    fn train_epochs(&mut self, observer: &mut dyn Observer) -> Result<()> {
        while !self.is_finished() && !self.is_stopped() {
            self.train_epoch(observer)?;
        }
        Ok(())
    }

    /// Writes the file of rejected rows, also where an error ends the run: the error may be about
    /// them.
    fn save_rejects_after<T>(&mut self, outcome: Result<T>) -> Result<T> {
        let saved = self.data.save_rejects(&self.options.files);
        let outcome = outcome?;
        saved.map(|()| outcome)
    }
}
