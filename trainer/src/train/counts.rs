//! The counts of a run, for observers ([`RunFigures`]) and for its report.
//!
//! Counts are not part of the result. If the observer needs no figures, they cost one branch in
//! each step.

use std::sync::Arc;
use std::time::Instant;

use zillion_device::gpu::Counters;
use zillion_embedding::{ResidentTables, TableStatistics};
use zillion_feature::LookupPlan;

use super::Run;
use super::behind::Begun;
use super::engine::Stepped;
use super::window::RecentFigures;
use crate::error::Result;
use crate::observer::{GpuFigures, Observer, RunFigures};
use crate::pipeline::Planned;

/// The counts of a run since the process started.
#[derive(Debug)]
pub(super) struct Counts {
    /// The moment at which the caller started the run.
    began: Instant,
    /// The seconds from the start of the run to the end of the first step.
    pub(super) first_step_seconds: Option<f64>,
    is_wanted: bool,
    step_seconds: Vec<f64>,
    /// The number of rows that were read: trained on, bad, or not drawn.
    passed_rows: u64,
    /// The number of bad rows that were read.
    bad_rows: u64,
    /// The number of rows that were trained on since the process started.
    pub(super) rows_trained: u64,
    /// The number of trained rows whose key is not in a side table, for each side table.
    pub(super) missing_sides: Vec<u64>,
    /// The number of steps that were skipped because the norm of the gradients was not finite.
    pub(super) skipped_steps: u64,
    /// The number of row gradients of each table that this trainer has dropped in local steps,
    /// because they were not finite. The list is empty before the first local step.
    pub(super) dropped: Vec<u64>,
    /// The number of times that the run continued from a checkpoint, because a generation of the
    /// parameter service ended.
    pub(super) rewinds: u64,
    /// The number of steps that the run did again after rewinds.
    pub(super) repeated_steps: u64,
    /// The number of pushes of this trainer that were lost with servers.
    pub(super) lost_pushes: u64,
    /// The work of the GPU, whose memory is counted by the GPU itself.
    pub(super) gpu: GpuFigures,
    /// Whether the host has waited for the GPU in the last step.
    has_waited: bool,
    /// The number of rows that were trained on in the last complete epoch; absent before the first
    /// epoch is complete.
    pub(super) epoch_trained: Option<u64>,
}

impl Counts {
    /// Returns the counts of a run before its first step.
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
            dropped: Vec::new(),
            rewinds: 0,
            repeated_steps: 0,
            lost_pushes: 0,
            gpu: GpuFigures::default(),
            has_waited: false,
            epoch_trained: None,
        }
    }
}

impl Run {
    /// Begins to train on a batch and updates the counts. [`Run::finish_batch`] returns the batch
    /// with its results.
    ///
    /// If its rows have no room on the GPU, calls `observe_rest`, which must take the results of
    /// all earlier batches. Then the rows move to the host, and the run trains there.
    pub(super) fn train_and_count(
        &mut self,
        mut planned: Planned,
        next: Option<&Arc<LookupPlan>>,
        observer: &mut dyn Observer,
        observe_rest: &mut dyn FnMut(&mut Self, &mut dyn Observer) -> Result<()>,
    ) -> Result<()> {
        let before = self.position.cursor.row;
        let mut began = Instant::now();
        let mut gpu_before = self.model.executor.gpu_counters();
        let stepped = self.with_engine(|engine, run| engine.step(run, &mut planned, next))?;
        if let Stepped::NoRoom(reason) = stepped {
            observe_rest(self, observer)?;
            self.move_rows_to_host(&reason, observer)?;
            began = Instant::now();
            gpu_before = self.model.executor.gpu_counters();
            self.with_engine(|engine, run| engine.step(run, &mut planned, next))?;
        }
        self.counts.gpu.steps += u64::from(gpu_before.is_some());
        self.counts.has_waited = false;
        self.count_gpu_work(gpu_before);
        self.count_step(began, before, std::slice::from_ref(&planned));
        let step = self.step_of_last_batch();
        self.behind.push_back(Begun { planned, step });
        Ok(())
    }

    /// Adds a part of a step to the work of the GPU, whose counts were `before` at the beginning of
    /// the part.
    pub(super) fn count_gpu_work(&mut self, before: Option<Counters>) {
        let after = self.model.executor.gpu_counters();
        let (Some(before), Some(after)) = (before, after) else { return };
        let allocated = |of: &Counters| of.allocations + of.pinned_allocations;
        let Counts { gpu, has_waited, .. } = &mut self.counts;
        if after.host_waits > before.host_waits && !std::mem::replace(has_waited, true) {
            gpu.waited_steps += 1;
        }
        gpu.allocating_steps += u64::from(allocated(&after) > allocated(&before));
    }

    /// Returns the work of the GPU, or `None` if the run trains on processors.
    pub(super) fn gpu_figures(&self) -> Option<GpuFigures> {
        let bytes = self.model.executor.gpu_counters()?.live_bytes;
        let staged_steps = self.model.executor.staged_steps();
        let cache = self.client.resident().and_then(ResidentTables::cache_figures);
        let gpu = cache.map_or(self.counts.gpu, |cache| GpuFigures {
            cache_slots: cache.slots,
            cache_wanted_rows: cache.wanted,
            cache_found_rows: cache.found,
            cache_rows_in: cache.rows_in,
            cache_rows_out: cache.rows_out,
            cache_waited_steps: cache.waited_steps,
            ..self.counts.gpu
        });
        Some(GpuFigures { bytes, staged_steps, ..gpu })
    }

    /// Counts the time from the start of the run to the end of the first step, at its end.
    pub(super) fn count_first_step(&mut self) {
        let Counts { began, first_step_seconds, .. } = &mut self.counts;
        first_step_seconds.get_or_insert_with(|| began.elapsed().as_secs_f64());
    }

    /// Updates the counts after a step on these batches. The step began at `began` with the
    /// position `before` in the order of rows.
    pub(super) fn count_step(&mut self, began: Instant, before: u64, batches: &[Planned]) {
        self.counts.passed_rows += self.position.cursor.row - before;
        if self.counts.is_wanted {
            self.counts.step_seconds.push(began.elapsed().as_secs_f64());
        }
        for planned in batches {
            self.counts.bad_rows += planned.rejected.len() as u64;
            self.note_newest_event(planned);
        }
    }

    /// Updates the time of the newest event that was trained on.
    fn note_newest_event(&mut self, planned: &Planned) {
        if let (Some(unit), Some(times)) =
            (self.job.schema.event_time_unit, &planned.batch.event_time)
        {
            let newest = times.iter().copied().max().and_then(|time| unit.to_ms(time));
            let newest = newest.and_then(|ms| u64::try_from(ms).ok());
            let progress = &mut self.position.progress;
            progress.newest_event_ms = progress.newest_event_ms.max(newest);
        }
    }

    /// Returns the sizes and the counts of each table, with the gradients that this trainer has
    /// dropped in local steps. The servers never see these gradients.
    pub(super) fn table_statistics(&mut self) -> Result<Vec<TableStatistics>> {
        let mut statistics = self.client.stats()?;
        for (table, dropped) in statistics.iter_mut().zip(&self.counts.dropped) {
            table.counters.nonfinite += dropped;
        }
        Ok(statistics)
    }

    /// Reports the counts to the observer, if it needs them.
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
            rewinds: self.counts.rewinds,
            repeated_steps: self.counts.repeated_steps,
            lost_pushes: self.counts.lost_pushes,
            loss,
            aucs: aucs.unwrap_or_default(),
            rate_scale: self.rate_scale(),
            step_seconds: std::mem::take(&mut self.counts.step_seconds),
            seconds: self.timing.seconds,
            read: read.collect(),
            missing_side_rows: sides.zip(self.counts.missing_sides.iter().copied()).collect(),
            gpu: self.gpu_figures(),
            tables: self.table_statistics()?,
            newest_event_ms: self.position.progress.newest_event_ms,
        });
        Ok(())
    }
}
