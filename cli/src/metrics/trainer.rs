//! The series of a training run, set from the reports of the trainer.
//!
//! The trainer counts in plain numbers that only grow. One thread raises each series to the number
//! of the trainer.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec,
    IntGauge, IntGaugeVec, Opts, Registry,
};
use zillion_reader::BAD_ROWS;
use zillion_trainer::{
    CheckpointReport, EpochReport, EvalReport, PublishReport, RunFigures, StageSeconds, TaskReport,
};

mod tables;

use tables::Tables;

/// The series of one run.
pub(crate) struct TrainerMetrics {
    /// The name of the task that figures without a task name belong to.
    first_task: String,
    step: IntGauge,
    epoch: IntGauge,
    epochs: IntGauge,
    samples: IntCounter,
    skipped_steps: IntCounter,
    step_seconds: Histogram,
    stage_seconds: CounterVec,
    loss: Gauge,
    recent_auc: GaugeVec,
    rate_scale: Gauge,
    validation: GaugeVec,
    validation_at: IntGauge,
    validation_missing_keys: IntCounter,
    missing_side_rows: IntCounterVec,
    newest_event_at: IntGauge,
    reader: Reader,
    tables: Tables,
    checkpoint_seconds: Histogram,
    checkpoint_bytes: IntGauge,
    checkpoint_at: IntGauge,
    publish_seconds: Histogram,
    publish_failures: IntCounter,
    published_version: IntGauge,
    published_rows: IntCounter,
    published_at: IntGauge,
}

/// The series of the reader.
struct Reader {
    rows: IntCounter,
    not_drawn: IntCounter,
    bytes: IntCounterVec,
    bad_rows: IntCounterVec,
}

/// A helper that creates series and registers them.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn register<C: Collector + Clone + 'static>(&self, series: C) -> prometheus::Result<C> {
        self.0.register(Box::new(series.clone()))?;
        Ok(series)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.register(IntCounter::new(name, help)?)
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.register(IntGauge::new(name, help)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// Registers a histogram of seconds whose bounds start at `first` and double.
    fn seconds(
        &self,
        name: &str,
        help: &str,
        first: f64,
        bounds: usize,
    ) -> prometheus::Result<Histogram> {
        let buckets = prometheus::exponential_buckets(first, 2.0, bounds)?;
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?)
    }
}

/// Raises a counter to a count, which never decreases during a run.
fn follow(counter: &IntCounter, count: u64) {
    counter.inc_by(count.saturating_sub(counter.get()));
}

fn follow_seconds(counter: &Counter, seconds: f64) {
    counter.inc_by((seconds - counter.get()).max(0.0));
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn now() -> i64 {
    whole(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

impl TrainerMetrics {
    /// Registers the series. Series without labels are present at once, with the value 0.
    ///
    /// # Errors
    /// The name of a series is already taken.
    pub(crate) fn new(registry: &Registry, first_task: &str) -> prometheus::Result<Self> {
        let make = Maker(registry);
        let float = |name: &str, help: &str| make.register(Gauge::new(name, help)?);
        let floats = |name: &str, help: &str, labels: &[&str]| {
            make.register(GaugeVec::new(Opts::new(name, help), labels)?)
        };
        let stage_seconds = Opts::new(
            "zillion_trainer_stage_seconds_total",
            "Where the time went; decode_and_plan runs beside the others.",
        );
        Ok(Self {
            first_task: first_task.to_owned(),
            step: make.gauge("zillion_trainer_step", "Steps done, over all sittings.")?,
            epoch: make.gauge("zillion_trainer_epoch", "Epochs completed.")?,
            epochs: make.gauge("zillion_trainer_epochs", "Epochs of the job, at most.")?,
            samples: make.counter("zillion_trainer_samples_total", "Rows trained.")?,
            skipped_steps: make.counter(
                "zillion_trainer_skipped_steps_total",
                "Steps that moved no weight, because the gradient's norm was not finite.",
            )?,
            step_seconds: make.seconds(
                "zillion_trainer_step_seconds",
                "Time of a step, without waiting for its rows.",
                1e-4,
                18,
            )?,
            stage_seconds: make.register(CounterVec::new(stage_seconds, &["stage"])?)?,
            loss: float("zillion_trainer_loss", "Mean loss of the rows trained most recently.")?,
            recent_auc: floats(
                "zillion_trainer_recent_auc",
                "AUC of the most recent predictions, made before each batch was learned from.",
                &["task"],
            )?,
            rate_scale: float(
                "zillion_trainer_rate_scale",
                "Learning-rate multiplier of the schedule.",
            )?,
            validation: floats(
                "zillion_trainer_validation",
                "Figures of the last validation, by task and metric.",
                &["task", "metric"],
            )?,
            validation_at: make.gauge(
                "zillion_trainer_validation_timestamp_seconds",
                "When the last validation ended, in seconds since 1970; 0: never.",
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
            newest_event_at: make.gauge(
                "zillion_trainer_newest_event_timestamp_seconds",
                "When the newest event that was trained on happened, in seconds since 1970; 0: not known.",
            )?,
            reader: Reader::new(&make)?,
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
                "When the last checkpoint was written, in seconds since 1970; 0: never.",
            )?,
            publish_seconds: make.seconds(
                "zillion_trainer_publish_seconds",
                "Time of an attempt to publish a version.",
                1e-3,
                22,
            )?,
            publish_failures: make.counter(
                "zillion_trainer_publish_failures_total",
                "Versions that could not be published; the next one has what they lack.",
            )?,
            published_version: make.gauge(
                "zillion_trainer_published_version",
                "The version that was published last; 0: none.",
            )?,
            published_rows: make.counter(
                "zillion_trainer_published_rows_total",
                "Rows of published versions: all of a base, the changed ones of a delta.",
            )?,
            published_at: make.gauge(
                "zillion_trainer_published_timestamp_seconds",
                "When the last version was published, in seconds since 1970; 0: never.",
            )?,
        })
    }

    pub(crate) fn figures(&self, figures: &RunFigures) {
        self.step.set(whole(figures.step));
        self.epoch.set(whole(figures.cursor.epoch));
        self.epochs.set(whole(figures.epochs));
        follow(&self.samples, figures.samples);
        follow(&self.skipped_steps, figures.skipped_steps);
        figures.step_seconds.iter().for_each(|&seconds| self.step_seconds.observe(seconds));
        self.stages(&figures.seconds);
        figures.loss.into_iter().for_each(|loss| self.loss.set(loss));
        for (task, auc) in &figures.aucs {
            // Labels of only one class have no AUC; Prometheus represents a missing value as NaN.
            self.recent_auc.with_label_values(&[task]).set(auc.unwrap_or(f64::NAN));
        }
        self.rate_scale.set(f64::from(figures.rate_scale));
        for (side, rows) in &figures.missing_side_rows {
            follow(&self.missing_side_rows.with_label_values(&[side]), *rows);
        }
        self.newest_event_at.set(whole(figures.newest_event_ms.unwrap_or(0) / 1000));
        self.reader.figures(figures);
        self.tables.figures(&figures.tables);
    }

    fn stages(&self, seconds: &StageSeconds) {
        let beside = ("decode_and_plan", seconds.decode_and_plan);
        for (stage, seconds) in seconds.of_the_driver().into_iter().chain([beside]) {
            follow_seconds(&self.stage_seconds.with_label_values(&[stage]), seconds);
        }
    }

    pub(crate) fn epoch(&self, report: &EpochReport) {
        let Some(valid) = &report.valid else { return };
        self.validation_at.set(now());
        self.validation_missing_keys.inc_by(valid.missing_keys);
        match &valid.tasks[..] {
            [] => self.validated(&self.first_task, &valid.first_task()),
            tasks => tasks.iter().for_each(|(task, report)| self.validated(task, report)),
        }
        self.ranked(valid);
    }

    fn validated(&self, task: &str, report: &TaskReport) {
        let figures = [
            ("auc", report.auc),
            ("gauc", report.gauc),
            ("logloss", report.logloss),
            ("calibration", report.calibration),
            ("rows", Some(report.rows as f64)),
            ("positives", Some(report.positives as f64)),
        ];
        let ranking = report.ranking.iter().map(|figure| (figure.name.as_str(), figure.value));
        for (metric, value) in figures.into_iter().chain(ranking) {
            if let Some(value) = value {
                self.validation.with_label_values(&[task, metric]).set(value);
            }
        }
    }

    /// Sets the ranking figures. They describe whole rows and not tasks, so they are stored under
    /// the first task.
    fn ranked(&self, report: &EvalReport) {
        for figure in report.ranking.iter().filter(|_| report.candidates > 0) {
            if let Some(value) = figure.value {
                self.validation.with_label_values(&[&self.first_task, &figure.name]).set(value);
            }
        }
    }

    pub(crate) fn report_checkpoint(&self, report: &CheckpointReport) {
        self.checkpoint_seconds.observe(report.seconds);
        self.checkpoint_bytes.set(whole(report.bytes));
        self.checkpoint_at.set(now());
    }

    pub(crate) fn report_version(&self, report: &PublishReport<'_>) {
        self.publish_seconds.observe(report.seconds);
        let Some(published) = report.published else { return self.publish_failures.inc() };
        self.published_version.set(whole(published.version.version.0));
        self.published_at.set(now());
        if !published.was_there {
            self.published_rows.inc_by(published.version.layer.rows());
        }
    }
}

impl Reader {
    fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            rows: make.counter(
                "zillion_reader_rows_total",
                "Rows of the training data that training has gone over: trained, bad, or not drawn.",
            )?,
            not_drawn: make.counter(
                "zillion_reader_rows_not_drawn_total",
                "Rows of the training data that data.sample or data.negatives left out.",
            )?,
            bytes: make.counters(
                "zillion_reader_bytes_total",
                "Bytes decoded, in all passes over a data set.",
                &["data"],
            )?,
            bad_rows: make.counters(
                "zillion_reader_bad_rows_total",
                "Bad rows that passes over a data set have left out, by reason.",
                &["data", "reason"],
            )?,
        })
    }

    fn figures(&self, figures: &RunFigures) {
        follow(&self.rows, figures.passed_rows);
        let left_out = figures.passed_rows.saturating_sub(figures.samples);
        follow(&self.not_drawn, left_out.saturating_sub(figures.bad_rows));
        for (data, counts) in &figures.read {
            follow(&self.bytes.with_label_values(&[data]), counts.bytes);
            for (kind, &rows) in BAD_ROWS.iter().zip(&counts.bad_rows) {
                follow(&self.bad_rows.with_label_values(&[data, kind.name()]), rows);
            }
        }
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
