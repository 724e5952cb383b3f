//! The series of a training run, updated from the reports of the trainer.
//!
//! The trainer has plain counts that never decrease. One thread sets the series to these counts.

use prometheus::{Counter, CounterVec, Gauge, GaugeVec, Histogram, Registry, Result};
use zillion_reader::BAD_ROWS;
use zillion_trainer::{CheckpointReport, EpochReport, PublishReport, RunFigures, TaskReport};

use super::maker::{Maker, raise_to, set_to_now};
use super::publishing::PublishMetrics;
use super::streams::StreamMetrics;
use super::tables::Tables;

/// A function that reads the value of a series from the figures of a run.
type Figure = fn(&RunFigures) -> u64;

/// The gauges without labels, from the figures of a run. Each has a name, a help text and a
/// function for its value.
const GAUGES: [(&str, &str, Figure); 7] = [
    ("zillion_trainer_step", "Steps done since the run first began.", |f| f.step),
    ("zillion_trainer_epoch", "Epochs completed.", |f| f.cursor.epoch),
    ("zillion_trainer_epochs", "Largest number of epochs of the job.", |f| f.epochs),
    (
        "zillion_trainer_newest_event_timestamp_seconds",
        "Time of the newest event that was trained on, in seconds since 1970; 0: not known.",
        |f| f.newest_event_ms.unwrap_or(0) / 1000,
    ),
    (
        "zillion_trainer_gpu_bytes",
        "Allocated memory of the GPU that trains; 0: processors train.",
        |f| f.gpu.map_or(0, |gpu| gpu.bytes),
    ),
    (
        "zillion_trainer_gpu_has_rows",
        "1 if the rows of the tables are on the GPU, 0 if they are on the host.",
        |f| f.gpu.map_or(0, |gpu| u64::from(gpu.has_rows)),
    ),
    (
        "zillion_trainer_gpu_cache_slots",
        "Rows for which the cache on the GPU has memory; 0: all rows are there, or none.",
        |f| f.gpu.map_or(0, |gpu| gpu.cache_slots),
    ),
];

/// The counters without labels, from the figures of a run. Each has a name, a help text and a
/// function for its value.
const COUNTERS: [(&str, &str, Figure); 16] = [
    ("zillion_trainer_samples_total", "Rows trained.", |f| f.samples),
    (
        "zillion_trainer_skipped_steps_total",
        "Steps that changed no weight, because the gradient's norm was not finite.",
        |f| f.skipped_steps,
    ),
    (
        "zillion_trainer_rewinds_total",
        "Times that the run continued from a checkpoint after the loss of a server or a trainer.",
        |f| f.rewinds,
    ),
    ("zillion_trainer_repeated_steps_total", "Steps that the run did again after rewinds.", |f| {
        f.repeated_steps
    }),
    (
        "zillion_trainer_lost_pushes_total",
        "Pushes of this trainer that were lost with servers of the tables.",
        |f| f.lost_pushes,
    ),
    ("zillion_trainer_gpu_steps_total", "Steps computed on a GPU.", |f| {
        f.gpu.map_or(0, |gpu| gpu.steps)
    }),
    (
        "zillion_trainer_gpu_waited_steps_total",
        "Steps in which the host waited for the GPU.",
        |f| f.gpu.map_or(0, |gpu| gpu.waited_steps),
    ),
    (
        "zillion_trainer_gpu_allocating_steps_total",
        "Steps that allocated memory of the GPU or pinned memory.",
        |f| f.gpu.map_or(0, |gpu| gpu.allocating_steps),
    ),
    (
        "zillion_trainer_gpu_staged_steps_total",
        "Steps whose batch was in pinned memory before they began.",
        |f| f.gpu.map_or(0, |gpu| gpu.staged_steps),
    ),
    (
        "zillion_trainer_gpu_cache_wanted_rows_total",
        "Rows that batches wanted from the cache on the GPU.",
        |f| f.gpu.map_or(0, |gpu| gpu.cache_wanted_rows),
    ),
    (
        "zillion_trainer_gpu_cache_found_rows_total",
        "Wanted rows that were in the cache when their batch was first seen.",
        |f| f.gpu.map_or(0, |gpu| gpu.cache_found_rows),
    ),
    (
        "zillion_trainer_gpu_cache_rows_in_total",
        "Rows that were copied to the cache on the GPU.",
        |f| f.gpu.map_or(0, |gpu| gpu.cache_rows_in),
    ),
    (
        "zillion_trainer_gpu_cache_rows_out_total",
        "Changed rows that were copied from the cache to make room.",
        |f| f.gpu.map_or(0, |gpu| gpu.cache_rows_out),
    ),
    (
        "zillion_trainer_gpu_cache_waited_steps_total",
        "Steps that began before all of their rows were in the cache or on their way.",
        |f| f.gpu.map_or(0, |gpu| gpu.cache_waited_steps),
    ),
    (
        "zillion_reader_rows_total",
        "Rows of the training data that training has passed: trained, bad, or not drawn.",
        |f| f.passed_rows,
    ),
    (
        "zillion_reader_rows_not_drawn_total",
        "Rows of the training data that data.sample or data.negatives left out.",
        |f| f.passed_rows.saturating_sub(f.samples).saturating_sub(f.bad_rows),
    ),
];

/// The series of one run.
pub(crate) struct TrainerMetrics {
    /// The task of the figures that have no task name.
    first_task: String,
    gauges: Vec<(Gauge, Figure)>,
    counters: Vec<(Counter, Figure)>,
    step_seconds: Histogram,
    stage_seconds: CounterVec,
    loss: Gauge,
    recent_auc: GaugeVec,
    rate_scale: Gauge,
    validation: GaugeVec,
    validation_at: Gauge,
    validation_missing_keys: Counter,
    missing_side_rows: CounterVec,
    read_bytes: CounterVec,
    bad_rows: CounterVec,
    tables: Tables,
    checkpoint_seconds: Histogram,
    checkpoint_bytes: Gauge,
    checkpoint_at: Gauge,
    publishing: PublishMetrics,
    /// The series of the streams, if the run follows streams.
    pub(crate) streams: Option<StreamMetrics>,
}

impl TrainerMetrics {
    /// Registers the series. Series without labels exist at once, with the value 0.
    ///
    /// # Errors
    /// Returns an error if the name of a series is already taken.
    pub(crate) fn new(registry: &Registry, first_task: &str) -> Result<Self> {
        let make = Maker(registry);
        let gauges = GAUGES.iter().map(|(name, help, f)| Ok((make.gauge(name, help)?, *f)));
        let counters = COUNTERS.iter().map(|(name, help, f)| Ok((make.counter(name, help)?, *f)));
        Ok(Self {
            first_task: first_task.to_owned(),
            gauges: gauges.collect::<Result<_>>()?,
            counters: counters.collect::<Result<_>>()?,
            step_seconds: make.seconds(
                "zillion_trainer_step_seconds",
                "Time of a step, without waiting for its rows.",
                1e-4,
                18,
            )?,
            stage_seconds: make.counters(
                "zillion_trainer_stage_seconds_total",
                "Time by stage; decode_and_plan runs beside the others.",
                &["stage"],
            )?,
            loss: make
                .gauge("zillion_trainer_loss", "Mean loss of the rows trained most recently.")?,
            recent_auc: make.gauges(
                "zillion_trainer_recent_auc",
                "AUC of the most recent predictions, made before each batch was learned from.",
                &["task"],
            )?,
            rate_scale: make
                .gauge("zillion_trainer_rate_scale", "Learning-rate multiplier of the schedule.")?,
            validation: make.gauges(
                "zillion_trainer_validation",
                "Figures of the last validation, by task and metric.",
                &["task", "metric"],
            )?,
            validation_at: make.gauge(
                "zillion_trainer_validation_timestamp_seconds",
                "End of the last validation, in seconds since 1970; 0: never.",
            )?,
            validation_missing_keys: make.counter(
                "zillion_trainer_validation_missing_keys_total",
                "Unique keys of validation batches that read their table's default.",
            )?,
            missing_side_rows: make.counters(
                "zillion_trainer_missing_side_rows_total",
                "Rows trained whose key a side table does not have.",
                &["side"],
            )?,
            read_bytes: make.counters(
                "zillion_reader_bytes_total",
                "Bytes decoded, in all passes over a data set.",
                &["data"],
            )?,
            bad_rows: make.counters(
                "zillion_reader_bad_rows_total",
                "Bad rows that passes over a data set have left out, by reason.",
                &["data", "reason"],
            )?,
            tables: Tables::new(&make)?,
            checkpoint_seconds: make.seconds(
                "zillion_trainer_checkpoint_seconds",
                "Time of a checkpoint.",
                1e-3,
                22,
            )?,
            checkpoint_bytes: make
                .gauge("zillion_trainer_checkpoint_bytes", "Bytes of the last checkpoint.")?,
            checkpoint_at: make.gauge(
                "zillion_trainer_checkpoint_timestamp_seconds",
                "Time of the last checkpoint, in seconds since 1970; 0: never.",
            )?,
            publishing: PublishMetrics::new(&make)?,
            streams: None,
        })
    }

    /// Updates the series from the figures of a run.
    pub(crate) fn figures(&self, figures: &RunFigures) {
        for (series, figure) in &self.gauges {
            series.set(figure(figures) as f64);
        }
        for (series, figure) in &self.counters {
            raise_to(series, figure(figures) as f64);
        }
        figures.step_seconds.iter().for_each(|&seconds| self.step_seconds.observe(seconds));
        let beside = ("decode_and_plan", figures.seconds.decode_and_plan);
        for (stage, seconds) in figures.seconds.of_the_driver().into_iter().chain([beside]) {
            raise_to(&self.stage_seconds.with_label_values(&[stage]), seconds);
        }
        figures.loss.into_iter().for_each(|loss| self.loss.set(loss));
        for (task, auc) in &figures.aucs {
            // Labels of only one class have no AUC; Prometheus represents a missing value as NaN.
            self.recent_auc.with_label_values(&[task]).set(auc.unwrap_or(f64::NAN));
        }
        self.rate_scale.set(f64::from(figures.rate_scale));
        for (side, rows) in &figures.missing_side_rows {
            raise_to(&self.missing_side_rows.with_label_values(&[side]), *rows as f64);
        }
        for (data, counts) in &figures.read {
            raise_to(&self.read_bytes.with_label_values(&[data]), counts.bytes as f64);
            for (kind, &rows) in BAD_ROWS.iter().zip(&counts.bad_rows) {
                raise_to(&self.bad_rows.with_label_values(&[data, kind.name()]), rows as f64);
            }
        }
        self.tables.update(&figures.tables);
    }

    /// Sets the series of a validation if the epoch had one.
    pub(crate) fn epoch(&self, report: &EpochReport) {
        let Some(valid) = &report.valid else { return };
        set_to_now(&self.validation_at);
        self.validation_missing_keys.inc_by(valid.missing_keys as f64);
        if valid.accuracy.is_some() {
            // The label of classes has figures of its own beside those of its classes.
            self.set_task(&self.first_task, &valid.first_task());
        }
        match &valid.tasks[..] {
            [] => self.set_task(&self.first_task, &valid.first_task()),
            tasks => tasks.iter().for_each(|(task, report)| self.set_task(task, report)),
        }
        // The ranking figures describe whole rows and not tasks, so they are stored under the first
        // task.
        for figure in valid.ranking.iter().filter(|_| valid.candidates > 0) {
            self.set_validation(&self.first_task, &figure.name, figure.value);
        }
    }

    fn set_task(&self, task: &str, report: &TaskReport) {
        self.set_validation(task, "auc", report.auc);
        self.set_validation(task, "gauc", report.gauc);
        self.set_validation(task, "pr_auc", report.pr_auc);
        self.set_validation(task, "logloss", report.logloss);
        self.set_validation(task, "accuracy", report.accuracy);
        self.set_validation(task, "rmse", report.numbers.map(|numbers| numbers.rmse));
        self.set_validation(task, "mae", report.numbers.map(|numbers| numbers.mae));
        self.set_validation(task, "calibration", report.calibration);
        self.set_validation(task, "rows", Some(report.rows as f64));
        self.set_validation(task, "positives", Some(report.positives as f64));
        for figure in &report.ranking {
            self.set_validation(task, &figure.name, figure.value);
        }
    }

    fn set_validation(&self, task: &str, metric: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.validation.with_label_values(&[task, metric]).set(value);
        }
    }

    /// Updates the series after a checkpoint was written.
    pub(crate) fn report_checkpoint(&self, report: &CheckpointReport) {
        self.checkpoint_seconds.observe(report.seconds);
        self.checkpoint_bytes.set(report.bytes as f64);
        set_to_now(&self.checkpoint_at);
    }

    /// Updates the series after an attempt to publish a version.
    pub(crate) fn report_version(&self, report: &PublishReport<'_>) {
        self.publishing.report(report);
    }
}

#[cfg(test)]
mod tests {
    use zillion_embedding::{Counters, TableStatistics};

    use super::*;

    #[test]
    fn series_follow_a_runs_counts() {
        let registry = Registry::new();
        let metrics = TrainerMetrics::new(&registry, "click").unwrap();
        let mut figures =
            RunFigures { step: 7, samples: 100, passed_rows: 130, ..Default::default() };
        figures.bad_rows = 10;
        figures.step_seconds = vec![0.01, 0.02];
        figures.tables = vec![TableStatistics {
            table: "user".to_owned(),
            rows: 5,
            payload_bytes: 80,
            counters: Counters { refused: 3, ..Counters::default() },
            ..TableStatistics::default()
        }];
        metrics.figures(&figures);
        figures.samples = 150;
        figures.passed_rows = 190;
        figures.tables[0].rows = 4;
        metrics.figures(&figures);
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            "zillion_trainer_step 7",
            "zillion_trainer_samples_total 150",
            "zillion_reader_rows_total 190",
            "zillion_reader_rows_not_drawn_total 30",
            "zillion_trainer_step_seconds_count 4",
            "zillion_embedding_rows{table=\"user\"} 4",
            "zillion_embedding_bytes{kind=\"payload\",table=\"user\"} 80",
            "zillion_embedding_refused_gradients_total{table=\"user\"} 3",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
