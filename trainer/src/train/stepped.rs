//! A run whose steps the caller takes one at a time, for research and for tests of models.
//!
//! The caller gives the batches: those of the run in their order ([`SteppedRun::next_batch`]), or
//! batches of its own. Everything between the batches is as in [`super::train`]: the schedule,
//! checkpoints, versions, the validation at the end of an epoch, and the test of the best one. So
//! the steps of all batches of the run, in their order, give the bytes of `train`.

use std::sync::Arc;
use std::time::Instant;

use zillion_embedding::TableStatistics;
use zillion_feature::{Batch, Cursor, LabelColumn, LookupPlan, PlanScratch};
use zillion_nn::DenseType;
use zillion_rows::RowType;

use super::epoch::EpochBatches;
use super::opening::open_client;
use super::prepare::Start;
use super::window::Window;
use super::{Run, TrainOptions};
use crate::error::{Error, Result};
use crate::evaluate::EvalReport;
use crate::job::Job;
use crate::observer::Observer;
use crate::pipeline::Planned;
use crate::train_report::TrainReport;

/// A batch of rows for a step, and its place in the order of the run if it is one of the run.
#[derive(Clone, Debug)]
pub struct StepBatch {
    /// The rows, as the features of the job say.
    batch: Batch,
    /// The lookup plan of the rows; `None` until a step makes it.
    plan: Option<Arc<LookupPlan>>,
    /// The positions before and after the batch, and the bad rows between them.
    place: Option<Place>,
}

/// The place of a batch in the order of the run.
#[derive(Clone, Debug)]
struct Place {
    before: Cursor,
    after: Cursor,
    rejected: Vec<u64>,
}

impl From<Batch> for StepBatch {
    fn from(batch: Batch) -> Self {
        Self { batch, plan: None, place: None }
    }
}

impl StepBatch {
    /// Returns the rows, as the features of the job say.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Returns the columns of numbers and those of labels, which a caller may replace before a
    /// step.
    pub fn columns_mut(&mut self) -> (&mut [Vec<f32>], &mut [LabelColumn]) {
        (&mut self.batch.numeric, &mut self.batch.labels)
    }
}

/// A run between two steps that its caller takes.
pub struct SteppedRun {
    run: Run,
    /// The batches of the epoch; `None` until the caller asks for the first one.
    batches: Option<EpochBatches>,
    /// The position after the last batch that the caller has taken.
    taken: Cursor,
    window: Window,
    epoch_began: Instant,
    scratch: PlanScratch,
    /// Whether the epoch has had its first step.
    has_begun_epoch: bool,
    /// Whether a step has failed, so that the state is not that of a whole step.
    has_failed: bool,
}

impl SteppedRun {
    /// Opens and prepares a run for its first step.
    ///
    /// # Errors
    /// Returns an error in the cases of [`super::train`], and if the job is for several trainers,
    /// for servers that apply gradients when they arrive, or for steps of several batches.
    pub fn open(job: Job, options: TrainOptions, observer: &mut dyn Observer) -> Result<Self> {
        let refused = match () {
            () if options.trainer.count > 1 => Some("several trainers"),
            () if !job.train.mode.is_sync() => Some("a `train.mode` other than \"sync\""),
            () if job.train.accumulate.get() > 1 => Some("`train.accumulate`"),
            () => None,
        };
        if let Some(what) = refused {
            return Err(Error::Unsupported(format!(
                "steps that are taken one at a time do not have {what}; remove it, or train the \
                 job as a whole"
            )));
        }
        let (mut run, basis) = Run::open(job, options, Instant::now(), &mut open_client, observer)?;
        run.stops_validation = true;
        run.prepare(Start::From(Box::new(basis)), observer)?;
        let window = Window::new(run.data.epoch_rows, run.position.cursor, &run.job);
        Ok(Self {
            run,
            batches: None,
            taken: Cursor::default(),
            window,
            epoch_began: Instant::now(),
            scratch: PlanScratch::default(),
            has_begun_epoch: false,
            has_failed: false,
        })
    }

    /// Returns the number of steps done.
    pub fn steps(&self) -> u64 {
        self.run.position.step
    }

    /// Returns the epoch, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.run.position.cursor.epoch
    }

    /// Returns whether the run has had all of its epochs, or was stopped by its plateau.
    pub fn is_finished(&self) -> bool {
        self.run.is_finished()
    }

    /// Multiplies the learning rates of the following steps by `factor`, beside the schedule.
    ///
    /// # Errors
    /// Returns an error if the factor is not a positive finite number.
    pub fn set_rate_factor(&mut self, factor: f32) -> Result<()> {
        if !(factor.is_finite() && factor > 0.0) {
            return Err(Error::Unsupported(format!(
                "the factor of the learning rates is {factor}; give a positive number"
            )));
        }
        self.run.rate_factor = factor;
        Ok(())
    }

    /// Returns the next batch of the run's epoch, or `None` at its end and after the last epoch.
    /// The first call of an epoch begins at the position of the run.
    ///
    /// # Errors
    /// Returns an error if the data cannot be read.
    pub fn next_batch(&mut self, observer: &mut dyn Observer) -> Result<Option<StepBatch>> {
        self.check_open()?;
        if self.is_finished() {
            return Ok(None);
        }
        let mut batches = match self.batches.take() {
            Some(batches) => batches,
            None => {
                self.taken = self.run.position.cursor;
                self.run.open_batches()?
            }
        };
        // The cache of rows on a GPU learns what follows, unless batches wait for their steps.
        let announced = match self.taken == self.run.position.cursor {
            true => self.run.fill_window(&mut batches, observer),
            false => Ok(()),
        };
        let next = announced.and_then(|()| self.run.next_batch(&mut batches));
        self.batches = Some(batches);
        // The step writes the batch to a GPU itself, as the caller may change it first.
        Ok(next?.map(|Planned { batch, plan, cursor: after, rejected, .. }| {
            let before = std::mem::replace(&mut self.taken, after);
            StepBatch { batch, plan: Some(plan), place: Some(Place { before, after, rejected }) }
        }))
    }

    /// Trains on a batch, and returns its mean loss before the step. The observer receives the
    /// values that it requests.
    ///
    /// # Errors
    /// Returns an error if the batch does not have the columns of the job, or if the loss is not
    /// finite. The run then takes no further step.
    pub fn step(&mut self, batch: StepBatch, observer: &mut dyn Observer) -> Result<f64> {
        self.check_open()?;
        if self.is_finished() {
            return Err(Error::Unsupported(
                "the run has had all of its epochs, so it takes no further step; raise \
                 `train.epochs`, or begin another run from this one"
                    .to_owned(),
            ));
        }
        self.check_columns(&batch.batch)?;
        if self.has_begun_epoch {
            // What the last step has made due waits until now, as no step may follow it.
            self.run.work_between_steps(false, observer)?;
        } else {
            self.begin_epoch();
        }
        self.has_failed = true;
        let loss = self.train_on(batch, observer)?;
        self.has_failed = false;
        Ok(loss)
    }

    /// Returns the scores of each task in the batch of the last step, before the step.
    pub fn scores(&self) -> Vec<&[f32]> {
        self.run.batch_logits()
    }

    /// Ends the epoch: validates it, writes a checkpoint, and reports it to the observer.
    ///
    /// # Errors
    /// Returns an error if the epoch has no steps, if a file cannot be written, or if the flag of
    /// the run has stopped the validation. The epoch has not ended then, so it can be ended again.
    pub fn end_epoch(&mut self, observer: &mut dyn Observer) -> Result<()> {
        self.check_open()?;
        let ending = self.batches.take().map(|batches| batches.pipeline.ending).unwrap_or_default();
        if ending.rows > 0 {
            self.run.data.epoch_rows = Some(ending.rows);
            self.run.position.progress.rejected += ending.rejected.len() as u64;
        }
        if self.run.position.cursor.row == 0 && ending.rows == 0 {
            return Err(Error::Unsupported(
                "the epoch has had no step, so it cannot end; take a step first".to_owned(),
            ));
        }
        if self.run.position.cursor.row == 0 {
            return Err(Error::NothingToTrain { rows: ending.rows });
        }
        let (cursor, progress) = (self.run.position.cursor, self.run.position.progress.clone());
        self.run.report_figures(self.window.rest(), observer)?;
        let ended = self.run.end_epoch(cursor.epoch, self.epoch_began, observer);
        match ended {
            Ok(()) => self.has_begun_epoch = false,
            Err(_) => {
                // The epoch has not ended, so a checkpoint of it can still be written.
                self.run.position.cursor = cursor;
                self.run.position.progress = progress;
            }
        }
        ended
    }

    /// Validates the run in its present state. Returns `None` if the job has no validation data.
    ///
    /// # Errors
    /// Returns an error if the data cannot be read, or if the flag of the run has stopped it.
    pub fn validate(&mut self) -> Result<Option<EvalReport>> {
        self.check_open()?;
        self.run.validate(RowType::F32, DenseType::F32)
    }

    /// Writes a checkpoint of the present state.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn save(&mut self, observer: &mut dyn Observer) -> Result<()> {
        self.check_open()?;
        self.run.checkpoint(observer)
    }

    /// Returns the sizes and counters of the tables.
    ///
    /// # Errors
    /// Returns an error if servers of tables do not answer.
    pub fn table_statistics(&mut self) -> Result<Vec<TableStatistics>> {
        self.run.table_statistics()
    }

    /// Ends the run, and returns its report. A run with all of its epochs is tested. Another one
    /// gets a checkpoint to resume from, unless a step has failed.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn finish(mut self, observer: &mut dyn Observer) -> Result<TrainReport> {
        self.check_open()?;
        self.batches = None;
        let finished = self.run.finish_checkpoint_after(Ok(()), observer);
        self.run.save_rejects_after(finished)?;
        self.run.finish(observer)
    }

    fn check_open(&self) -> Result<()> {
        if self.has_failed {
            return Err(Error::Unsupported(
                "a step of this run has failed, so its state is not whole; resume from its newest \
                 checkpoint"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Checks that a batch has what a step reads.
    fn check_columns(&self, batch: &Batch) -> Result<()> {
        let schema = &self.run.job.schema;
        let refuse = |problem: String| {
            Err(Error::Unsupported(format!("the batch does not fit the job: {problem}")))
        };
        if batch.rows == 0 {
            return refuse("it has no rows".to_owned());
        }
        let (sparse, numbers) = (schema.sparse().count(), schema.numeric_width());
        if batch.sparse.len() != sparse || batch.numeric.len() != numbers {
            return refuse(format!(
                "it has {} features of ids and {} numbers, and the job {sparse} and {numbers}; \
                 read it with this job",
                batch.sparse.len(),
                batch.numeric.len(),
            ));
        }
        let missing = [
            ("weights", &schema.weight, batch.weight.is_none()),
            ("groups", &schema.group, batch.group.is_none()),
            ("event times", &schema.event_time, batch.event_time.is_none()),
        ];
        for (of, column, is_missing) in missing {
            if let (Some(column), true) = (column, is_missing) {
                return refuse(format!(
                    "it has no column of {of} (`{column}`); read it from data with this column"
                ));
            }
        }
        let labels = &schema.labels;
        match labels.iter().zip(&batch.labels).find(|(_, column)| column.values.len() != batch.rows)
        {
            Some((label, _)) => refuse(format!("the label `{}` has no values", label.name)),
            None if batch.labels.len() < labels.len() => refuse("labels are missing".to_owned()),
            None => Ok(()),
        }
    }

    fn begin_epoch(&mut self) {
        if self.batches.is_none() {
            self.run.begin_epoch();
        }
        self.window =
            Window::new(self.run.data.epoch_rows, self.run.position.cursor, &self.run.job);
        self.epoch_began = Instant::now();
        self.has_begun_epoch = true;
    }

    fn train_on(&mut self, batch: StepBatch, observer: &mut dyn Observer) -> Result<f64> {
        let StepBatch { batch, plan, place } = batch;
        let Cursor { epoch, row } = self.run.position.cursor;
        let behind = row + batch.rows as u64;
        // A batch that is not the next one of the run moves the position by its rows alone.
        let place = place.filter(|place| place.before == self.run.position.cursor);
        let (cursor, rejected) = match place {
            Some(Place { after, rejected, .. }) => (after, rejected),
            None => (Cursor { epoch, row: behind }, Vec::new()),
        };
        let plan = plan.unwrap_or_else(|| {
            LookupPlan::build(&batch, &self.run.job.schema, &mut self.scratch).into()
        });
        let planned = Planned::new(batch, plan, cursor, rejected);
        let before = self.run.position.progress.loss_sum;
        let rows = planned.batch.rows as f64;
        let Self { run, window, .. } = self;
        run.train_and_count(planned, None, observer, &mut |run, observer| {
            run.observe_finished(true, window, observer)
        })?;
        run.observe_finished(true, window, observer)?;
        Ok((run.position.progress.loss_sum - before) / rows)
    }
}

#[cfg(test)]
mod tests;
