//! One epoch of a run: its batches, the work between its steps, and its end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use zillion_feature::Cursor;
use zillion_nn::DenseType;
use zillion_nn::optim::Verdict;
use zillion_reader::BatchOrder;
use zillion_rows::{RoundedRows, RowType, TableSpec};

use super::Run;
use super::model::{Model, select_scoring_params};
use super::position::Position;
use super::window::{RecentFigures, Window};
use crate::checkpoint::Best;
use crate::error::{Error, Result};
use crate::evaluate::{EvalReport, Judge};
use crate::frequencies::Frequencies;
use crate::observer::{EpochReport, Observer, StepReport};
use crate::pipeline::{AheadOptions, Pipeline, Planned};
use crate::profile::Stage;

/// The batches of an epoch.
pub(super) struct EpochBatches {
    pub(super) pipeline: Pipeline,
    /// The next batches, if a GPU has a cache of rows. An error is the last one.
    pub(super) window: VecDeque<Result<Planned>>,
    /// The number of batches of the window that the tables know.
    pub(super) told: usize,
    /// The number of batches of the window whose rows all have a place in the cache.
    pub(super) announced: usize,
    /// The seconds that this process spent on decoding and planning before the epoch.
    decoded_before: f64,
}

/// The work that is due between two steps.
#[derive(Clone, Copy, Debug)]
struct Due {
    checkpoint: bool,
    version: bool,
    /// Whether the run was stopped and must end now.
    stop: bool,
}

impl Due {
    /// Returns whether the work reads the state of the run after the step.
    fn reads_state(self) -> bool {
        self.checkpoint || self.version || self.stop
    }
}

impl Run {
    /// Trains from the position of the run to the end of the epoch. Then validates the epoch and
    /// writes a checkpoint.
    pub(super) fn train_epoch(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let began = Instant::now();
        let epoch = self.position.cursor.epoch;
        let mut batches = self.open_batches()?;
        let epoch_rows = self.data.train()?.rows().or(self.data.epoch_rows);
        let mut window = Window::new(epoch_rows, self.position.cursor, &self.job);
        let is_stopped = match (self.is_joint(), self.is_apart()) {
            (_, true) => self.train_apart(&mut batches, &mut window, observer)?,
            (true, _) => self.train_groups(&mut batches, &mut window, observer)?,
            _ => self.train_batches(&mut batches, &mut window, observer)?,
        };
        if is_stopped {
            observer.note("the run stops after this batch and writes a checkpoint");
            return Ok(());
        }
        self.profile_end();
        let ending = &batches.pipeline.ending;
        self.data.epoch_rows = Some(ending.rows);
        self.position.progress.rejected += ending.rejected.len() as u64;
        if self.position.cursor.row == 0 {
            return Err(Error::NothingToTrain { rows: ending.rows });
        }
        // An epoch may end before its first report.
        self.report_figures(window.rest(), observer)?;
        self.end_epoch(epoch, began, observer)?;
        if self.is_apart() {
            // No trainer may push before the others have validated the epoch.
            self.wait_for_trainers()?;
            self.buffers.apart.meetings.moments += 1;
        }
        Ok(())
    }

    /// Trains on the batches up to the end of the epoch, and waits for all results. Returns whether
    /// the run was stopped and must end now.
    fn train_batches(
        &mut self,
        batches: &mut EpochBatches,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<bool> {
        let trained = self.train_batch_by_batch(batches, window, observer);
        self.observe_rest(trained, window, observer)
    }

    fn train_batch_by_batch(
        &mut self,
        batches: &mut EpochBatches,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<bool> {
        self.profile_next_batch();
        self.fill_window(batches, observer)?;
        let mut next = self.next_batch(batches)?;
        while let Some(planned) = next {
            // The next plan is needed to read rows from disk early, and to decide whether this
            // batch ends a step of several batches. An error of the next batch is reported after
            // this step. A cache of rows on a GPU learns the plans of its window instead.
            let looks_ahead = self.client.looks_ahead() && !self.counts.gpu.has_rows;
            let is_ahead = self.job.train.accumulate.get() > 1 || looks_ahead;
            let following = is_ahead.then(|| self.next_batch(batches));
            let next_plan = match &following {
                Some(Ok(Some(planned))) => Some(&planned.plan),
                _ => None,
            };
            self.train_and_count(planned, next_plan, observer, &mut |run, observer| {
                run.observe_finished(true, window, observer)
            })?;
            self.observe_finished(false, window, observer)?;
            self.profile_next_batch();
            self.fill_window(batches, observer)?;
            next = match following {
                Some(following) => self.stage(Stage::Wait, |_| following)?,
                None => self.next_batch(batches)?,
            };
            let due = self.find_due(next.is_none());
            if due.reads_state() {
                self.observe_finished(true, window, observer)?;
            }
            if self.do_due(due, observer)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens the batches from the position of the run to the end of the epoch.
    pub(super) fn open_batches(&mut self) -> Result<EpochBatches> {
        let order = BatchOrder {
            seed: self.job.seed,
            shuffle: self.job.data.shuffle,
            batch_rows: self.job.train.batch_size.get(),
            drop_last: self.job.train.drop_last,
        };
        self.begin_epoch();
        let Position { cursor, progress, .. } = &self.position;
        let workers = &self.options.workers;
        let batches = self.data.train()?.batches(order, *cursor, workers.clone())?;
        let batches = batches.with_rejected(progress.rejected);
        let schema = Arc::new(self.job.schema.clone());
        let place = self.options.trainer;
        let with = AheadOptions { place, ..AheadOptions::of_job(&self.job, workers) };
        let with = AheadOptions { stager: self.plan_stager(with.ahead), ..with };
        let pipeline = match self.options.in_memory {
            true => Pipeline::in_memory(batches, schema, with)?,
            false => Pipeline::new(batches, schema, with),
        };
        let decoded_before = self.timing.seconds.decode_and_plan;
        Ok(EpochBatches {
            pipeline,
            window: VecDeque::new(),
            told: 0,
            announced: 0,
            decoded_before,
        })
    }

    /// Sets the counts of the epoch and the record of the run to the position of the run.
    pub(super) fn begin_epoch(&mut self) {
        let (cursor, progress) = (self.position.cursor, &mut self.position.progress);
        if let Some(recorder) = &mut self.output.recorder {
            recorder.rewind(self.position.step, cursor.epoch);
        }
        if cursor.row == 0 {
            progress.left_out = 0;
            progress.rejected = 0;
        }
    }

    /// Waits for the next batch. Returns `None` at the end of the epoch.
    pub(super) fn next_batch(&mut self, batches: &mut EpochBatches) -> Result<Option<Planned>> {
        batches.told = batches.told.saturating_sub(1);
        batches.announced = batches.announced.saturating_sub(1);
        match batches.window.pop_front() {
            Some(planned) => planned.map(Some),
            None => self.read_batch(batches),
        }
    }

    /// Waits for the next batch behind the window.
    pub(super) fn read_batch(&mut self, batches: &mut EpochBatches) -> Result<Option<Planned>> {
        let pipeline = &mut batches.pipeline;
        let next = self.stage(Stage::Wait, |_| pipeline.next());
        self.timing.seconds.decode_and_plan = batches.decoded_before + pipeline.seconds;
        if let Some(profiler) = &mut self.timing.profiler {
            profiler.record_decoding(pipeline.times);
        }
        next
    }

    /// Adds the mean loss of a batch of a step to the sums of the epoch and of the window, and to
    /// the record of the run.
    pub(super) fn add_loss(
        &mut self,
        planned: &Planned,
        (step, loss): (u64, f64),
        window: &mut Window,
    ) {
        let rows = planned.batch.rows as u64;
        self.position.progress.loss_sum += loss * rows as f64;
        window.add(rows, loss);
        if let Some(recorder) = &mut self.output.recorder {
            recorder.add_loss(step, rows, loss);
        }
    }

    /// Reports the figures of the epoch to the observer, if enough time has passed.
    pub(super) fn report_progress(
        &mut self,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if let Some(report) = window.report(self.position.step, self.position.cursor) {
            observer.step(&report);
            let StepReport { loss, aucs, .. } = report;
            self.report_figures(Some(RecentFigures { loss, aucs }), observer)?;
        }
        Ok(())
    }

    /// Writes a checkpoint and publishes a version if they are due. Returns whether the run was
    /// stopped and must end now.
    pub(super) fn work_between_steps(
        &mut self,
        is_last: bool,
        observer: &mut dyn Observer,
    ) -> Result<bool> {
        let due = self.find_due(is_last);
        self.do_due(due, observer)
    }

    /// Finds the work that is due after a step.
    ///
    /// After the last step of an epoch, no checkpoint is due, because the checkpoint at the end of
    /// the epoch also holds the result of the validation. If the run is stopped, no checkpoint of
    /// changes is due, because a whole checkpoint follows.
    fn find_due(&mut self, is_last: bool) -> Due {
        let is_between = self.buffers.accumulated.batches() == 0;
        let is_stopped = is_between && self.is_stopped();
        let is_asked = self.is_checkpoint_due() || self.client.wants_checkpoint();
        Due {
            checkpoint: !is_last && is_between && is_asked && !is_stopped,
            version: !is_last && is_between && self.is_publishing_due(),
            stop: !is_last && is_stopped,
        }
    }

    /// Does the work that is due, and continues an open checkpoint. Returns whether the run must
    /// end now.
    fn do_due(&mut self, due: Due, observer: &mut dyn Observer) -> Result<bool> {
        self.checkpoint_between_steps(due.checkpoint, observer)?;
        if due.version {
            self.stage(Stage::Publish, |run| run.publish(BTreeMap::new(), false, observer))?;
        }
        Ok(due.stop)
    }

    pub(super) fn is_checkpoint_due(&self) -> bool {
        let every = self.job.train.checkpoint_every;
        every.is_some_and(|n| self.has_passed_multiple(n.get() as u64))
    }

    /// Returns whether the last steps have reached or passed a multiple of `every` steps: the last
    /// step, or the last group of steps if the trainers train at their own speed.
    pub(super) fn has_passed_multiple(&self, every: u64) -> bool {
        let steps = if self.is_apart() { self.options.trainer.count as u64 } else { 1 };
        let step = self.position.step;
        step / every > step.saturating_sub(steps) / every
    }

    /// Ends an epoch: validates it, writes a checkpoint, publishes a version and reports the epoch.
    pub(super) fn end_epoch(
        &mut self,
        epoch: u64,
        began: Instant,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.finish_checkpoint(observer)?;
        let rows = self.position.cursor.row - self.position.progress.left_out;
        let mean_loss = self.position.progress.loss_sum / rows as f64;
        self.counts.epoch_trained = Some(rows);
        self.position.cursor = Cursor { epoch: epoch + 1, row: 0 };
        self.position.progress.loss_sum = 0.0;
        self.position.progress.left_out = 0;
        let pruning = self.prune_after_epoch()?;
        let valid = match self.data.valid {
            Some(_) => {
                self.stage(Stage::Validate, |run| run.validate(RowType::F32, DenseType::F32))?
            }
            None => None,
        };
        let mut is_best = true;
        let mut watched = None;
        if let Some(report) = &valid {
            let spec = self.position.progress.plateau.spec();
            let task = spec.task.as_deref();
            let metric = report.metric_value(spec.metric, task);
            if metric.is_none() && self.job.train.plateau.is_some() {
                return Err(Error::OneClass { rows: report.task(task).rows });
            }
            if self.job.train.plateau.is_some() {
                watched = metric.map(|value| (spec.metric, value));
            }
            is_best = self.position.progress.plateau.observe(metric) == Verdict::Better;
        }
        let regulariser = self.regulariser()?;
        if is_best {
            let valid_auc = valid.as_ref().and_then(|v| v.auc);
            self.position.progress.best = Some(Best { epoch, step: self.position.step, valid_auc });
        }
        let rate_scale = self.rate_scale();
        let seconds = began.elapsed().as_secs_f64();
        let mut report = EpochReport {
            epoch,
            mean_loss,
            regulariser,
            valid,
            watched,
            rate_scale,
            seconds,
            is_best,
        };
        if let Some(recorder) = &mut self.output.recorder {
            // Training does not read the record, so it goes on without one.
            let at = (self.position.step, rows);
            if let Err(error) = recorder.add_epoch(&report, at, &self.options.files) {
                observer.note(&format!("the record of the run is not written: {error}"));
            }
        }
        self.checkpoint(observer)?;
        self.stage(Stage::Publish, |run| {
            run.publish_epoch(mean_loss, report.valid.as_ref(), (is_best, pruning), observer)
        })?;
        report.seconds = began.elapsed().as_secs_f64();
        observer.epoch(&report);
        self.report_figures(None, observer)
    }

    /// Returns the loss of the regularisers with the present weights. The loss is the sum over
    /// three parts: the dense parameters, all rows of tables with a whole-table regulariser, and
    /// the rows of the last batch in the other tables.
    fn regulariser(&mut self) -> Result<f64> {
        let tables = match &self.buffers.last_plan {
            Some(plan) => self.client.regulariser_loss(plan)?,
            None => 0.0,
        };
        self.model.settle()?;
        Ok(tables + self.model.optimizer.regulariser(&self.model.params))
    }

    /// Validates the epoch with rows that are rounded to numbers of `row_type`, and with dense
    /// layers in `dense`. Returns `None` if the job has no validation data.
    pub(super) fn validate(
        &mut self,
        row_type: RowType,
        dense: DenseType,
    ) -> Result<Option<EvalReport>> {
        let Self { job, options, data, client, model, stops_validation, .. } = self;
        let Some(dataset) = &data.valid else { return Ok(None) };
        model.settle()?;
        let mut rows = client.row_source()?;
        let layouts = job
            .tables
            .iter()
            .map(|table| TableSpec { published: row_type, ..table.clone() }.layout());
        let mut rows = RoundedRows::new(rows.as_mut(), layouts.collect());
        let none = Frequencies::default();
        let Model { scorer, towers, params, average, .. } = model;
        let params = select_scoring_params(average.as_ref(), params);
        let packed = (!dense.is_exact()).then(|| scorer.pack(dense, params, &mut || ()));
        scorer.set_packed(packed);
        let judge = Judge {
            job,
            scorer: &mut *scorer,
            towers: towers.as_mut(),
            frequencies: data.frequencies.as_ref().unwrap_or(&none),
            source: &mut rows,
            params,
            workers: &options.workers,
            stop: stops_validation.then_some(&*options.stop),
        };
        let report = judge.evaluate(dataset);
        scorer.set_packed(None);
        report.map(Some)
    }
}
