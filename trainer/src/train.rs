//! A training run: prepare or resume, the epochs, the test of the best one.
//!
//! # Invariants
//! What a run computes depends on the job without `[run]` and on nothing else: not on threads, shards,
//! time, or on where it was interrupted.

mod accumulate;
mod counting;
mod learning;
mod prepare;
mod publish;
mod saving;
mod step;
mod uses;
mod warm_start;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use zillion_device::{Files, Workers, machine};
use zillion_feature::{Batch, Cursor, LookupPlan, Statistics};
use zillion_nn::optim::{Average, DenseOptimizer, Plateau, Verdict};
use zillion_nn::zoo::Task;
use zillion_nn::{Executor, Params};
use zillion_ps::{PulledRows, TrainClient};
use zillion_reader::{BatchOrder, Dataset};
use zillion_scorer::Scorer;

use crate::checkpoint::{Best, Link, Progress, RunDir, TrainingFile};
use crate::error::{Error, Result};
use crate::evaluate::{self, EvalReport, Judge};
use crate::frequencies::Frequencies;
use crate::job::Job;
use crate::observer::{EpochReport, Observer, StepReport};
use crate::pipeline::Pipeline;
use crate::predict::Loaded;
use crate::profile::{Note, ProfileOptions, Profiler, Stage};
use crate::publish::RunId;
use crate::rejects::RejectFile;
use crate::report::{TableReport, TrainReport};
use crate::retrieval::Towers;
use crate::stages::{StageSeconds, Stopwatch};
use crate::tasks::RecentTasks;
use accumulate::Accumulated;
use counting::{Counting, Lately};
use publish::Publishing;
use saving::{Extent, Saving};
use step::{Looking, StepBuffers};

/// Step reports come at most this often.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// How a run is carried out.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Go on from the newest checkpoint of the run's folder, or begin if there is none.
    pub resume: bool,
    /// A checkpoint, or a run's folder, that a new run begins from: rows, dense parameters, optimizer state and
    /// statistics are taken over, the position in the data and the schedule are not.
    pub from: Option<PathBuf>,
    /// The compute pool.
    pub workers: Arc<Workers>,
    /// How files are written.
    pub files: Files,
    /// Set from outside to finish the batch, write a checkpoint and return.
    pub stop: Arc<AtomicBool>,
    /// Where the run's time goes is recorded ([`TrainReport::profile`]); it changes nothing of the run.
    pub profile: Option<ProfileOptions>,
    /// All batches of an epoch are decoded and planned before its first step and held in memory, which must have room
    /// for them: for a benchmark of what reading beside the steps costs. Data that cannot be read then ends the epoch before
    /// its first step, and a stop is heeded once all are there; what is trained is the same.
    pub in_memory: bool,
}

impl TrainOptions {
    /// A fresh run on this many threads.
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
    let mut profiler = options.profile.map(|profile| {
        let watch = Stopwatch::start();
        (Box::new(Profiler::new(profile, &options.workers)), watch)
    });
    let mut run = Run::prepare(job, options, began, observer)?;
    if let Some((profiler, watch)) = &mut profiler {
        profiler.stage(Stage::Prepare, watch.time());
    }
    run.profiler = profiler.map(|(profiler, _)| profiler);
    run.count(None, observer)?;
    let trained = run.epochs(observer);
    let trained = run.saving_checkpoint(trained, observer);
    run.saving_rejects(trained)?;
    run.finish(observer)
}

/// A run between two steps.
struct Run {
    job: Arc<Job>,
    options: TrainOptions,
    dir: RunDir,
    /// The training that this is, in the versions that come from it.
    id: RunId,
    train_data: Dataset,
    valid_data: Option<Dataset>,
    test_data: Option<Dataset>,
    statistics: Statistics,
    client: Box<dyn TrainClient>,
    executor: Executor,
    scorer: Scorer,
    towers: Option<Towers>,
    /// How often each item stands in the training data, where the model is told.
    frequencies: Option<Frequencies>,
    params: Params,
    optimizer: DenseOptimizer,
    /// Where the job asks for it: what is scored with.
    average: Option<Average>,
    /// The batches of a step that has not ended.
    accumulated: Accumulated,
    buffers: StepBuffers,
    looking: Looking,
    /// Steps done.
    step: u64,
    cursor: Cursor,
    progress: Progress,
    /// The training files, as the order of rows depends on them.
    files: Vec<TrainingFile>,
    /// The file of rows that are left out as bad.
    rejects: Option<RejectFile>,
    /// Rows of an epoch, once one has been read to its end, and how many of the last one were trained.
    epoch_rows: Option<u64>,
    epoch_trained: Option<u64>,
    /// The plan of the last step.
    last_plan: Option<Arc<LookupPlan>>,
    /// Step of the newest checkpoint, so that none is written twice.
    checkpointed: Option<u64>,
    /// What the next checkpoint can stand on.
    link: Option<Link>,
    /// The checkpoint that is being written.
    saving: Option<Saving>,
    /// Rows trained in this sitting.
    rows_trained: u64,
    /// Of these, one entry a side table, those whose key it does not have.
    missing_sides: Vec<u64>,
    /// Versions of the model, where the job asks for them.
    publishing: Publishing,
    /// Steps of this sitting whose gradients had no finite norm.
    skipped_steps: u64,
    seconds: StageSeconds,
    counting: Counting,
    profiler: Option<Box<Profiler>>,
}

impl Run {
    fn is_finished(&self) -> bool {
        self.progress.plateau.is_stopped() || self.cursor.epoch >= self.job.train.epochs
    }

    fn is_stopped(&self) -> bool {
        self.options.stop.load(Ordering::Relaxed)
    }

    fn epochs(&mut self, observer: &mut dyn Observer) -> Result<()> {
        while !self.is_finished() && !self.is_stopped() {
            self.epoch(observer)?;
        }
        Ok(())
    }

    /// Writes the file of rejected rows, also where an error ends the run: it may be about them.
    fn saving_rejects<T>(&mut self, outcome: Result<T>) -> Result<T> {
        let saved = self.save_rejects();
        let outcome = outcome?;
        saved.map(|()| outcome)
    }

    fn save_rejects(&mut self) -> Result<()> {
        let Some(rejects) = &mut self.rejects else { return Ok(()) };
        let datasets = [Some(&self.train_data), self.valid_data.as_ref(), self.test_data.as_ref()];
        datasets.into_iter().flatten().for_each(|dataset| rejects.add(dataset));
        rejects.save(&self.options.files)
    }

    /// Trains from the cursor to the end of its epoch, validates and checkpoints.
    fn epoch(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let began = Instant::now();
        let epoch = self.cursor.epoch;
        let order = BatchOrder {
            seed: self.job.seed,
            shuffle: self.job.data.shuffle,
            batch_rows: self.job.train.batch_size.get(),
            drop_last: self.job.train.drop_last,
        };
        if self.cursor.row == 0 {
            self.progress.left_out = 0;
            self.progress.rejected = 0;
        }
        let batches = self
            .train_data
            .batches(order, self.cursor, self.options.workers.clone())?
            .with_rejected(self.progress.rejected);
        let (schema, workers) = (Arc::new(self.job.schema.clone()), self.options.workers.clone());
        let mut pipeline = match self.options.in_memory {
            true => Pipeline::in_memory(batches, schema, workers)?,
            false => Pipeline::new(batches, schema, workers),
        };
        let epoch_rows = self.train_data.rows().or(self.epoch_rows);
        let mut window = Window::new(epoch_rows, self.cursor, self.job.tasks());
        self.profile_next();
        let mut watch = Stopwatch::start();
        let mut next = pipeline.next()?;
        watch.lap(&mut self.seconds.wait).note(&mut self.profiler, Stage::Wait);
        self.profile_decoding(&pipeline);
        let decoded_before = self.seconds.decode_and_plan;
        while let Some(planned) = next {
            let rows = planned.batch.rows as u64;
            // Where rows lie on disk the next plan is worth waiting for, and a step of several batches ends with the
            // last one that there is. What is wrong with its batch is told when
            // its turn comes.
            let several = self.job.train.accumulate.get() > 1;
            let following = (several || self.client.looks_ahead()).then(|| pipeline.next());
            watch.lap(&mut self.seconds.wait).note(&mut self.profiler, Stage::Wait);
            if following.is_some() {
                self.profile_decoding(&pipeline);
            }
            let ahead = match &following {
                Some(Ok(Some(planned))) => Some(planned.plan.as_ref()),
                _ => None,
            };
            let loss = self.timed_step(&planned, ahead)?;
            let is_between = self.accumulated.batches() == 0;
            watch = Stopwatch::start();
            self.progress.loss_sum += loss * rows as f64;
            window.add(rows, loss, &self.executor_logits(), &planned.batch);
            self.show(&planned, loss, observer);
            if let Some(report) = window.report(self.step, self.cursor) {
                observer.step(&report);
                self.seconds.decode_and_plan = decoded_before + pipeline.seconds;
                let StepReport { loss, aucs, .. } = report;
                self.count(Some(Lately { loss, aucs }), observer)?;
            }
            self.last_plan = Some(planned.plan);
            watch.lap(&mut self.seconds.other).note(&mut self.profiler, Stage::Other);
            let is_ahead = following.is_some();
            self.profile_next();
            next = following.unwrap_or_else(|| pipeline.next())?;
            watch.lap(&mut self.seconds.wait).note(&mut self.profiler, Stage::Wait);
            if !is_ahead {
                self.profile_decoding(&pipeline);
            }
            // The last step of an epoch is checkpointed with what its validation decides, not before.
            // Nor is the last one of a run that is stopped, which is whole.
            let is_stopped = is_between && self.is_stopped();
            if next.is_some() && is_between && self.is_due() && !is_stopped {
                self.begin_checkpoint(Extent::Changes, observer)?;
            }
            self.advance_checkpoint(observer)?;
            if next.is_some() && is_between && self.is_publishing_due() {
                watch = Stopwatch::start();
                self.publish(BTreeMap::new(), observer)?;
                watch.lap(&mut self.seconds.publish).note(&mut self.profiler, Stage::Publish);
            }
            if next.is_some() && is_stopped {
                observer.note("stopped after a whole batch; a checkpoint is written");
                self.seconds.decode_and_plan = decoded_before + pipeline.seconds;
                return Ok(());
            }
        }
        self.profile_end();
        self.seconds.decode_and_plan = decoded_before + pipeline.seconds;
        self.epoch_rows = Some(pipeline.ending.rows);
        self.progress.rejected += pipeline.ending.rejected.len() as u64;
        if self.cursor.row == 0 {
            return Err(Error::NothingToTrain { rows: pipeline.ending.rows });
        }
        // An epoch may be over before its first report.
        self.count(window.rest(), observer)?;
        self.end_epoch(epoch, began, observer)
    }

    /// What is recorded of the batch before ends, and that of the next one begins where its turn is.
    fn profile_next(&mut self) {
        if let Some(profiler) = &mut self.profiler {
            profiler.begin_batch(&self.options.workers, &mut self.executor);
        }
    }

    fn profile_end(&mut self) {
        if let Some(profiler) = &mut self.profiler {
            profiler.end_batch(&self.options.workers, &mut self.executor);
        }
    }

    fn profile_decoding(&mut self, pipeline: &Pipeline) {
        if let Some(profiler) = &mut self.profiler {
            profiler.decoded(pipeline.decoding);
        }
    }

    fn is_due(&self) -> bool {
        let every = self.job.train.checkpoint_every;
        every.is_some_and(|n| self.step.is_multiple_of(n.get() as u64))
    }

    fn end_epoch(&mut self, epoch: u64, began: Instant, observer: &mut dyn Observer) -> Result<()> {
        self.finish_checkpoint(observer)?;
        let rows = self.cursor.row - self.progress.left_out;
        let mean_loss = self.progress.loss_sum / rows as f64;
        self.epoch_trained = Some(rows);
        self.cursor = Cursor { epoch: epoch + 1, row: 0 };
        self.progress.loss_sum = 0.0;
        self.progress.left_out = 0;
        let valid = self.validate()?;
        let mut is_best = true;
        if let Some(report) = &valid {
            let spec = self.progress.plateau.spec();
            let task = spec.task.as_deref();
            let metric = report.judged(spec.metric, task);
            if metric.is_none() && self.job.train.plateau.is_some() {
                return Err(Error::OneClass { rows: report.task(task).rows });
            }
            is_best = self.progress.plateau.observe(metric) == Verdict::Better;
        }
        let regulariser = self.regulariser()?;
        if is_best {
            let valid_auc = valid.as_ref().and_then(|v| v.auc);
            self.progress.best = Some(Best { epoch, step: self.step, valid_auc });
        }
        self.checkpoint(observer)?;
        let mut watch = Stopwatch::start();
        self.publish_epoch(mean_loss, valid.as_ref(), is_best, observer)?;
        watch.lap(&mut self.seconds.publish).note(&mut self.profiler, Stage::Publish);
        observer.epoch(&EpochReport {
            epoch,
            mean_loss,
            regulariser,
            valid,
            rate_scale: self.rate_scale(),
            seconds: began.elapsed().as_secs_f64(),
            is_best,
        });
        self.count(None, observer)
    }

    /// What the regularisers add to the loss, with the weights as they are: whole tables where they are
    /// dense, else the rows of the last batch; and the dense parameters.
    fn regulariser(&mut self) -> Result<f64> {
        let tables = match &self.last_plan {
            Some(plan) => self.client.regulariser_loss(plan)?,
            None => 0.0,
        };
        Ok(tables + self.optimizer.regulariser(&self.params))
    }

    fn validate(&mut self) -> Result<Option<EvalReport>> {
        let Some(dataset) = &self.valid_data else { return Ok(None) };
        let mut watch = Stopwatch::start();
        let mut rows = PulledRows::new(self.client.as_mut());
        let none = Frequencies::default();
        let judge = Judge {
            job: &self.job,
            scorer: &mut self.scorer,
            towers: self.towers.as_mut(),
            frequencies: self.frequencies.as_ref().unwrap_or(&none),
            source: &mut rows,
            params: learning::scored(self.average.as_ref(), &self.params),
            workers: &self.options.workers,
        };
        let report = judge.evaluate(dataset)?;
        watch.lap(&mut self.seconds.validate).note(&mut self.profiler, Stage::Validate);
        Ok(Some(report))
    }

    /// Tests the best epoch, from its checkpoint: the path that `eval` takes.
    fn finish(mut self, observer: &mut dyn Observer) -> Result<TrainReport> {
        let interrupted = !self.is_finished();
        self.profile_end();
        if interrupted {
            self.checkpoint(observer)?;
        }
        let best = self.dir.best()?;
        let checkpoint = best.path().to_owned();
        let mut test = None;
        if let Some(dataset) = self.test_data.clone().filter(|_| !interrupted) {
            let workers = self.options.workers.clone();
            let watch = Stopwatch::start();
            let tested = Loaded::from_checkpoint(best, workers)?.evaluate(&dataset);
            watch.time().note(&mut self.profiler, Stage::Test);
            test = Some(self.saving_rejects(tested)?);
        }
        self.check_published(&checkpoint)?;
        let profiler = self.profiler.take();
        let profile = profiler.map(|p| p.finish(&self.options.workers, &mut self.executor));
        let training = self.seconds.training();
        let rate = self.rows_trained as f64 / training;
        Ok(TrainReport {
            name: self.job.name.clone(),
            interrupted,
            steps: self.step,
            skipped_steps: self.skipped_steps,
            epochs: self.cursor.epoch,
            best_epoch: self.progress.best.map(|b| b.epoch + 1),
            valid_auc: self.progress.best.and_then(|b| b.valid_auc),
            test,
            samples_per_second: (self.rows_trained > 0).then_some(rate),
            first_step_seconds: self.counting.first_step_seconds,
            peak_rss_mib: machine::peak_resident_memory().map(|b| b as f64 / f64::from(1 << 20)),
            checkpoint,
            dense_parameters: dense_parameters(&self.params),
            tables: self.table_reports()?,
            published: self.publishing.last.take().map(|published| published.version.version.0),
            rejected_rows: self.progress.rejected,
            epoch_rows: self.epoch_trained,
            missing_side_rows: evaluate::missing_side_rows(&self.job, &self.missing_sides),
            seconds: self.seconds,
            profile,
        })
    }

    fn table_reports(&mut self) -> Result<Vec<TableReport>> {
        let statistics = self.client.stats()?;
        Ok(statistics
            .into_iter()
            .zip(&self.job.tables)
            .map(|(s, spec)| TableReport {
                name: spec.name.clone(),
                rows: s.rows,
                candidates: s.candidates,
                bytes: s.total_bytes(),
                missing: s.counters.missing,
                created: s.counters.created,
                admitted: s.counters.admitted,
                waiting: s.counters.waiting,
                evicted: s.counters.evicted,
                displaced: s.counters.displaced,
                lapsed: s.counters.lapsed,
                refused: s.counters.refused,
                refused_full: s.counters.refused_full,
                nonfinite: s.counters.nonfinite,
                saturated: s.counters.saturated,
                narrow_rows: s.narrow_rows,
                narrow_gradients: s.counters.narrow_gradients,
                grown: s.counters.grown,
                spill: s.spill,
            })
            .collect())
    }
}

fn dense_parameters(params: &Params) -> u64 {
    params.iter().filter(|(spec, _)| spec.trainable).map(|(_, v)| v.len() as u64).sum()
}

/// What happened since the last step report.
struct Window {
    epoch_rows: Option<u64>,
    /// Position at the last report.
    position: u64,
    began: Instant,
    rows: u64,
    loss_sum: f64,
    recent: RecentTasks,
}

impl Window {
    fn new(epoch_rows: Option<u64>, cursor: Cursor, tasks: Vec<Task>) -> Self {
        Self {
            epoch_rows,
            position: cursor.row,
            began: Instant::now(),
            rows: 0,
            loss_sum: 0.0,
            recent: RecentTasks::new(tasks),
        }
    }

    fn add(&mut self, rows: u64, loss: f64, logits: &[&[f32]], batch: &Batch) {
        self.rows += rows;
        self.loss_sum += loss * rows as f64;
        self.recent.push(batch, logits);
    }

    /// Mean loss and AUCs of what no report has had; `None` where there is nothing.
    fn rest(&self) -> Option<Lately> {
        let loss = self.loss_sum / self.rows as f64;
        (self.rows > 0).then(|| Lately { loss, aucs: self.recent.aucs() })
    }

    fn report(&mut self, step: u64, cursor: Cursor) -> Option<StepReport> {
        let elapsed = self.began.elapsed();
        if elapsed < REPORT_INTERVAL {
            return None;
        }
        let rate = self.rows as f64 / elapsed.as_secs_f64();
        // Rows that are left out are passed in no time, but they are passed.
        let passed = (cursor.row - self.position) as f64 / elapsed.as_secs_f64();
        let left = self.epoch_rows.map(|n| n.saturating_sub(cursor.row) as f64 / passed);
        let report = StepReport {
            step,
            cursor,
            epoch_rows: self.epoch_rows,
            loss: self.loss_sum / self.rows as f64,
            aucs: self.recent.aucs(),
            samples_per_second: rate,
            eta: left.and_then(|s| Duration::try_from_secs_f64(s).ok()),
        };
        self.position = cursor.row;
        self.began = Instant::now();
        self.rows = 0;
        self.loss_sum = 0.0;
        Some(report)
    }
}

/// A schedule that never changes the rate and never stops, for jobs that ask for none: it still
/// remembers the best epoch.
fn plateau(job: &Job) -> Plateau {
    let metric = job.judge();
    let never = zillion_nn::optim::PlateauSpec {
        factor: 1.0,
        patience: u32::MAX,
        metric,
        ..Default::default()
    };
    Plateau::new(job.train.plateau.clone().unwrap_or(never), job.train.optimizer.lr())
}
