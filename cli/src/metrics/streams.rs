//! The series of a run that follows streams: its place in them, its join, its validation and its
//! gate.

use prometheus::{CounterVec, Gauge, GaugeVec, Registry, Result};
use zillion_stream::gate::{Check, Leg, Outcome, Verdict};
use zillion_stream::validation::{ClosedWindow, Difference, Figures};
use zillion_trainer::{FeedStatus, JoinStatus};

use super::maker::Maker;

/// The outcomes of a verdict, as the values of a label.
const OUTCOMES: [(&str, Outcome); 4] = [
    ("pass", Outcome::Pass),
    ("warn", Outcome::Warn),
    ("hold", Outcome::Hold),
    ("fail", Outcome::Fail),
];

/// The series of the streams of one run.
pub(crate) struct StreamMetrics {
    places: Places,
    totals: Totals,
    /// The last status, from which counters count on.
    last: Option<FeedStatus>,
    join: Option<Join>,
    validation: Validation,
    gate: Option<GateSeries>,
}

/// The parts of a job that have series of their own.
#[derive(Clone, Debug)]
pub(crate) struct StreamParts {
    /// Whether the job joins impressions with feedback.
    pub(crate) has_join: bool,
    /// The event time after which a hold of the job's gate warns, in seconds, if the job has one.
    pub(crate) hold_limit: Option<u64>,
}

/// The series of the place of a run in its streams.
struct Places {
    lag: GaugeVec,
    newest: GaugeVec,
    idle: GaugeVec,
    watermark: Gauge,
    paused: Gauge,
}

/// The counters of what a run has consumed.
struct Totals {
    batches: CounterVec,
    rows: prometheus::Counter,
    messages: prometheus::Counter,
    rejected: prometheus::Counter,
    refused_times: prometheus::Counter,
}

/// The series of a join.
struct Join {
    pending_rows: Gauge,
    early_feedback: Gauge,
    bytes: GaugeVec,
    events: CounterVec,
}

/// The series of the newest closed window of each length.
struct Validation {
    windows: CounterVec,
    end: GaugeVec,
    rows: GaugeVec,
    not_finite: GaugeVec,
    auc: GaugeVec,
    logloss: GaugeVec,
    calibration: GaugeVec,
    difference: GaugeVec,
    difference_error: GaugeVec,
}

/// The series of a gate.
struct GateSeries {
    verdicts: CounterVec,
    value: GaugeVec,
    error: GaugeVec,
    reference: GaugeVec,
    threshold: GaugeVec,
    outcome: GaugeVec,
    hold: Gauge,
}

impl StreamMetrics {
    /// Registers the series of a run over streams. The series of a join or a gate exist only if the
    /// job has one.
    ///
    /// # Errors
    /// Returns an error if the name of a series is already taken.
    pub(crate) fn new(registry: &Registry, parts: &StreamParts) -> Result<Self> {
        let make = Maker(registry);
        Ok(Self {
            places: Places::new(&make)?,
            totals: Totals::new(&make)?,
            last: None,
            join: parts.has_join.then(|| Join::new(&make)).transpose()?,
            validation: Validation::new(&make)?,
            gate: parts.hold_limit.map(|limit| GateSeries::new(&make, limit)).transpose()?,
        })
    }

    /// Updates the series of the place in the streams. The counts of a status are those over the
    /// life of the run, so counters grow by the difference to the status before.
    pub(crate) fn report_streams(&mut self, status: &FeedStatus) {
        self.places.update(status);
        let before = self.last.as_ref().unwrap_or(status);
        self.totals.add(before, status);
        if let (Some(series), Some(join)) = (&self.join, &status.join) {
            series.update(before.join.as_ref().unwrap_or(join), join);
        }
        self.last = Some(status.clone());
    }

    /// Updates the series of validation after a window was closed.
    pub(crate) fn report_window(&self, window: &ClosedWindow) {
        self.validation.update(window);
    }

    /// Updates the time for which the gate has held all versions.
    pub(crate) fn report_hold(&self, seconds: f64) {
        self.gate.iter().for_each(|gate| gate.hold.set(seconds));
    }

    /// Updates the series of the gate after a verdict.
    pub(crate) fn report_verdict(&self, verdict: &Verdict) {
        self.gate.iter().for_each(|gate| gate.update(verdict));
    }
}

impl Places {
    fn new(make: &Maker<'_>) -> Result<Self> {
        let labels = ["stream", "partition"];
        Ok(Self {
            lag: make.gauges(
                "zillion_stream_lag",
                "Distance from the next message to the end of a partition, in offsets.",
                &labels,
            )?,
            newest: make.gauges(
                "zillion_stream_newest_event_timestamp_seconds",
                "Time of the newest event of a partition, in seconds since 1970; 0: none yet.",
                &labels,
            )?,
            idle: make.gauges(
                "zillion_stream_idle",
                "1 while the watermark does not wait for a partition.",
                &labels,
            )?,
            watermark: make.gauge(
                "zillion_stream_watermark_timestamp_seconds",
                "Event time up to which events are complete, in seconds since 1970; 0: none yet.",
            )?,
            paused: make
                .gauge("zillion_stream_paused", "1 while an operator has paused the run.")?,
        })
    }

    fn update(&self, status: &FeedStatus) {
        for place in &status.partitions {
            let labels = [place.stream.as_str(), place.partition.as_str()];
            self.lag.with_label_values(&labels).set(place.lag as f64);
            self.newest.with_label_values(&labels).set(seconds(place.newest_ms));
            self.idle.with_label_values(&labels).set(f64::from(place.is_idle));
        }
        self.watermark.set(seconds(status.watermark_ms));
        self.paused.set(f64::from(status.is_paused));
    }
}

impl Totals {
    fn new(make: &Maker<'_>) -> Result<Self> {
        let totals = Self {
            batches: make.counters(
                "zillion_stream_batches_total",
                "Batches, by the reason for their end.",
                &["reason"],
            )?,
            rows: make.counter("zillion_stream_rows_total", "Rows of these batches.")?,
            messages: make
                .counter("zillion_stream_messages_total", "Messages that were consumed.")?,
            rejected: make.counter(
                "zillion_stream_rejected_messages_total",
                "Messages that were rejected and are in the file of dead letters.",
            )?,
            refused_times: make.counter(
                "zillion_stream_refused_times_total",
                "Events that were left out because of their time.",
            )?,
        };
        for reason in ["full", "linger", "stop"] {
            totals.batches.with_label_values(&[reason]);
        }
        Ok(totals)
    }

    fn add(&self, before: &FeedStatus, now: &FeedStatus) {
        let stopped = |of: &FeedStatus| of.batches.saturating_sub(of.full + of.lingered);
        for (reason, before, now) in [
            ("full", before.full, now.full),
            ("linger", before.lingered, now.lingered),
            ("stop", stopped(before), stopped(now)),
        ] {
            grow(&self.batches.with_label_values(&[reason]), before, now);
        }
        grow(&self.rows, before.rows, now.rows);
        grow(&self.messages, before.messages, now.messages);
        grow(&self.rejected, before.rejected, now.rejected);
        grow(&self.refused_times, before.refused_times, now.refused_times);
    }
}

impl Join {
    fn new(make: &Maker<'_>) -> Result<Self> {
        Ok(Self {
            pending_rows: make
                .gauge("zillion_stream_join_pending_rows", "Rows that wait for their feedback.")?,
            early_feedback: make.gauge(
                "zillion_stream_join_early_feedback",
                "Feedback that waits for its impression.",
            )?,
            bytes: make.gauges(
                "zillion_stream_join_bytes",
                "Size of what waits, by where it is.",
                &["place"],
            )?,
            events: make.counters(
                "zillion_stream_join_events_total",
                "Events and rows of the join, by what became of them.",
                &["outcome"],
            )?,
        })
    }

    fn update(&self, before: &JoinStatus, now: &JoinStatus) {
        self.pending_rows.set(now.pending_rows as f64);
        self.early_feedback.set(now.early_feedback as f64);
        self.bytes.with_label_values(&["disk"]).set(now.disk_bytes as f64);
        self.bytes.with_label_values(&["memory"]).set(now.memory_bytes as f64);
        for ((outcome, now), (_, before)) in outcomes(now).into_iter().zip(outcomes(before)) {
            grow(&self.events.with_label_values(&[outcome]), before, now);
        }
    }
}

/// Returns the counts of a join with the values of the label `outcome`.
fn outcomes(join: &JoinStatus) -> [(&'static str, u64); 18] {
    let of = &join.counters;
    [
        ("impression", of.impressions),
        ("joined_feedback", of.joined_feedback),
        ("positive_row", of.positives),
        ("negative_row", of.negatives),
        ("corrected_row", of.corrections),
        ("late_impression", of.late_impressions),
        ("late_feedback", of.late_feedback),
        ("unmatched_feedback", of.unmatched_feedback),
        ("duplicate_impression", of.duplicate_impressions),
        ("duplicate_feedback", of.duplicate_feedback),
        ("sampled_out_row", of.sampled_out),
        ("evicted_row", of.evicted_rows),
        ("evicted_feedback", of.evicted_feedback),
        ("refused_missing_time", of.refused_missing),
        ("refused_negative_time", of.refused_negative),
        ("refused_ahead", of.refused_ahead),
        ("refused_large", of.refused_large),
        ("refused_number", of.refused_number),
    ]
}

impl Validation {
    fn new(make: &Maker<'_>) -> Result<Self> {
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            make.gauges(&format!("zillion_stream_validation_{name}"), help, labels)
        };
        let by_version = ["window", "version"];
        let by_metric = ["window", "metric"];
        Ok(Self {
            windows: make.counters(
                "zillion_stream_validation_windows_total",
                "Windows that were closed, by their length in seconds.",
                &["window"],
            )?,
            end: gauges(
                "end_timestamp_seconds",
                "End of the newest closed window, in seconds since 1970.",
                &["window"],
            )?,
            rows: gauges("rows", "Rows of the newest closed window.", &["window"])?,
            not_finite: gauges(
                "not_finite_rows",
                "Rows of that window whose score is not finite.",
                &by_version,
            )?,
            auc: gauges("auc", "AUC on the newest closed window.", &by_version)?,
            logloss: gauges("logloss", "Logloss on the newest closed window.", &by_version)?,
            calibration: gauges(
                "calibration",
                "Sum of predictions divided by the sum of labels on that window.",
                &by_version,
            )?,
            difference: gauges(
                "difference",
                "Figure of the live model less that of the stable version on the same rows.",
                &by_metric,
            )?,
            difference_error: gauges(
                "difference_error",
                "Standard error of the difference.",
                &by_metric,
            )?,
        })
    }

    fn update(&self, window: &ClosedWindow) {
        let length = (window.length / 1000).to_string();
        let length = length.as_str();
        self.windows.with_label_values(&[length]).inc();
        let end = window.start.0.saturating_add_unsigned(window.length);
        self.end.with_label_values(&[length]).set(seconds(Some(end)));
        self.rows.with_label_values(&[length]).set(window.rows as f64);
        self.set_figures([length, "live"], Some(&window.live), window.not_finite);
        let stable = window.paired.as_ref().map(|paired| &paired.stable);
        self.set_figures([length, "stable"], stable, window.stable_not_finite);
        let paired = window.paired.as_ref();
        self.set_difference([length, "auc"], paired.and_then(|paired| paired.auc));
        self.set_difference([length, "logloss"], paired.and_then(|paired| paired.logloss));
    }

    fn set_figures(&self, labels: [&str; 2], figures: Option<&Figures>, not_finite: u64) {
        let set = |series: &GaugeVec, figure: fn(&Figures) -> Option<f64>| {
            series.with_label_values(&labels).set(number(figures.and_then(figure)));
        };
        set(&self.auc, |figures| figures.auc);
        set(&self.logloss, |figures| figures.logloss);
        set(&self.calibration, |figures| figures.calibration);
        self.not_finite.with_label_values(&labels).set(not_finite as f64);
    }

    fn set_difference(&self, labels: [&str; 2], difference: Option<Difference>) {
        let (value, error) = difference.map(|of| (of.value, of.error)).unzip();
        self.difference.with_label_values(&labels).set(number(value));
        self.difference_error.with_label_values(&labels).set(number(error));
    }
}

impl GateSeries {
    fn new(make: &Maker<'_>, hold_limit: u64) -> Result<Self> {
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            make.gauges(&format!("zillion_stream_gate_{name}"), help, labels)
        };
        let by_check = ["leg", "check"];
        let series = Self {
            verdicts: make.counters(
                "zillion_stream_gate_verdicts_total",
                "Verdicts of the gate; each fail is a rewind.",
                &["outcome"],
            )?,
            value: gauges("value", "Figure of a check in the last verdict.", &by_check)?,
            error: gauges("error", "Standard error of that figure.", &by_check)?,
            reference: gauges("reference", "Value of the figure in the reference.", &by_check)?,
            threshold: gauges(
                "threshold",
                "Bound beyond which the check warns or fails.",
                &["leg", "check", "bound"],
            )?,
            outcome: gauges("outcome", "Outcome: 0 pass, 1 warn, 2 hold, 3 fail.", &by_check)?,
            hold: make.gauge(
                "zillion_stream_gate_hold_seconds",
                "Event time for which the gate has held all versions; 0: it holds none.",
            )?,
        };
        let limit = make.gauge(
            "zillion_stream_gate_hold_limit_seconds",
            "Event time after which a hold warns.",
        )?;
        limit.set(hold_limit as f64);
        for (outcome, _) in OUTCOMES {
            series.verdicts.with_label_values(&[outcome]);
        }
        Ok(series)
    }

    fn update(&self, verdict: &Verdict) {
        for (name, _) in OUTCOMES.iter().filter(|(_, outcome)| *outcome == verdict.outcome) {
            self.verdicts.with_label_values(&[name]).inc();
        }
        // Several windows may have been judged by one check. The newest one with the worst outcome
        // is shown.
        for check in &verdict.checks {
            let is_same = |other: &&Check| other.leg == check.leg && other.name == check.name;
            let of_name = verdict.checks.iter().filter(is_same);
            if let Some(shown) = of_name.max_by_key(|other| other.outcome) {
                self.show(shown);
            }
        }
    }

    fn show(&self, check: &Check) {
        let leg = match check.leg {
            Leg::Progressive => "progressive",
            Leg::Anchor => "anchor",
            Leg::Baseline => "baseline",
            Leg::Inputs => "inputs",
        };
        let labels = [leg, check.name.as_str()];
        self.value.with_label_values(&labels).set(number(check.value));
        self.error.with_label_values(&labels).set(number(check.error));
        self.reference.with_label_values(&labels).set(number(check.reference));
        for (bound, value) in [("warn", check.warn), ("hold", check.hold), ("fail", check.fail)] {
            self.threshold.with_label_values(&[leg, &check.name, bound]).set(number(value));
        }
        let place = OUTCOMES.iter().position(|(_, outcome)| *outcome == check.outcome);
        self.outcome.with_label_values(&labels).set(place.unwrap_or_default() as f64);
    }
}

/// Increases a counter by the growth of a count.
fn grow(counter: &prometheus::Counter, before: u64, now: u64) {
    counter.inc_by(now.saturating_sub(before) as f64);
}

/// Converts a time in milliseconds to seconds. A time that is not known is 0.
fn seconds(milliseconds: Option<i64>) -> f64 {
    milliseconds.unwrap_or_default() as f64 / 1000.0
}

/// Returns the value of a figure; Prometheus represents a missing value as NaN.
fn number(value: Option<f64>) -> f64 {
    value.unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use zillion_stream::EventTime;
    use zillion_stream::validation::Histogram;
    use zillion_trainer::PartitionStatus;

    use super::*;

    fn metrics() -> (Registry, StreamMetrics) {
        let registry = Registry::new();
        let parts = StreamParts { has_join: true, hold_limit: Some(300) };
        let metrics = StreamMetrics::new(&registry, &parts).unwrap();
        (registry, metrics)
    }

    fn has(registry: &Registry, lines: &[&str]) {
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in lines {
            assert!(text.lines().any(|l| l == *line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn counters_grow_by_what_the_process_has_done() {
        let (registry, mut metrics) = metrics();
        let place = PartitionStatus {
            stream: "clicks".to_owned(),
            partition: "a".to_owned(),
            lag: 7,
            newest_ms: Some(1_500),
            is_idle: true,
            ..PartitionStatus::default()
        };
        let mut status = FeedStatus {
            partitions: vec![place],
            watermark_ms: Some(1_000),
            batches: 10,
            full: 6,
            lingered: 3,
            messages: 100,
            rejected: 2,
            ..FeedStatus::default()
        };
        metrics.report_streams(&status);
        has(&registry, &["zillion_stream_messages_total 0"]);
        status.batches = 13;
        status.full = 8;
        status.messages = 130;
        status.rejected = 3;
        metrics.report_streams(&status);
        // After a rewind, the counts are those of a checkpoint.
        status.messages = 110;
        metrics.report_streams(&status);
        status.messages = 115;
        metrics.report_streams(&status);
        has(
            &registry,
            &[
                "zillion_stream_lag{partition=\"a\",stream=\"clicks\"} 7",
                "zillion_stream_newest_event_timestamp_seconds{partition=\"a\",stream=\"clicks\"} 1.5",
                "zillion_stream_idle{partition=\"a\",stream=\"clicks\"} 1",
                "zillion_stream_watermark_timestamp_seconds 1",
                "zillion_stream_batches_total{reason=\"full\"} 2",
                "zillion_stream_batches_total{reason=\"linger\"} 0",
                "zillion_stream_batches_total{reason=\"stop\"} 1",
                "zillion_stream_messages_total 35",
                "zillion_stream_rejected_messages_total 1",
            ],
        );
    }

    #[test]
    fn windows_and_verdicts_are_shown_with_their_thresholds() {
        let (registry, metrics) = metrics();
        let live = Figures {
            rows: 9,
            weight: 9.0,
            positives: 3.0,
            auc: Some(0.75),
            auc_error: None,
            logloss: Some(0.5),
            calibration: None,
        };
        metrics.report_window(&ClosedWindow {
            start: EventTime(20_000),
            length: 10_000,
            rows: 10,
            weight: 10.0,
            positives: 3.0,
            not_finite: 1,
            stable_not_finite: 0,
            live,
            paired: None,
            segments: Vec::new(),
            scores: Histogram::default(),
        });
        let check = |outcome, value| Check {
            leg: Leg::Progressive,
            name: "auc".to_owned(),
            outcome,
            value: Some(value),
            error: Some(0.25),
            reference: None,
            warn: Some(-0.5),
            hold: None,
            fail: Some(-0.75),
            reason: String::new(),
        };
        // The window before the newest one is the worse one.
        let checks = vec![check(Outcome::Fail, -1.0), check(Outcome::Pass, 0.0)];
        metrics.report_verdict(&Verdict { outcome: Outcome::Fail, checks });
        has(
            &registry,
            &[
                "zillion_stream_validation_windows_total{window=\"10\"} 1",
                "zillion_stream_validation_end_timestamp_seconds{window=\"10\"} 30",
                "zillion_stream_validation_rows{window=\"10\"} 10",
                "zillion_stream_validation_not_finite_rows{version=\"live\",window=\"10\"} 1",
                "zillion_stream_validation_auc{version=\"live\",window=\"10\"} 0.75",
                "zillion_stream_validation_auc{version=\"stable\",window=\"10\"} NaN",
                "zillion_stream_validation_calibration{version=\"live\",window=\"10\"} NaN",
                "zillion_stream_gate_verdicts_total{outcome=\"fail\"} 1",
                "zillion_stream_gate_verdicts_total{outcome=\"pass\"} 0",
                "zillion_stream_gate_value{check=\"auc\",leg=\"progressive\"} -1",
                "zillion_stream_gate_threshold{bound=\"fail\",check=\"auc\",leg=\"progressive\"} -0.75",
                "zillion_stream_gate_outcome{check=\"auc\",leg=\"progressive\"} 3",
                "zillion_stream_gate_hold_limit_seconds 300",
            ],
        );
    }
}
