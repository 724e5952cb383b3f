//! The counters of the registry's store as metrics: requests by outcome, retries, and the time
//! waited between them.
//!
//! The store keeps plain counters, which each scrape of `/metrics` reads.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, CounterVec, IntCounter, IntCounterVec, Opts};
use zillion_store::{Operation, Outcome, Store, StoreStats};

/// A collector that exports the counters of a store.
pub struct StoreMetrics {
    store: Store,
    descriptions: Vec<Desc>,
}

impl StoreMetrics {
    /// Creates the series of a store.
    ///
    /// # Errors
    /// Returns an error if the description of a series is invalid, which is a bug.
    pub fn new(store: &Store) -> prometheus::Result<Self> {
        let series = Series::of(store.stats())?;
        let descriptions = series.all().iter().flat_map(|s| s.desc()).cloned().collect();
        Ok(Self { store: store.clone(), descriptions })
    }
}

impl std::fmt::Debug for StoreMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreMetrics").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Collector for StoreMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The same series was created once before, so that it cannot fail.
        Series::of(self.store.stats())
            .map(|series| series.all().iter().flat_map(|series| series.collect()).collect())
            .unwrap_or_default()
    }
}

/// The series of a store, with the values of one moment.
struct Series {
    requests: IntCounterVec,
    request_seconds: CounterVec,
    retries: IntCounterVec,
    failures: IntCounterVec,
    backoff_seconds: Counter,
    sent_bytes: IntCounter,
    received_bytes: IntCounter,
}

impl Series {
    fn of(stats: &StoreStats) -> prometheus::Result<Self> {
        let by_operation = |name: &str, help: &str, value: &dyn Fn(Operation) -> u64| {
            let series = IntCounterVec::new(Opts::new(name, help), &["operation"])?;
            for operation in Operation::ALL {
                series.with_label_values(&[operation.name()]).inc_by(value(operation));
            }
            Ok::<_, prometheus::Error>(series)
        };
        let one = |name: &str, help: &str, value: u64| {
            let series = IntCounter::new(name, help)?;
            series.inc_by(value);
            Ok::<_, prometheus::Error>(series)
        };
        let requests = IntCounterVec::new(
            Opts::new(
                "zillion_registry_store_requests_total",
                "Requests to the registry's store, by operation and outcome.",
            ),
            &["operation", "outcome"],
        )?;
        let request_seconds = CounterVec::new(
            Opts::new(
                "zillion_registry_store_request_seconds_total",
                "Time in requests to the registry's store.",
            ),
            &["operation"],
        )?;
        for operation in Operation::ALL {
            for outcome in Outcome::ALL {
                let labels = [operation.name(), outcome.name()];
                requests.with_label_values(&labels).inc_by(stats.requests(operation, outcome));
            }
            let time = stats.request_time(operation).as_secs_f64();
            request_seconds.with_label_values(&[operation.name()]).inc_by(time);
        }
        let backoff_seconds = Counter::new(
            "zillion_registry_store_backoff_seconds_total",
            "Time waited between requests to the registry's store of one operation.",
        )?;
        backoff_seconds.inc_by(stats.backoff().as_secs_f64());
        Ok(Self {
            requests,
            request_seconds,
            retries: by_operation(
                "zillion_registry_store_retries_total",
                "Requests to the registry's store that repeated a failed one.",
                &|operation| stats.retries(operation),
            )?,
            failures: by_operation(
                "zillion_registry_store_failures_total",
                "Operations on the registry's store that were given up after all retries.",
                &|operation| stats.failures(operation),
            )?,
            backoff_seconds,
            sent_bytes: one(
                "zillion_registry_store_sent_bytes_total",
                "Bytes of objects that the registry's store took.",
                stats.sent_bytes(),
            )?,
            received_bytes: one(
                "zillion_registry_store_received_bytes_total",
                "Bytes of objects that the registry's store delivered.",
                stats.received_bytes(),
            )?,
        })
    }

    fn all(&self) -> [&dyn Collector; 7] {
        [
            &self.requests,
            &self.request_seconds,
            &self.retries,
            &self.failures,
            &self.backoff_seconds,
            &self.sent_bytes,
            &self.received_bytes,
        ]
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};
    use zillion_device::Files;

    use super::*;

    #[test]
    fn counters_of_the_store_are_exported() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().to_str().unwrap(), Files::new()).unwrap();
        let registry = Registry::new();
        registry.register(Box::new(StoreMetrics::new(&store).unwrap())).unwrap();
        let text = || TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let wanted = |n| {
            format!(
                "zillion_registry_store_requests_total{{operation=\"put\",outcome=\"ok\"}} {n}\n"
            )
        };
        assert!(text().contains(&wanted(0)), "{}", text());
        store.put("a/b", vec![1, 2, 3].into()).unwrap();
        store.put("a/c", vec![1].into()).unwrap();
        assert!(text().contains(&wanted(2)), "{}", text());
        assert!(text().contains("zillion_registry_store_sent_bytes_total 4\n"));
        for series in ["retries_total{", "failures_total{", "backoff_seconds_total 0"] {
            assert!(text().contains(&format!("zillion_registry_store_{series}")), "{series}");
        }
    }
}
