//! The counts of a run, for observers ([`RunFigures`]) and for its report.
//!
//! Nothing here is part of a result: an observer that wants no figures costs a branch a step.

use std::time::Instant;

use zillion_feature::LookupPlan;

use super::Run;
use crate::error::Result;
use crate::observer::{Observer, RunFigures};
use crate::pipeline::Planned;

/// The counts of this session of a run.
#[derive(Debug)]
pub(super) struct Counts {
    /// The moment at which the caller asked for the run.
    began: Instant,
    /// The seconds from then to the end of the first step.
    pub(super) first_step_seconds: Option<f64>,
    is_wanted: bool,
    step_seconds: Vec<f64>,
    /// The rows that training has gone over.
    passed_rows: u64,
    /// The bad rows among them.
    bad_rows: u64,
    /// The rows that were trained.
    pub(super) rows_trained: u64,
    /// The trained rows whose key a side table does not have, one entry for each side table.
    pub(super) missing_sides: Vec<u64>,
    /// The steps whose gradients had no finite norm.
    pub(super) skipped_steps: u64,
    /// The trained rows of the last epoch that ended.
    pub(super) epoch_trained: Option<u64>,
}

/// The loss and the AUCs of the rows trained since the last figures.
pub(super) struct RecentFigures {
    /// The mean loss of these rows.
    pub(super) loss: f64,
    /// The AUC of each task's most recent predictions.
    pub(super) aucs: Vec<(String, Option<f64>)>,
}

impl Counts {
    /// Returns the counts of a session that has trained nothing yet.
    pub(super) fn new(began: Instant, is_wanted: bool, side_tables: usize) -> Self {
        Self {
            began,
            first_step_seconds: None,
            is_wanted,
            step_seconds: Vec::new(),
            passed_rows: 0,
            bad_rows: 0,
            rows_trained: 0,
            missing_sides: vec![0; side_tables],
            skipped_steps: 0,
            epoch_trained: None,
        }
    }
}

impl Run {
    /// Makes a step and counts it.
    pub(super) fn counted_step(
        &mut self,
        planned: &Planned,
        next: Option<&LookupPlan>,
    ) -> Result<f64> {
        let before = self.position.cursor.row;
        let began = Instant::now();
        let loss = self.train_step(planned, next)?;
        let Counts { began: run_began, first_step_seconds, .. } = &mut self.counts;
        first_step_seconds.get_or_insert_with(|| run_began.elapsed().as_secs_f64());
        self.counts.passed_rows += self.position.cursor.row - before;
        self.counts.bad_rows += planned.rejected.len() as u64;
        if self.counts.is_wanted {
            self.counts.step_seconds.push(began.elapsed().as_secs_f64());
        }
        if let (Some(unit), Some(times)) =
            (self.job.schema.event_time_unit, &planned.batch.event_time)
        {
            let newest = times.iter().copied().max().and_then(|time| unit.to_ms(time));
            let newest = newest.and_then(|ms| u64::try_from(ms).ok());
            let progress = &mut self.position.progress;
            progress.newest_event_ms = progress.newest_event_ms.max(newest);
        }
        Ok(loss)
    }

    /// Reports the counts to the observer, where it wants them.
    pub(super) fn report_figures(
        &mut self,
        recent: Option<RecentFigures>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if !self.counts.is_wanted {
            return Ok(());
        }
        let (loss, aucs) = recent.map(|recent| (recent.loss, recent.aucs)).unzip();
        let read = self.data.datasets().map(|(name, dataset)| (name, dataset.counts()));
        let sides = self.job.schema.sides.iter().map(|side| side.name.clone());
        observer.figures(RunFigures {
            step: self.position.step,
            cursor: self.position.cursor,
            epochs: self.job.train.epochs,
            samples: self.counts.rows_trained,
            passed_rows: self.counts.passed_rows,
            bad_rows: self.counts.bad_rows,
            skipped_steps: self.counts.skipped_steps,
            loss,
            aucs: aucs.unwrap_or_default(),
            rate_scale: self.rate_scale(),
            step_seconds: std::mem::take(&mut self.counts.step_seconds),
            seconds: self.timing.seconds,
            read: read.collect(),
            missing_side_rows: sides.zip(self.counts.missing_sides.iter().copied()).collect(),
            tables: self.client.stats()?,
            newest_event_ms: self.position.progress.newest_event_ms,
        });
        Ok(())
    }
}
