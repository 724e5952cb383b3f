//! The creation of series in a registry.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, Opts, Registry, Result,
};

/// A helper that creates series and adds them to a registry.
pub(super) struct Maker<'a>(pub(super) &'a Registry);

impl Maker<'_> {
    pub(super) fn register<C: Collector + Clone + 'static>(&self, series: C) -> Result<C> {
        self.0.register(Box::new(series.clone()))?;
        Ok(series)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<Gauge> {
        self.register(Gauge::new(name, help)?)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        self.register(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<Counter> {
        self.register(Counter::new(name, help)?)
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<CounterVec> {
        self.register(CounterVec::new(Opts::new(name, help), labels)?)
    }

    /// Registers a histogram of seconds. The first bound is `first`, and each further bound is
    /// twice the one before.
    pub(super) fn seconds(
        &self,
        name: &str,
        help: &str,
        first: f64,
        bounds: usize,
    ) -> Result<Histogram> {
        let buckets = prometheus::exponential_buckets(first, 2.0, bounds)?;
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?)
    }
}

/// Sets a gauge to the current time, in whole seconds since 1970.
pub(super) fn set_to_now(gauge: &Gauge) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge.set(now.as_secs() as f64);
}

/// Increases a counter to the value `count`, which never decreases during a run.
pub(super) fn raise_to(counter: &Counter, count: f64) {
    counter.inc_by((count - counter.get()).max(0.0));
}
