//! The end of a run: the test of its best epoch and its report.

use zillion_device::machine;
use zillion_nn::Mode;
use zillion_reader::Dataset;

use super::Run;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::evaluate::{self, EvalReport, Judge};
use crate::observer::Observer;
use crate::predict::Loaded;
use crate::profile::Stage;
use crate::train_report::{TableReport, TrainReport};

impl Run {
    /// Tests the best epoch, which is loaded from its checkpoint, and returns the report of the
    /// run. Only trainer 0 tests.
    pub(super) fn finish(&mut self, observer: &mut dyn Observer) -> Result<TrainReport> {
        let interrupted = !self.is_finished();
        self.profile_end();
        if interrupted {
            self.checkpoint(observer)?;
        }
        // The tables may be gone after the trainers have parted.
        let tables = self.table_reports()?;
        self.part()?;
        if !self.options.trainer.is_first() {
            self.output.refresh()?;
        }
        let best = self.output.dir.best()?;
        let checkpoint = best.path().to_owned();
        let mut test = None;
        let is_first = self.options.trainer.is_first();
        if let Some(dataset) = self.data.test.clone().filter(|_| !interrupted && is_first) {
            let tested = self.test(best, &dataset, observer);
            test = self.save_rejects_after(tested)?;
        }
        self.check_published(&checkpoint)?;
        let profiler = self.timing.profiler.take();
        let profile = profiler
            .zip(self.model.executor.cpu_mut().ok())
            .map(|(profiler, executor)| profiler.finish(&self.options.workers, executor));
        let training = self.timing.seconds.training();
        let rate = self.counts.rows_trained as f64 / training;
        let mut report = TrainReport {
            name: self.job.name.clone(),
            interrupted,
            steps: self.position.step,
            skipped_steps: self.counts.skipped_steps,
            rewinds: self.counts.rewinds,
            repeated_steps: self.counts.repeated_steps,
            lost_pushes: self.position.progress.lost_pushes,
            epochs: self.position.cursor.epoch,
            best_epoch: self.position.progress.best.map(|b| b.epoch + 1),
            valid_auc: self.position.progress.best.and_then(|b| b.valid_auc),
            test,
            samples_per_second: (self.counts.rows_trained > 0).then_some(rate),
            first_step_seconds: self.counts.first_step_seconds,
            peak_rss_mib: machine::peak_resident_memory().map(|b| b as f64 / f64::from(1 << 20)),
            checkpoint,
            dense_parameters: self.model.trained_parameters(),
            tables,
            published: self
                .output
                .publishing
                .last
                .take()
                .map(|published| published.version.version.0),
            rejected_rows: self.position.progress.rejected,
            epoch_rows: self.counts.epoch_trained,
            missing_side_rows: evaluate::missing_side_rows(&self.job, &self.counts.missing_sides),
            gpu: self.gpu_figures(),
            seconds: self.timing.seconds,
            profile,
            history: Vec::new(),
        };
        if let Some(recorder) = &mut self.output.recorder {
            recorder.add_report(&report, &self.options.files)?;
            report.history = recorder.epochs().to_vec();
        }
        Ok(report)
    }

    /// Tests the checkpoint of the best epoch. The rows of tables on servers are not opened on this
    /// machine. Returns `None` if they are gone.
    fn test(
        &mut self,
        best: Checkpoint,
        dataset: &Dataset,
        observer: &mut dyn Observer,
    ) -> Result<Option<EvalReport>> {
        if self.job.ps.is_some() {
            let tested = self.stage(Stage::Test, |run| run.test_over_servers(&best, dataset));
            match tested {
                // Another trainer may have left already, so that no further generation can begin.
                Err(error) if error.rewound().is_some() && self.options.trainer.count > 1 => {
                    if self.output.bucket.is_some() {
                        observer.note(&format!("the best epoch is not tested, because {error}"));
                        return Ok(None);
                    }
                }
                tested => return tested.map(Some),
            }
        }
        let workers = self.options.workers.clone();
        let mut loaded = Loaded::from_checkpoint(best, workers)?;
        self.stage(Stage::Test, |_| loaded.evaluate(dataset)).map(Some)
    }

    /// Tests a checkpoint with the rows of the servers, which restore the checkpoint first if they
    /// have another state.
    fn test_over_servers(&mut self, best: &Checkpoint, dataset: &Dataset) -> Result<EvalReport> {
        if best.manifest.step != self.position.step {
            self.restore_tables(best)?;
        }
        let job = best.job()?;
        let params = best.params(&job.graph(Mode::Infer)?.params)?;
        let frequencies = best.frequencies()?.unwrap_or_default();
        let Self { options, client, model, .. } = self;
        let mut rows = client.row_source()?;
        let judge = Judge {
            job: &job,
            scorer: &mut model.scorer,
            towers: model.towers.as_mut(),
            frequencies: &frequencies,
            source: rows.as_mut(),
            params: &params,
            workers: &options.workers,
            stop: None,
        };
        judge.evaluate(dataset)
    }

    /// Waits until trainer 0 has written the last checkpoint. No trainer may leave earlier, because
    /// the others would be set back.
    fn part(&mut self) -> Result<()> {
        if !self.is_joint() {
            return Ok(());
        }
        let parted = self.wait_for_trainers();
        match &parted {
            // Another trainer may have left already, because the last checkpoint is complete.
            Err(error) if error.rewound().is_some() && self.is_last_step_saved()? => Ok(()),
            _ => parted,
        }
    }

    /// Returns whether the newest checkpoint holds the position of this trainer.
    fn is_last_step_saved(&self) -> Result<bool> {
        self.output.refresh()?;
        let newest = self.output.dir.newest()?;
        Ok(newest.is_some_and(|newest| {
            let manifest = &newest.manifest;
            manifest.step == self.position.step && manifest.cursor == self.position.cursor
        }))
    }

    fn table_reports(&mut self) -> Result<Vec<TableReport>> {
        let statistics = self.table_statistics()?;
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
