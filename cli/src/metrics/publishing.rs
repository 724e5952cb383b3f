//! The series of the versions that a training run publishes.

use prometheus::{Counter, CounterVec, Gauge, Histogram, Result};
use zillion_trainer::PublishReport;

use super::maker::{Maker, raise_to, set_to_now};

/// The series of the publications of one run.
pub(super) struct PublishMetrics {
    seconds: Histogram,
    failures: Counter,
    version: Gauge,
    rows: Counter,
    published_at: Gauge,
    deltas: Gauge,
    compactions: CounterVec,
    compacted_bytes: Counter,
    compaction_wait: Counter,
}

impl PublishMetrics {
    /// Registers the series.
    ///
    /// # Errors
    /// Returns an error if the name of a series is already taken.
    pub(super) fn new(make: &Maker<'_>) -> Result<Self> {
        let compactions = make.counters(
            "zillion_trainer_compactions_total",
            "Merges of deltas to a new base, by outcome.",
            &["outcome"],
        )?;
        // A series that appears with its first count hides that count from rates.
        for outcome in ["ok", "failed", "dropped"] {
            compactions.with_label_values(&[outcome]).inc_by(0.0);
        }
        Ok(Self {
            seconds: make.seconds(
                "zillion_trainer_publish_seconds",
                "Time of an attempt to publish a version.",
                1e-3,
                22,
            )?,
            failures: make.counter(
                "zillion_trainer_publish_failures_total",
                "Versions that could not be published; the next version has their changes.",
            )?,
            version: make.gauge(
                "zillion_trainer_published_version",
                "The version that was published last; 0: none.",
            )?,
            rows: make.counter(
                "zillion_trainer_published_rows_total",
                "Rows of published versions: all of a base, the changed ones of a delta.",
            )?,
            published_at: make.gauge(
                "zillion_trainer_published_timestamp_seconds",
                "Time at which the last version was published, in seconds since 1970; 0: never.",
            )?,
            deltas: make.gauge(
                "zillion_trainer_published_deltas",
                "Deltas between the last version and its base, the version included.",
            )?,
            compactions,
            compacted_bytes: make.counter(
                "zillion_trainer_compacted_bytes_total",
                "Bytes of the bases that merges have made.",
            )?,
            compaction_wait: make.counter(
                "zillion_trainer_compaction_wait_seconds_total",
                "Time that publications have waited for merges that were late.",
            )?,
        })
    }

    /// Updates the series after an attempt to publish a version.
    pub(super) fn report(&self, report: &PublishReport<'_>) {
        self.seconds.observe(report.seconds);
        let Some(published) = report.published else { return self.failures.inc() };
        self.version.set(published.version.version.0 as f64);
        set_to_now(&self.published_at);
        if !published.was_there {
            self.rows.inc_by(published.version.layer.rows() as f64);
        }
        published.deltas.into_iter().for_each(|deltas| self.deltas.set(deltas as f64));
        let counts = &published.compactions;
        let outcomes =
            [("ok", counts.published), ("failed", counts.failed), ("dropped", counts.dropped)];
        for (outcome, count) in outcomes {
            raise_to(&self.compactions.with_label_values(&[outcome]), count as f64);
        }
        raise_to(&self.compacted_bytes, counts.bytes as f64);
        raise_to(&self.compaction_wait, counts.waited.as_secs_f64());
    }
}
