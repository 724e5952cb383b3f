//! The metrics of the server for `/metrics`.

mod loading;
mod request_log;
mod scraped;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{
    Histogram, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
    exponential_buckets, register_histogram_vec_with_registry, register_histogram_with_registry,
    register_int_counter_vec_with_registry, register_int_gauge_vec_with_registry,
    register_int_gauge_with_registry,
};

pub(crate) use loading::Loading;
pub(crate) use request_log::{FileEvent, LogMetrics, Logged, RowOutcome};
pub(crate) use scraped::Scraped;

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The body arrives at the server.
    Receive,
    /// The request waits for a thread.
    Queue,
    /// The body is decompressed.
    Decompress,
    /// The body becomes raw columns.
    Parse,
    /// Raw columns become keys and numbers, are looked up, and are scored by the model.
    Score,
    /// Raw columns and scores become lines of the request log, for requests of its sample.
    Log,
    /// Scores become the body of the answer.
    Write,
}

impl Stage {
    /// Every stage, in the order of a request.
    pub(crate) const ALL: [Self; 7] = [
        Self::Receive,
        Self::Queue,
        Self::Decompress,
        Self::Parse,
        Self::Score,
        Self::Log,
        Self::Write,
    ];

    /// Returns the name in metrics and traces.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Queue => "queue",
            Self::Decompress => "decompress",
            Self::Parse => "parse",
            Self::Score => "score",
            Self::Log => "log",
            Self::Write => "write",
        }
    }
}

/// The series of a server, registered in one registry of metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// The series of each stage, in the order of [`Stage::ALL`].
    stages: [Histogram; Stage::ALL.len()],
    request_seconds: HistogramVec,
    requests: IntCounterVec,
    rows: IntCounterVec,
    missing_keys: IntCounterVec,
    missing_side_rows: IntCounterVec,
    pub(crate) open_requests: IntGauge,
    pub(crate) open_connections: IntGauge,
    waiting_requests: IntGauge,
    waiting_work_milliseconds: IntGauge,
    bytes_in_flight: IntGauge,
    shadow_difference: HistogramVec,
    shadow_skipped: IntCounterVec,
    scored_inline: IntCounterVec,
    scored_together: IntCounterVec,
    closed_connections: IntCounterVec,
    refused_callers: IntCounterVec,
    current_version: IntGaugeVec,
    open_versions: IntGaugeVec,
    layers: IntGaugeVec,
    load_seconds: HistogramVec,
    pub(crate) load_slice_seconds: Histogram,
    pub(crate) load_slice_cpu_seconds: Histogram,
    load_failures: IntCounterVec,
    registry_seen: IntGaugeVec,
    ready: IntGauge,
    pub(crate) loading: Loading,
    pub(crate) request_log: LogMetrics,
}

impl Metrics {
    /// Registers the series.
    ///
    /// # Errors
    /// Returns an error if the registry has series of these names already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let seconds = |name: &str, help: &str, labels: &[&str]| {
            // The buckets go from 50 µs to 13 s by factors of the square root of two.
            let buckets = exponential_buckets(5e-5, std::f64::consts::SQRT_2, 36)?;
            register_histogram_vec_with_registry!(name, help, labels, buckets, registry)
        };
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register_int_counter_vec_with_registry!(name, help, labels, registry)
        };
        let gauges = |name: &str, help: &str| {
            register_int_gauge_vec_with_registry!(name, help, &["model"], registry)
        };
        let gauge =
            |name: &str, help: &str| register_int_gauge_with_registry!(name, help, registry);
        let slices = |name: &str, help: &str| {
            // The buckets go from 16 µs by factors of two, and half a millisecond is one of the
            // bounds.
            let buckets = exponential_buckets(1.5625e-5, 2.0, 16)?;
            register_histogram_with_registry!(name, help, buckets, registry)
        };
        let stages = seconds(
            "zillion_serving_stage_seconds",
            "Time of each stage of a request.",
            &["stage"],
        )?;
        Ok(Self {
            stages: Stage::ALL.map(|stage| stages.with_label_values(&[stage.name()])),
            request_seconds: seconds(
                "zillion_serving_request_seconds",
                "Time of a request, from its head to its answer.",
                &["model", "protocol"],
            )?,
            requests: counter(
                "zillion_serving_requests_total",
                "Requests by outcome.",
                &["model", "protocol", "status"],
            )?,
            rows: counter("zillion_serving_rows_total", "Rows that were scored.", &["model"])?,
            missing_keys: counter(
                "zillion_serving_missing_keys_total",
                "Unique keys of requests that the version does not have, and answers with its default.",
                &["model"],
            )?,
            missing_side_rows: counter(
                "zillion_serving_missing_side_rows_total",
                "Rows whose key a side table does not have.",
                &["model"],
            )?,
            open_requests: gauge("zillion_serving_open_requests", "Requests in the server.")?,
            open_connections: gauge("zillion_serving_open_connections", "Open connections.")?,
            waiting_requests: gauge(
                "zillion_serving_waiting_requests",
                "Requests that wait for a thread.",
            )?,
            waiting_work_milliseconds: gauge(
                "zillion_serving_waiting_work_milliseconds",
                "Estimated time until a request that comes now begins.",
            )?,
            bytes_in_flight: gauge(
                "zillion_serving_bytes_in_flight",
                "Bytes of bodies and answers in the server.",
            )?,
            shadow_difference: register_histogram_vec_with_registry!(
                "zillion_serving_shadow_difference",
                "Absolute difference between the score of the answer and that of the shadow version.",
                &["model"],
                exponential_buckets(1e-6, 10f64.sqrt(), 13)?,
                registry
            )?,
            shadow_skipped: counter(
                "zillion_serving_shadow_skipped_total",
                "Requests that a shadow version was to score and did not.",
                &["model"],
            )?,
            scored_inline: counter(
                "zillion_serving_scored_inline_total",
                "Requests that were scored on the network thread that read them.",
                &["model"],
            )?,
            scored_together: counter(
                "zillion_serving_scored_together_total",
                "Requests that a network thread scored in one pass with others.",
                &["model"],
            )?,
            closed_connections: counter(
                "zillion_serving_closed_connections_total",
                "Connections that the server closed or refused, by reason.",
                &["reason"],
            )?,
            refused_callers: counter(
                "zillion_serving_refused_callers_total",
                "Requests of callers that are unknown or may not make them, by reason.",
                &["reason"],
            )?,
            current_version: gauges(
                "zillion_serving_current_version",
                "The version that answers requests without a version.",
            )?,
            open_versions: gauges("zillion_serving_open_versions", "Versions that are loaded.")?,
            layers: gauges("zillion_serving_layers", "Layers that a lookup probes.")?,
            load_seconds: seconds(
                "zillion_serving_load_seconds",
                "Time from seeing a version to serving it.",
                &["model"],
            )?,
            load_slice_seconds: slices(
                "zillion_serving_load_slice_seconds",
                "Wall time of one slice of a hot load, between two pauses.",
            )?,
            load_slice_cpu_seconds: slices(
                "zillion_serving_load_slice_cpu_seconds",
                "Processor time of one slice of a hot load, which scoring could have used.",
            )?,
            load_failures: counter(
                "zillion_serving_load_failures_total",
                "Versions that could not be loaded.",
                &["model"],
            )?,
            registry_seen: gauges(
                "zillion_serving_registry_seen_timestamp_seconds",
                "Time of the last answer of the registry, in seconds since 1970.",
            )?,
            ready: gauge(
                "zillion_serving_ready",
                "1 while every model has a version that answers and the server is not stopping.",
            )?,
            loading: Loading::new(registry)?,
            request_log: LogMetrics::new(registry)?,
            registry: registry.clone(),
        })
    }

    /// Creates the series of a model, so that an event that has not happened yet is 0 and not
    /// absent.
    pub(crate) fn begin(&self, model: &str) {
        let counters =
            [&self.rows, &self.missing_keys, &self.missing_side_rows, &self.load_failures];
        counters.iter().for_each(|counter| counter.with_label_values(&[model]).inc_by(0));
        let gauges =
            [&self.current_version, &self.open_versions, &self.layers, &self.registry_seen];
        gauges.iter().for_each(|gauge| gauge.with_label_values(&[model]).set(0));
        self.load_seconds.with_label_values(&[model]);
        self.shadow_difference.with_label_values(&[model]);
        self.shadow_skipped.with_label_values(&[model]).inc_by(0);
        self.scored_inline.with_label_values(&[model]).inc_by(0);
        self.scored_together.with_label_values(&[model]).inc_by(0);
        self.closed_connections.with_label_values(&["idle"]).inc_by(0);
        self.refused_callers.with_label_values(&["no_credentials"]).inc_by(0);
        self.loading.begin(model);
        self.request_log.begin(model);
    }

    /// Records the requests that wait, the time of their work, and the bytes in flight.
    pub(crate) fn set_load(&self, waiting: usize, work: Duration, bytes: usize) {
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.waiting_requests.set(gauge(waiting));
        let work = i64::try_from(work.as_millis()).unwrap_or(i64::MAX);
        self.waiting_work_milliseconds.set(work);
        self.bytes_in_flight.set(gauge(bytes));
    }

    /// Records whether the server is ready.
    pub(crate) fn set_ready(&self, is_ready: bool) {
        self.ready.set(i64::from(is_ready));
    }

    /// Writes all series in the text format of Prometheus.
    ///
    /// # Errors
    /// Returns an error if a series cannot be written.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    /// Counts a connection that the server closed or refused.
    pub(crate) fn record_closed(&self, reason: &str) {
        self.closed_connections.with_label_values(&[reason]).inc();
    }

    /// Counts a request of a caller that was refused.
    pub(crate) fn record_refused(&self, reason: &str) {
        self.refused_callers.with_label_values(&[reason]).inc();
    }

    /// Records the differences between the scores of an answer and those of a shadow version.
    pub(crate) fn record_shadow(&self, model: &str, differences: impl Iterator<Item = f64>) {
        let series = self.shadow_difference.with_label_values(&[model]);
        differences.for_each(|difference| series.observe(difference));
    }

    /// Counts a request that a shadow version was to score and did not.
    pub(crate) fn record_shadow_skipped(&self, model: &str) {
        self.shadow_skipped.with_label_values(&[model]).inc();
    }

    /// Counts a request that was scored on the network thread that read it.
    /// `has_others` says whether it was scored in one pass with others.
    pub(crate) fn record_inline(&self, model: &str, has_others: bool) {
        self.scored_inline.with_label_values(&[model]).inc();
        if has_others {
            self.scored_together.with_label_values(&[model]).inc();
        }
    }

    pub(crate) fn record_stage(&self, stage: Stage, time: Duration) {
        self.stages[stage as usize].observe(time.as_secs_f64());
    }

    pub(crate) fn record_request(&self, model: &str, protocol: &str, status: u16, time: Duration) {
        let status = status.to_string();
        self.requests.with_label_values(&[model, protocol, &status]).inc();
        self.request_seconds.with_label_values(&[model, protocol]).observe(time.as_secs_f64());
    }

    pub(crate) fn record_scores(
        &self,
        model: &str,
        rows: u64,
        missing: u64,
        missing_side_rows: u64,
    ) {
        self.rows.with_label_values(&[model]).inc_by(rows);
        self.missing_keys.with_label_values(&[model]).inc_by(missing);
        self.missing_side_rows.with_label_values(&[model]).inc_by(missing_side_rows);
    }

    pub(crate) fn record_versions(&self, model: &str, current: u64, open: usize, layers: usize) {
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        let current = i64::try_from(current).unwrap_or(i64::MAX);
        self.current_version.with_label_values(&[model]).set(current);
        self.open_versions.with_label_values(&[model]).set(gauge(open));
        self.layers.with_label_values(&[model]).set(gauge(layers));
    }

    pub(crate) fn record_load(&self, model: &str, time: Duration) {
        self.load_seconds.with_label_values(&[model]).observe(time.as_secs_f64());
    }

    /// Records that the registry has answered.
    pub(crate) fn record_registry_answer(&self, model: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        self.registry_seen.with_label_values(&[model]).set(now);
    }

    /// Counts a request as open for as long as the returned value lives, however the request ends.
    pub(crate) fn enter_request(&self) -> Entered {
        self.open_requests.inc();
        Entered(self.open_requests.clone())
    }

    /// Removes the gauges of a model that is no longer served. Its counters stay.
    pub(crate) fn forget(&self, model: &str) {
        for gauges in
            [&self.current_version, &self.open_versions, &self.layers, &self.registry_seen]
        {
            // A model that never had a version has no series in some of them.
            let _ = gauges.remove_label_values(&[model]);
        }
        self.loading.forget(model);
    }

    pub(crate) fn record_load_failure(&self, model: &str) {
        self.load_failures.with_label_values(&[model]).inc();
    }
}

/// A request that is counted as open.
#[derive(Debug)]
pub(crate) struct Entered(IntGauge);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.dec();
    }
}
