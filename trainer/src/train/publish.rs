//! The publications of a run: decides when a version is due, and handles failures.
//!
//! Training does not end if a registry cannot be reached. The failure is reported, and the next
//! version contains the missing changes. If the last publication failed, the run returns an error
//! after all other work is done.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use zillion_device::SystemClock;
use zillion_reader::SideTables;
use zillion_registry::{Link, Origin, VersionManifest};

use super::Run;
use crate::error::{Error, Result};
use crate::evaluate::EvalReport;
use crate::observer::{Observer, PublishReport};
use crate::publish::{
    AS_PUBLISHED, Opening, PruningCost, Published, Publisher, REMEMBERED, Repeated, RoundingCost,
    Wish,
};

/// The publisher of a run, and the outcome of the last publication.
#[derive(Default)]
pub(super) struct PublishState {
    publisher: Option<Publisher>,
    pub(super) last: Option<Published>,
    /// The error of the last publication, if it failed.
    problem: Option<Error>,
    /// Whether the next version must be a base, because the changes since the last one are not
    /// known.
    needs_base: bool,
}

impl Run {
    /// Opens the publisher if the job publishes versions. Missing requirements are found here,
    /// before the first step.
    pub(super) fn open_publisher(
        &mut self,
        sides: &SideTables,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Some(config) = self.job.publish.clone() else { return Ok(()) };
        // After a rewind, the publisher before has ended its merge first.
        let counts = self.output.publishing.publisher.take().map(Publisher::end);
        let mut publisher = Publisher::open(Opening {
            job: &self.job,
            config: &config,
            run: self.output.id.clone(),
            run_folder: self.output.dir.path(),
            newest: self.output.stream.as_ref().and_then(|link| link.published.clone()),
            statistics: &self.data.statistics,
            sides,
            files: &self.options.files,
            workers: &self.options.workers,
            clock: Arc::new(SystemClock::new()),
            // The disk of the trainer has no room for the tables of servers.
            has_onnx: false,
            compacts: self.job.ps.is_none(),
        })?;
        publisher.count_on_from(counts.unwrap_or_default());
        if !self.job.streams.is_empty() {
            publisher.check_pointer()?;
        }
        self.client.track_changes(REMEMBERED)?;
        self.output.publishing.publisher = Some(publisher);
        let schema = &self.job.schema;
        if schema.event_time.is_some() && schema.event_time_unit.is_none() {
            observer.note(
                "versions will not have the time of their newest event; set `columns.event_time_unit`",
            );
        }
        Ok(())
    }

    /// Takes the parity rows of further versions from a file.
    pub(super) fn use_parity_rows(&mut self, file: &Path) -> Result<()> {
        match &mut self.output.publishing.publisher {
            Some(publisher) => publisher.use_parity_rows(&self.job.data, file),
            None => Ok(()),
        }
    }

    /// Begins to track changes anew, so that the next version is a base.
    pub(super) fn forget_published_changes(&mut self) -> Result<()> {
        let publishing = &mut self.output.publishing;
        if publishing.publisher.is_some() {
            self.client.track_changes(REMEMBERED)?;
            publishing.needs_base = true;
        }
        Ok(())
    }

    /// Publishes the checkpoint from which a run resumes, if the killed run did not publish it.
    pub(super) fn catch_up_publishing(&mut self, observer: &mut dyn Observer) -> Result<()> {
        // A run that begins from another run's checkpoint has no checkpoint of its own yet.
        if self.output.checkpointed.is_none() {
            return Ok(());
        }
        let best = self.position.progress.best.is_some_and(|best| best.step == self.position.step);
        let is_epoch = self.position.cursor.row == 0 && self.position.step > 0;
        if is_epoch && self.is_published_at_end(best) || self.is_publishing_due() {
            self.publish(BTreeMap::new(), is_epoch, observer)?;
        }
        Ok(())
    }

    /// Returns whether a version is due after the last step.
    pub(super) fn is_publishing_due(&self) -> bool {
        let every = self.job.publish.as_ref().and_then(|publish| publish.every);
        self.position.step > 0 && every.is_some_and(|n| self.has_passed_multiple(n.get() as u64))
    }

    /// Returns whether a version is due at the end of an epoch. A version is due if the epoch is
    /// the best so far, and after every epoch if the job publishes by steps.
    fn is_published_at_end(&self, is_best: bool) -> bool {
        self.job.publish.as_ref().is_some_and(|publish| is_best || publish.every.is_some())
    }

    /// Publishes the state at the end of an epoch, if a version is due.
    pub(super) fn publish_epoch(
        &mut self,
        mean_loss: f64,
        valid: Option<&EvalReport>,
        (is_best, pruning): (bool, Option<PruningCost>),
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if !self.is_published_at_end(is_best) {
            return Ok(());
        }
        if let Some(pruning) = pruning {
            let after = valid.and_then(|valid| valid.auc);
            observer.note(&pruning.describe(after).to_string());
        }
        let mut metrics = BTreeMap::from([("train_loss".to_owned(), mean_loss)]);
        if let Some(valid) = valid {
            let figures = [
                ("auc", valid.auc),
                ("logloss", valid.logloss),
                ("calibration", valid.calibration),
                ("rmse", valid.numbers.map(|numbers| numbers.rmse)),
                ("mae", valid.numbers.map(|numbers| numbers.mae)),
            ];
            let figures = figures.into_iter().filter_map(|(name, value)| Some((name, value?)));
            metrics.extend(figures.map(|(name, value)| (format!("valid_{name}"), value)));
            if let Some(cost) = self.measure_rounding(valid)? {
                observer.note(&cost.to_string());
                metrics.insert(AS_PUBLISHED.to_owned(), cost.rounded);
            }
        }
        self.publish(metrics, true, observer)
    }

    /// Measures the AUC of the validation data with the rows and the dense layers as versions have
    /// them. Returns `None` if versions have those of training, or if there is no AUC.
    fn measure_rounding(&mut self, valid: &EvalReport) -> Result<Option<RoundingCost>> {
        let Some(publish) = &self.job.publish else { return Ok(None) };
        let (row_type, dense) = (publish.rows, publish.dense);
        let is_rounded = !row_type.is_f32() || !dense.is_exact();
        let Some(whole) = valid.auc.filter(|_| is_rounded) else { return Ok(None) };
        let rounded = self.validate(row_type, dense)?.and_then(|report| report.auc);
        Ok(rounded.map(|rounded| RoundingCost { row_type, dense, whole, rounded }))
    }

    /// Publishes the present state, and reports the outcome to the observer. At the end of an
    /// epoch, the version has the dense parameters to which its metrics belong.
    pub(super) fn publish(
        &mut self,
        metrics: BTreeMap<String, f64>,
        is_epoch: bool,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Some(publisher) = &mut self.output.publishing.publisher else { return Ok(()) };
        let began = Instant::now();
        let origin = Origin {
            step: self.position.step,
            cursor: self.position.cursor,
            newest_event_ms: self.position.progress.newest_event_ms,
            metrics,
            lost_pushes: self.position.progress.lost_pushes,
            ..Origin::default()
        };
        let base = self.output.publishing.needs_base;
        let wish = Wish { base, new_dense: is_epoch, ..Wish::default() };
        let params = self.model.scoring_params()?;
        let outcome = publisher.publish(origin, self.client.as_mut(), params, wish);
        self.report_publication(outcome, began, observer);
        Ok(())
    }

    /// Finds the version of the present state, if the run repeats its log.
    pub(super) fn find_repeated(&mut self) -> Result<Repeated> {
        let Some(publisher) = &mut self.output.publishing.publisher else {
            return Ok(Repeated::Missing);
        };
        let params = self.model.scoring_params()?;
        publisher.find_repeated(self.position.step, self.client.as_mut(), params)
    }

    /// Takes the version of the present state as published, and reports it.
    pub(super) fn take_repeated(
        &mut self,
        version: Arc<VersionManifest>,
        observer: &mut dyn Observer,
    ) {
        let Some(publisher) = &mut self.output.publishing.publisher else { return };
        let began = Instant::now();
        let outcome = publisher.take_repeated(version, self.client.as_mut());
        self.report_publication(outcome, began, observer);
    }

    /// Passes over the version of a state, because later ones of the run exist.
    pub(super) fn pass_repeated(&mut self) {
        tracing::debug!(
            step = self.position.step,
            "no version is published again, because the run has published later ones"
        );
        self.output.publishing.problem = None;
    }

    /// Returns the version that the run has published or found last.
    pub(super) fn newest_version(&self) -> Option<Link> {
        self.output.publishing.publisher.as_ref().and_then(Publisher::newest).cloned()
    }

    fn report_publication(
        &mut self,
        outcome: Result<Published>,
        began: Instant,
        observer: &mut dyn Observer,
    ) {
        let published = outcome.as_ref().ok();
        observer
            .report_version(&PublishReport { published, seconds: began.elapsed().as_secs_f64() });
        match outcome {
            Ok(published) => {
                observer.note(&published.to_string());
                self.output.publishing.last = Some(published);
                self.output.publishing.problem = None;
                self.output.publishing.needs_base = false;
            }
            Err(error) => self.report_unpublished(error, observer),
        }
    }

    /// Reports that a version could not be published. Training goes on.
    pub(super) fn report_unpublished(&mut self, error: Error, observer: &mut dyn Observer) {
        observer.note(&format!(
            "a version is not published, but the next version will have its changes: {error}"
        ));
        self.output.publishing.problem = Some(error);
    }

    /// Returns whether the last version could not be published.
    pub(super) fn is_unpublished(&self) -> bool {
        self.output.publishing.problem.is_some()
    }

    /// Returns an error if the last version of a run over streams could not be published. The next
    /// start publishes it.
    pub(super) fn check_published_online(&mut self) -> Result<()> {
        match self.output.publishing.problem.take() {
            None => Ok(()),
            Some(problem) => Err(Error::WaitsForPublication {
                problem: Box::new(problem),
                run: self.output.dir.path().to_owned(),
            }),
        }
    }

    /// Returns an error if the last version could not be published.
    pub(super) fn check_published(&mut self, checkpoint: &Path) -> Result<()> {
        match self.output.publishing.problem.take() {
            None => Ok(()),
            Some(problem) => Err(Error::NotPublished {
                problem: Box::new(problem),
                checkpoint: checkpoint.to_owned(),
            }),
        }
    }
}
