//! What a run counts of itself for whoever watches it ([`RunFigures`]).
//!
//! Nothing here is part of a result: an observer that wants no figures costs a branch a step.

use std::time::Instant;

use zillion_feature::LookupPlan;

use super::Run;
use crate::error::Result;
use crate::figures::RunFigures;
use crate::observer::Observer;
use crate::pipeline::Planned;

/// What is counted between two figures.
#[derive(Debug)]
pub(super) struct Counting {
    /// When the run was asked for.
    began: Instant,
    /// From then to the end of the first step of this sitting.
    pub(super) first_step_seconds: Option<f64>,
    is_wanted: bool,
    step_seconds: Vec<f64>,
    /// Rows that training has gone over in this sitting, and the bad ones of them.
    passed_rows: u64,
    bad_rows: u64,
}

/// What the rows trained since the last figures came to.
pub(super) struct Lately {
    /// Their mean loss.
    pub(super) loss: f64,
    /// AUC of each task's most recent predictions.
    pub(super) aucs: Vec<(String, Option<f64>)>,
}

impl Counting {
    pub(super) fn new(began: Instant, is_wanted: bool) -> Self {
        Self {
            began,
            first_step_seconds: None,
            is_wanted,
            step_seconds: Vec::new(),
            passed_rows: 0,
            bad_rows: 0,
        }
    }
}

impl Run {
    /// [`Run::train_step`], counted.
    pub(super) fn timed_step(
        &mut self,
        planned: &Planned,
        next: Option<&LookupPlan>,
    ) -> Result<f64> {
        let before = self.cursor.row;
        let began = Instant::now();
        let loss = self.train_step(planned, next)?;
        let Counting { began: run_began, first_step_seconds, .. } = &mut self.counting;
        first_step_seconds.get_or_insert_with(|| run_began.elapsed().as_secs_f64());
        self.counting.passed_rows += self.cursor.row - before;
        self.counting.bad_rows += planned.rejected.len() as u64;
        if self.counting.is_wanted {
            self.counting.step_seconds.push(began.elapsed().as_secs_f64());
        }
        if let (Some(unit), Some(times)) =
            (self.job.schema.event_time_unit, &planned.batch.event_time)
        {
            let newest = times.iter().copied().max().and_then(|time| unit.to_ms(time));
            let newest = newest.and_then(|ms| u64::try_from(ms).ok());
            self.progress.newest_event_ms = self.progress.newest_event_ms.max(newest);
        }
        Ok(loss)
    }

    /// Tells the observer what is counted.
    pub(super) fn count(
        &mut self,
        lately: Option<Lately>,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if !self.counting.is_wanted {
            return Ok(());
        }
        let (loss, aucs) = lately.map(|lately| (lately.loss, lately.aucs)).unzip();
        let data = [
            ("train", Some(&self.train_data)),
            ("valid", self.valid_data.as_ref()),
            ("test", self.test_data.as_ref()),
        ];
        let read = data.into_iter().filter_map(|(name, data)| Some((name, data?.counts())));
        let sides = self.job.schema.sides.iter().map(|side| side.name.clone());
        observer.figures(RunFigures {
            step: self.step,
            cursor: self.cursor,
            epochs: self.job.train.epochs,
            samples: self.rows_trained,
            passed_rows: self.counting.passed_rows,
            bad_rows: self.counting.bad_rows,
            skipped_steps: self.skipped_steps,
            loss,
            aucs: aucs.unwrap_or_default(),
            rate_scale: self.rate_scale(),
            step_seconds: std::mem::take(&mut self.counting.step_seconds),
            seconds: self.seconds,
            read: read.collect(),
            missing_side_rows: sides.zip(self.missing_sides.iter().copied()).collect(),
            tables: self.client.stats()?,
            newest_event_ms: self.progress.newest_event_ms,
        });
        Ok(())
    }
}
