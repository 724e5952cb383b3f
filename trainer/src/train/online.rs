//! A resident run: trains on the batches of endless data until the caller stops it.
//!
//! The feed makes all decisions about time ([`crate::online`]). This module follows them: it scores
//! each batch before it learns from it, publishes where the feed says so, and writes a checkpoint
//! of the same moment as that of the feed. A run that was killed goes on from its newest
//! checkpoint, repeats the decisions of the log, and publishes the same versions. The registry
//! knows them already, so that none is published twice.

mod by_hand;
mod judge;
mod publishing;
mod replay;
mod retention;
mod score;
mod skip;
mod state;
mod way_back;

use std::time::Instant;

use zillion_feature::Cursor;
use zillion_stream::LogLock;

use super::opening::{Open, open_client};
use super::prepare::Start;
use super::window::Window;
use super::{Run, TrainOptions};
use crate::checkpoint::RunDir;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::observer::Observer;
use crate::online::{
    FedBatch, FeedSetup, FeedThread, Item, NewestRows, PAUSED, Trip, lock_run, stream_folder,
};
use crate::online_report::OnlineReport;
use crate::pipeline::Planned;
use crate::profile::Stage;
pub use by_hand::{
    REWIND_FILE, RewindPlan, RewindRequest, has_rewound, plan_rewind, quarantine_versions,
    request_rewind, rewind_stopped, versions_after,
};
use judge::{Judged, Validation};
pub use replay::check_replay_target;
use skip::remove_bad_checkpoints;
use state::StreamState;

/// Trains on the streams of a job until the caller stops the run. A run whose folder has a
/// checkpoint goes on from it.
///
/// # Errors
/// Returns an error if the job has no stream, if the job or a stream is wrong, if a file cannot be
/// written, or if the loss diverges. Earlier checkpoints and the log of decisions stay intact.
pub fn train_online(
    job: Job,
    options: TrainOptions,
    observer: &mut dyn Observer,
) -> Result<OnlineReport> {
    train_over_streams(job, options, false, observer)
}

/// Repeats the decisions in the log of a run from its newest checkpoint or from the beginning of
/// the log, and ends where the log ends. Nothing new is consumed. A run whose folder has only the
/// log gives the versions of the run that wrote the log.
///
/// # Errors
/// Returns an error in the cases of [`train_online`], and if the messages are not those that the
/// log describes.
pub fn replay_online(
    job: Job,
    options: TrainOptions,
    observer: &mut dyn Observer,
) -> Result<OnlineReport> {
    train_over_streams(job, options, true, observer)
}

fn train_over_streams(
    job: Job,
    mut options: TrainOptions,
    only_replays: bool,
    observer: &mut dyn Observer,
) -> Result<OnlineReport> {
    if job.streams.is_empty() {
        return Err(Error::Unsupported(
            "the job has no stream, so there is nothing to follow; add a section `[[stream]]`, or \
             train on files instead"
                .to_owned(),
        ));
    }
    if options.trainer.count > 1 || !job.train.mode.is_sync() {
        return Err(Error::Unsupported(
            "a resident run has one trainer in the mode `sync`; set `train.mode = \"sync\"` and \
             start one trainer"
                .to_owned(),
        ));
    }
    // Another process may run the training. Nothing in its folder changes before the lock is taken.
    let lock = lock_run(&job.output(), &options.files)?;
    options.resume = true;
    remove_bad_checkpoints(&job, &RunDir::new(job.output()), &options.files)?;
    let open: &mut Open<'_> = &mut open_client;
    let (mut run, basis) = Run::open(job, options, Instant::now(), open, observer)?;
    let mut start = Start::From(Box::new(basis));
    loop {
        let error = match run.prepare_and_follow(start, only_replays, &lock, observer) {
            Ok(Followed::Ended(report)) => return Ok(*report),
            Ok(Followed::Tripped(trip)) => {
                start = run.skip_bad_batches(&trip, &lock, open, observer)?;
                continue;
            }
            Err(error) if error.rewound().is_some() => error,
            Err(error) => {
                run.client.abort(&error.to_string());
                return Err(error);
            }
        };
        start = run.rewind(error, open, observer)?;
    }
}

/// The end of following a feed.
enum Followed {
    /// The feed has ended.
    Ended(Box<OnlineReport>),
    /// The gate has found bad batches.
    Tripped(Trip),
}

impl Run {
    fn prepare_and_follow(
        &mut self,
        start: Start,
        only_replays: bool,
        lock: &LogLock,
        observer: &mut dyn Observer,
    ) -> Result<Followed> {
        self.prepare(start, observer)?;
        self.report_figures(None, observer)?;
        let followed = self.follow(only_replays, lock, observer);
        self.finish_checkpoint_after(followed, observer)
    }

    /// Follows the feed until it ends.
    fn follow(
        &mut self,
        only_replays: bool,
        lock: &LogLock,
        observer: &mut dyn Observer,
    ) -> Result<Followed> {
        let setup = FeedSetup {
            job: self.job.clone(),
            statistics: self.data.statistics.clone(),
            files: self.options.files.clone(),
            run: self.output.dir.path().to_owned(),
            start: self.output.stream.clone(),
            only_replays,
        };
        let link = self.output.stream.clone();
        let mut validation = Validation::open(self, link.as_ref())?;
        let feed = FeedThread::start(setup, lock, self.options.stop.clone())?;
        let mut window = Window::new(None, self.position.cursor, &self.job);
        let mut report = OnlineReport {
            batches: link.as_ref().map_or(0, |link| link.batches),
            published: validation.as_ref().and_then(Validation::newest_version),
            folder: stream_folder(self.output.dir.path()),
            ..OnlineReport::default()
        };
        let mut state = StreamState::default();
        // The newest rows of a version that could not be published, until the next batch.
        let mut waiting: Option<NewestRows> = None;
        if report.folder.join(PAUSED).exists() && !only_replays {
            observer.note("the run is paused; `zillion stream resume` lets it go on");
        }
        loop {
            match self.stage(Stage::Wait, |_| feed.next())? {
                Item::Batch(batch) => {
                    report.batches = batch.number;
                    waiting = None;
                    if let Some(validation) = &mut validation {
                        self.stage(Stage::Validate, |run| {
                            validation.observe(run, &batch, observer)
                        })?;
                    }
                    self.learn(*batch, &mut window, observer)?;
                }
                Item::Publish(wanted) => {
                    let judged = match &mut validation {
                        Some(validation) => self.stage(Stage::Validate, |run| {
                            validation.judge(run, report.batches, observer)
                        })?,
                        None => Judged::Publish,
                    };
                    if matches!(judged, Judged::Hold) {
                        continue;
                    }
                    let (of, ways) = ((&*wanted, judged), (&mut validation, &mut report));
                    if let Some(trip) =
                        self.follow_publication(of, !only_replays, ways, observer)?
                    {
                        return Ok(Followed::Tripped(trip));
                    }
                    waiting = self.is_unpublished().then_some(wanted.newest);
                }
                Item::Checkpoint(mut link) => {
                    if let Some(validation) = &validation {
                        validation.save(self, &mut link)?;
                    }
                    link.is_unpublished = self.is_unpublished();
                    link.published = self.newest_version();
                    self.output.stream = Some(link);
                    self.checkpoint_between_steps(true, observer)?;
                    self.retain_streams(&feed)?;
                }
                Item::Status(status) => {
                    report.take_status(&status);
                    observer.report_streams(&status);
                    let held = validation.as_ref().and_then(Validation::held_seconds);
                    state.take(self, &report, (*status, held), observer);
                    self.report_progress(&mut window, observer)?;
                    // Without new events, nothing else would publish the state.
                    if let Some(newest) = waiting.take() {
                        self.publish_judged(&newest, &mut validation, &mut report, observer)?;
                        waiting = self.is_unpublished().then_some(newest);
                    }
                    if let Some(trip) = self.find_request()?.filter(|_| !only_replays) {
                        return Ok(Followed::Tripped(trip));
                    }
                }
                Item::End => {
                    state.write_last(&self.options.files, &report.folder);
                    break;
                }
            }
            self.checkpoint_between_steps(false, observer)?;
        }
        self.finish_checkpoint(observer)?;
        self.retain_streams(&feed)?;
        report.steps = self.position.step;
        report.rows = self.position.cursor.row;
        report.folder = stream_folder(self.output.dir.path());
        self.check_published_online()?;
        Ok(Followed::Ended(Box::new(report)))
    }

    /// Scores a batch, and then learns from it.
    fn learn(
        &mut self,
        fed: FedBatch,
        window: &mut Window,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let FedBatch { mut batch, plan, cancels, number, reason, watermark } = fed;
        tracing::debug!(number, ?reason, ?watermark, rows = batch.rows, "a batch of the streams");
        let Cursor { epoch, row } = self.position.cursor;
        let cursor = Cursor { epoch, row: row + batch.rows as u64 };
        if let Some(cancels) = cancels {
            self.weigh_corrections(&mut batch, &plan, &cancels)?;
        }
        let planned = Planned::new(batch, plan, cursor, Vec::new());
        self.train_and_count(planned, None, observer, &mut |run, observer| {
            run.observe_finished(true, window, observer)
        })?;
        // The next batch may be scored, and a version may follow.
        self.observe_finished(true, window, observer)
    }
}

#[cfg(test)]
mod tests;
