//! The counts of the device that scores, as metrics. The device keeps plain counters, which each
//! scrape of `/metrics` reads. Without a device, all of them are 0.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};
use zillion_scorer::{DeviceStatistics, ScoringDevice};

/// A series: its name, its help text, and its value.
type Series = (&'static str, &'static str, fn(&DeviceStatistics) -> u64);

const GAUGES: [Series; 4] = [
    (
        "zillion_serving_device_budget_bytes",
        "Bytes of the device's memory that all models may use.",
        |counts| counts.budget_bytes,
    ),
    ("zillion_serving_device_used_bytes", "Bytes of this budget that are in use.", |counts| {
        counts.used_bytes
    }),
    ("zillion_serving_device_resident_rows", "Rows of tables that are on the device.", |counts| {
        counts.resident_rows
    }),
    (
        "zillion_serving_device_failed",
        "1 if the device has failed, so that it scores nothing any more.",
        |counts| u64::from(counts.has_failed),
    ),
];

const COUNTERS: [Series; 7] = [
    ("zillion_serving_device_batches_total", "Batches that the device has scored.", |counts| {
        counts.batches
    }),
    ("zillion_serving_device_requests_total", "Requests in the batches of the device.", |counts| {
        counts.requests
    }),
    ("zillion_serving_device_rows_total", "Rows in the batches of the device.", |counts| {
        counts.rows
    }),
    (
        "zillion_serving_device_keys_total",
        "Keys whose rows the batches of the device have read.",
        |counts| counts.keys,
    ),
    (
        "zillion_serving_device_hits_total",
        "Keys of these whose rows were on the device.",
        |counts| counts.hits,
    ),
    (
        "zillion_serving_device_uploaded_rows_total",
        "Rows of tables that were uploaded to the device.",
        |counts| counts.uploaded_rows,
    ),
    (
        "zillion_serving_device_versions_without_rows_total",
        "Loads of a version of which no row is on the device, because its changes did not fit.",
        |counts| counts.versions_without_rows,
    ),
];

/// The collector of the counts of a device, or of zeros.
pub(crate) struct DeviceMetrics {
    device: Option<Arc<ScoringDevice>>,
    descriptions: Vec<Desc>,
}

impl DeviceMetrics {
    /// Creates the collector.
    ///
    /// # Errors
    /// Returns an error if the description of a series is invalid, which is a bug.
    pub(crate) fn new(device: Option<Arc<ScoringDevice>>) -> prometheus::Result<Self> {
        let series = read_counts(device.as_deref())?;
        let descriptions = series.iter().flat_map(|one| one.desc()).cloned().collect();
        Ok(Self { device, descriptions })
    }
}

/// Returns the series with the values of this moment.
fn read_counts(device: Option<&ScoringDevice>) -> prometheus::Result<Vec<Box<dyn Collector>>> {
    let counts = device.map(ScoringDevice::statistics).unwrap_or_default();
    let mut all: Vec<Box<dyn Collector>> = Vec::new();
    for (name, help, value) in GAUGES {
        let gauge = Gauge::new(name, help)?;
        gauge.set(value(&counts) as f64);
        all.push(Box::new(gauge));
    }
    for (name, help, value) in COUNTERS {
        let counter = Counter::new(name, help)?;
        counter.inc_by(value(&counts) as f64);
        all.push(Box::new(counter));
    }
    Ok(all)
}

impl Collector for DeviceMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // The same series were created once before, so that this cannot fail.
        let series = read_counts(self.device.as_deref()).unwrap_or_default();
        series.iter().flat_map(|one| one.collect()).collect()
    }
}
