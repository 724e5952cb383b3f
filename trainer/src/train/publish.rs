//! A run's part in publishing: when, and what of a publication that fails.
//!
//! Training does not end because a registry cannot be reached: what was not published is said, and the next
//! version has it. Only a run whose last publication failed ends with an error, when all else is done.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use zillion_device::{Files, SystemClock};
use zillion_ps::{PulledRows, Since, TrainClient};
use zillion_reader::SideTables;
use zillion_rows::RowSource;
use zillion_rows::layer::LayerManifest;

use super::Run;
use crate::error::{Error, Result};
use crate::evaluate::EvalReport;
use crate::figures::PublishReport;
use crate::observer::Observer;
use crate::publish::{Moment, Opening, Published, Publisher, REMEMBERED, Rows, Wish};

/// What a run has published.
#[derive(Default)]
pub(super) struct Publishing {
    publisher: Option<Publisher>,
    pub(super) last: Option<Published>,
    /// Why the last publication failed, if it did.
    problem: Option<Error>,
}

impl Run {
    /// Opens what publishes, where the job asks for it: what it needs is missed now and not hours later.
    pub(super) fn open_publisher(
        &mut self,
        sides: &SideTables,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Some(config) = self.job.publish.clone() else { return Ok(()) };
        let publisher = Publisher::open(Opening {
            job: &self.job,
            config: &config,
            run: self.id.clone(),
            run_folder: self.dir.path(),
            statistics: &self.statistics,
            sides,
            files: &self.options.files,
            workers: &self.options.workers,
            clock: Arc::new(SystemClock::new()),
        })?;
        self.client.track_changes(REMEMBERED)?;
        self.publishing.publisher = Some(publisher);
        let schema = &self.job.schema;
        if schema.event_time.is_some() && schema.event_time_unit.is_none() {
            observer.note(
                "versions will not say how new their events are: set `columns.event_time_unit`",
            );
        }
        Ok(())
    }

    /// Publishes what a run that was killed had checkpointed and not published.
    pub(super) fn catch_up_publishing(&mut self, observer: &mut dyn Observer) -> Result<()> {
        // A run that begins from another's checkpoint has nothing of its own yet.
        if self.checkpointed.is_none() {
            return Ok(());
        }
        let best = self.progress.best.is_some_and(|best| best.step == self.step);
        let is_epoch = self.cursor.row == 0 && self.step > 0;
        if is_epoch && self.is_published_at_end(best) || self.is_publishing_due() {
            self.publish(BTreeMap::new(), observer)?;
        }
        Ok(())
    }

    /// Whether a version follows the step that was just done.
    pub(super) fn is_publishing_due(&self) -> bool {
        let every = self.job.publish.as_ref().and_then(|publish| publish.every);
        self.step > 0 && every.is_some_and(|n| self.step.is_multiple_of(n.get() as u64))
    }

    /// Whether an epoch's end is published: of the best one, or of every one in a job whose versions go
    /// by steps.
    fn is_published_at_end(&self, is_best: bool) -> bool {
        self.job.publish.as_ref().is_some_and(|publish| is_best || publish.every.is_some())
    }

    /// Publishes the end of an epoch.
    pub(super) fn publish_epoch(
        &mut self,
        mean_loss: f64,
        valid: Option<&EvalReport>,
        is_best: bool,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if !self.is_published_at_end(is_best) {
            return Ok(());
        }
        let mut metrics = BTreeMap::from([("train_loss".to_owned(), mean_loss)]);
        if let Some(valid) = valid {
            let figures = [
                ("auc", valid.auc),
                ("logloss", valid.logloss),
                ("calibration", valid.calibration),
            ];
            let figures = figures.into_iter().filter_map(|(name, value)| Some((name, value?)));
            metrics.extend(figures.map(|(name, value)| (format!("valid_{name}"), value)));
        }
        self.publish(metrics, observer)
    }

    /// Publishes the state as it is.
    pub(super) fn publish(
        &mut self,
        metrics: BTreeMap<String, f64>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Some(publisher) = &mut self.publishing.publisher else { return Ok(()) };
        let began = Instant::now();
        let newest_event_ms = self.progress.newest_event_ms;
        let moment = Moment { step: self.step, cursor: self.cursor, newest_event_ms, metrics };
        let mut rows = LiveRows { client: self.client.as_mut() };
        let params = super::learning::scored(self.average.as_ref(), &self.params);
        let outcome = publisher.publish(&moment, &mut rows, params, Wish::default());
        let published = outcome.as_ref().ok();
        observer.published(&PublishReport { published, seconds: began.elapsed().as_secs_f64() });
        match outcome {
            Ok(published) => {
                observer.note(&published.to_string());
                self.publishing.last = Some(published);
                self.publishing.problem = None;
            }
            Err(error) => {
                observer.note(&format!("not published, the next version will have it: {error}"));
                self.publishing.problem = Some(error);
            }
        }
        Ok(())
    }

    /// Refuses to end well where the last version could not be published.
    pub(super) fn check_published(&mut self, checkpoint: &Path) -> Result<()> {
        match self.publishing.problem.take() {
            None => Ok(()),
            Some(problem) => Err(Error::NotPublished {
                problem: Box::new(problem),
                checkpoint: checkpoint.to_owned(),
            }),
        }
    }
}

/// Rows of the tables that are being trained.
struct LiveRows<'a> {
    client: &'a mut dyn TrainClient,
}

impl Rows for LiveRows<'_> {
    fn all(&mut self, folder: &Path, files: &Files) -> Result<LayerManifest> {
        let layer = self.client.write_layer(Since::Base, folder, files)?;
        layer.ok_or_else(|| Error::Unsupported("the tables wrote no base".to_owned()))
    }

    fn since(&mut self, epoch: u32, folder: &Path, files: &Files) -> Result<Option<LayerManifest>> {
        Ok(self.client.write_layer(Since::Epoch(epoch), folder, files)?)
    }

    fn end_epoch(&mut self) -> Result<u32> {
        Ok(self.client.end_dirty_epoch()?)
    }

    fn with_source(
        &mut self,
        work: &mut dyn FnMut(&mut dyn RowSource) -> Result<()>,
    ) -> Result<()> {
        work(&mut PulledRows::new(self.client))
    }
}
