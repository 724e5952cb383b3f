//! The counters of versions under the names that Triton exports, by model and version.
//!
//! Each scrape reads the versions that are loaded at that moment. The series of a version that
//! was closed are not in the next scrape, so that their number does not grow with the versions.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{CounterVec, Opts};

use super::Totals;
use crate::metrics::Scraped;
use crate::repository::Hosts;

/// A series: its name, its help text, and its value in the statistics.
type Series = (&'static str, &'static str, fn(&Totals) -> f64);

const SERIES: [Series; 9] = [
    ("nv_inference_request_success", "Requests that were answered.", |t| t.success.count as f64),
    ("nv_inference_request_failure", "Requests that were not answered with scores.", |t| {
        t.fail.count as f64
    }),
    ("nv_inference_count", "Rows that were scored.", |t| t.inference_count as f64),
    ("nv_inference_exec_count", "Runs of the model.", |t| t.execution_count as f64),
    ("nv_inference_request_duration_us", "Time of answered requests, in microseconds.", |t| {
        micros(t.success.nanos)
    }),
    (
        "nv_inference_queue_duration_us",
        "Time that answered requests waited for a thread, in microseconds.",
        |t| micros(t.queue.nanos),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Time from bodies to raw columns, in microseconds.",
        |t| micros(t.compute_input.nanos),
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Time of encoding, lookup and model, in microseconds.",
        |t| micros(t.compute_infer.nanos),
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Time from scores to answers, in microseconds.",
        |t| micros(t.compute_output.nanos),
    ),
];

fn micros(nanos: u64) -> f64 {
    (nanos / 1000) as f64
}

/// Returns the collector of these series for the versions of `hosts`.
pub(crate) fn triton_series(hosts: Arc<Hosts>) -> prometheus::Result<impl Collector> {
    Scraped::new(move || {
        let series = |&(name, help, value): &Series| {
            let series = CounterVec::new(Opts::new(name, help), &["model", "version"])?;
            for host in hosts.all() {
                for (version, statistics) in &host.open().statistics {
                    let labels = [host.name(), &version.to_string()];
                    series.with_label_values(&labels).inc_by(value(&statistics.totals()));
                }
            }
            Ok(series)
        };
        SERIES.iter().map(series).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::{Registry, TextEncoder};
    use zillion_registry::VersionId;

    use super::*;
    use crate::config::Follow;
    use crate::host::Host;
    use crate::statistics::{Begun, Spent, VersionStatistics};

    #[test]
    fn series_belong_to_loaded_versions() {
        let hosts = Arc::new(Hosts::default());
        let host = Arc::new(Host::new("m", Follow::Latest, true, None));
        hosts.insert(host.clone());
        let registry = Registry::new();
        registry.register(Box::new(triton_series(hosts.clone()).unwrap())).unwrap();
        let text = || TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert_eq!(text(), "");
        let statistics = Arc::new(VersionStatistics::default());
        let spent =
            Spent { infer: Duration::from_millis(3), rows: 5, executions: 1, ..Spent::default() };
        Begun::now(&statistics).finish(&spent);
        host.set_statistics(VersionId(7), statistics);
        let said = text();
        for line in [
            "nv_inference_count{model=\"m\",version=\"7\"} 5",
            "nv_inference_request_success{model=\"m\",version=\"7\"} 1",
            "nv_inference_compute_infer_duration_us{model=\"m\",version=\"7\"} 3000",
            "# TYPE nv_inference_exec_count counter",
        ] {
            assert!(said.contains(line), "{line}:\n{said}");
        }
        hosts.remove("m");
        assert_eq!(text(), "");
    }
}
