//! The counters of the registry's store as metrics: requests by outcome, retries, and the time
//! waited between them.
//!
//! The store keeps plain counters, which each scrape of `/metrics` reads.

use prometheus::core::Collector;
use prometheus::{CounterVec, Opts};
use zillion_store::{Operation, Outcome, Store, StoreStats};

use crate::metrics::Scraped;

/// A series with a value for each operation: its name, its help text, and the value.
type ByOperation = (&'static str, &'static str, fn(&StoreStats, Operation) -> f64);

const BY_OPERATION: [ByOperation; 3] = [
    (
        "zillion_registry_store_request_seconds_total",
        "Time in requests to the registry's store.",
        |stats, operation| stats.request_time(operation).as_secs_f64(),
    ),
    (
        "zillion_registry_store_retries_total",
        "Requests to the registry's store that repeated a failed one.",
        |stats, operation| stats.retries(operation) as f64,
    ),
    (
        "zillion_registry_store_failures_total",
        "Operations on the registry's store that were given up after all retries.",
        |stats, operation| stats.failures(operation) as f64,
    ),
];

/// A series with one value: its name, its help text, and the value.
type Plain = (&'static str, &'static str, fn(&StoreStats) -> f64);

const PLAIN: [Plain; 3] = [
    (
        "zillion_registry_store_backoff_seconds_total",
        "Time waited between requests to the registry's store of one operation.",
        |stats| stats.backoff().as_secs_f64(),
    ),
    (
        "zillion_registry_store_sent_bytes_total",
        "Bytes of objects that the registry's store took.",
        |stats| stats.sent_bytes() as f64,
    ),
    (
        "zillion_registry_store_received_bytes_total",
        "Bytes of objects that the registry's store delivered.",
        |stats| stats.received_bytes() as f64,
    ),
];

/// Returns the collector of the counters of a store.
///
/// # Errors
/// Returns an error if the description of a series is invalid, which is a bug.
pub(crate) fn store_metrics(store: Store) -> prometheus::Result<impl Collector> {
    Scraped::new(move || read_counters(store.stats()))
}

/// Returns the series with the values of this moment.
fn read_counters(stats: &StoreStats) -> prometheus::Result<Vec<CounterVec>> {
    let requests = CounterVec::new(
        Opts::new(
            "zillion_registry_store_requests_total",
            "Requests to the registry's store, by operation and outcome.",
        ),
        &["operation", "outcome"],
    )?;
    for operation in Operation::ALL {
        for outcome in Outcome::ALL {
            let labels = [operation.name(), outcome.name()];
            requests.with_label_values(&labels).inc_by(stats.requests(operation, outcome) as f64);
        }
    }
    let mut all = vec![requests];
    for (name, help, value) in BY_OPERATION {
        let series = CounterVec::new(Opts::new(name, help), &["operation"])?;
        for operation in Operation::ALL {
            series.with_label_values(&[operation.name()]).inc_by(value(stats, operation));
        }
        all.push(series);
    }
    for (name, help, value) in PLAIN {
        let series = CounterVec::new(Opts::new(name, help), &[])?;
        series.with_label_values::<&str>(&[]).inc_by(value(stats));
        all.push(series);
    }
    Ok(all)
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
        registry.register(Box::new(store_metrics(store.clone()).unwrap())).unwrap();
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
