//! The metrics of loading: outcomes of loads, freshness of versions, contents of tables and cache.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus::{
    HistogramVec, IntCounterVec, IntGaugeVec, Registry, exponential_buckets,
    register_histogram_vec_with_registry, register_int_counter_vec_with_registry,
    register_int_gauge_vec_with_registry,
};
use zillion_registry::{CacheCounts, CacheSize, Error as RegistryError};
use zillion_rows::RowSource as _;
use zillion_scorer::{Error, Servable};
use zillion_store::Error as StoreError;

/// The series for the loading of versions, by model.
#[derive(Clone, Debug)]
pub(crate) struct Loading {
    loads: IntCounterVec,
    rollbacks: IntCounterVec,
    freshness: HistogramVec,
    publish_to_servable: HistogramVec,
    published_at: IntGaugeVec,
    newest_event_at: IntGaugeVec,
    table_layers: IntGaugeVec,
    table_rows: IntGaugeVec,
    table_bytes: IntGaugeVec,
    items: IntGaugeVec,
    item_bytes: IntGaugeVec,
    packed_bytes: IntGaugeVec,
    cache_files: IntGaugeVec,
    cache_bytes: IntGaugeVec,
    fetched_files: IntCounterVec,
    fetched_bytes: IntCounterVec,
    merges: IntCounterVec,
    merged_bytes: IntCounterVec,
    panics: IntCounterVec,
    damaged_files: IntCounterVec,
    write_failures: IntCounterVec,
    registry_age: IntGaugeVec,
    stale: IntGaugeVec,
}

/// The outcomes of an attempt to load a version.
///
/// - `absent`: no version was published, or the pointer was never set.
/// - `store`: the store of the registry returned an error.
/// - `chain`: a manifest, or a link of the chain, is damaged.
/// - `file`: a file is missing, or differs from what was published.
/// - `parity`: the scores of the parity rows differ.
/// - `trust`: no trusted key signed a version or a pointer move, or the move was replayed or its
///   validity has ended.
const OUTCOMES: [&str; 8] = [OK, "absent", "store", "chain", "file", "parity", "trust", "other"];

/// The outcome of an attempt that has succeeded.
const OK: &str = "ok";

/// Returns the outcome of an attempt that has failed.
fn classify_failure(error: &Error) -> &'static str {
    match error {
        Error::Parity { .. } | Error::Rounding { .. } => "parity",
        Error::Items(_) => "file",
        Error::Registry(error) => match error {
            RegistryError::NoModel { .. }
            | RegistryError::NoVersion { .. }
            | RegistryError::NoPointer { .. } => "absent",
            RegistryError::Store(StoreError::Store { .. }) => "store",
            RegistryError::Manifest { .. } | RegistryError::Chain { .. } => "chain",
            RegistryError::File { .. } => "file",
            RegistryError::Access(_)
            | RegistryError::Replayed { .. }
            | RegistryError::Expired { .. }
            | RegistryError::Memory { .. } => "trust",
            _ => "other",
        },
        _ => "other",
    }
}

impl Loading {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register_int_counter_vec_with_registry!(name, help, labels, registry)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            register_int_gauge_vec_with_registry!(name, help, labels, registry)
        };
        let age = |name: &str, help: &str| {
            // The buckets go from 50 ms to 19 days by factors of two.
            let buckets = exponential_buckets(0.05, 2.0, 26)?;
            register_histogram_vec_with_registry!(name, help, &["model"], buckets, registry)
        };
        let (of_model, of_table) = (&["model"], &["model", "table"]);
        Ok(Self {
            loads: counter(
                "zillion_serving_loads_total",
                "Attempts to load a version, by outcome.",
                &["model", "outcome"],
            )?,
            rollbacks: counter(
                "zillion_serving_rollbacks_total",
                "Changes of the current version to an older one.",
                of_model,
            )?,
            freshness: age(
                "zillion_serving_freshness_seconds",
                "Time from the newest event in the training data of a version to its first possible answer.",
            )?,
            publish_to_servable: age(
                "zillion_serving_publish_to_servable_seconds",
                "Time from the publication of a version to its first possible answer.",
            )?,
            published_at: gauge(
                "zillion_serving_version_published_timestamp_seconds",
                "Time of publication of the current version, in seconds since 1970.",
                of_model,
            )?,
            newest_event_at: gauge(
                "zillion_serving_newest_event_timestamp_seconds",
                "Time of the newest event of the current version, in seconds since 1970; 0 if unknown.",
                of_model,
            )?,
            table_layers: gauge(
                "zillion_serving_table_layers",
                "Layers of the current version that have rows of a table.",
                of_table,
            )?,
            table_rows: gauge(
                "zillion_serving_table_rows",
                "Rows of a table in the layers of the current version; a row in several layers counts in each.",
                of_table,
            )?,
            table_bytes: gauge(
                "zillion_serving_table_bytes",
                "Mapped bytes of a table in the layers of the current version.",
                of_table,
            )?,
            items: gauge(
                "zillion_serving_items",
                "Items that the current version can retrieve.",
                of_model,
            )?,
            item_bytes: gauge(
                "zillion_serving_item_bytes",
                "Bytes of the ids and vectors of these items in memory.",
                of_model,
            )?,
            packed_bytes: gauge(
                "zillion_serving_packed_bytes",
                "Bytes of the packed dense weights of the current version in memory.",
                of_model,
            )?,
            cache_files: gauge(
                "zillion_serving_cache_files",
                "Files in the model's cache folder after the last load.",
                of_model,
            )?,
            cache_bytes: gauge("zillion_serving_cache_bytes", "Bytes of these files.", of_model)?,
            fetched_files: counter(
                "zillion_serving_fetched_files_total",
                "Files that were fetched from the registry into the cache.",
                of_model,
            )?,
            fetched_bytes: counter(
                "zillion_serving_fetched_bytes_total",
                "Bytes of the fetched files.",
                of_model,
            )?,
            merges: counter(
                "zillion_serving_merges_total",
                "Runs of layers that were merged to one.",
                of_model,
            )?,
            merged_bytes: counter(
                "zillion_serving_merged_bytes_total",
                "Bytes that the merges wrote.",
                of_model,
            )?,
            panics: counter(
                "zillion_serving_loader_panics_total",
                "Panics of the loader, each of which refused a version or ended one of its rounds.",
                of_model,
            )?,
            damaged_files: counter(
                "zillion_serving_cache_damaged_files_total",
                "Cached files that had changed on the disk and were removed.",
                of_model,
            )?,
            write_failures: counter(
                "zillion_serving_registry_write_failures_total",
                "Leases and proofs that the registry did not take.",
                of_model,
            )?,
            registry_age: gauge(
                "zillion_serving_registry_age_seconds",
                "Time since the last answer of the registry.",
                of_model,
            )?,
            stale: gauge(
                "zillion_serving_stale",
                "1 while the registry does not answer, or its last answer is too old.",
                of_model,
            )?,
        })
    }

    /// Creates the series of a model, so that an event that has not happened yet is 0 and not
    /// absent.
    pub(crate) fn begin(&self, model: &str) {
        for outcome in OUTCOMES {
            self.loads.with_label_values(&[model, outcome]).inc_by(0);
        }
        let counters = [
            &self.rollbacks,
            &self.fetched_files,
            &self.fetched_bytes,
            &self.merges,
            &self.merged_bytes,
            &self.panics,
            &self.damaged_files,
            &self.write_failures,
        ];
        counters.iter().for_each(|counter| counter.with_label_values(&[model]).inc_by(0));
        let gauges = [
            &self.published_at,
            &self.newest_event_at,
            &self.items,
            &self.item_bytes,
            &self.packed_bytes,
            &self.cache_files,
            &self.cache_bytes,
        ];
        gauges.iter().for_each(|gauge| gauge.with_label_values(&[model]).set(0));
        for histogram in [&self.freshness, &self.publish_to_servable] {
            histogram.with_label_values(&[model]);
        }
    }

    pub(crate) fn record_load(&self, model: &str) {
        self.loads.with_label_values(&[model, OK]).inc();
    }

    pub(crate) fn record_failure(&self, model: &str, error: &Error) {
        self.loads.with_label_values(&[model, classify_failure(error)]).inc();
    }

    /// Counts a panic of the loader.
    pub(crate) fn record_panic(&self, model: &str) {
        self.panics.with_label_values(&[model]).inc();
    }

    /// Counts cached files that had changed on the disk.
    pub(crate) fn record_damage(&self, model: &str, files: usize) {
        self.damaged_files.with_label_values(&[model]).inc_by(files as u64);
    }

    /// Counts a lease or a proof that the registry did not take.
    pub(crate) fn record_write_failure(&self, model: &str) {
        self.write_failures.with_label_values(&[model]).inc();
    }

    /// Records the time since the last answer of the registry.
    pub(crate) fn set_age(&self, model: &str, age: Duration, is_stale: bool) {
        self.registry_age.with_label_values(&[model]).set(to_gauge(age.as_secs()));
        self.stale.with_label_values(&[model]).set(i64::from(is_stale));
    }

    /// Removes the gauges of a model that is no longer served.
    pub(crate) fn forget(&self, model: &str) {
        for gauges in [&self.registry_age, &self.stale] {
            // A model that was never scraped has no series here.
            let _ = gauges.remove_label_values(&[model]);
        }
    }

    pub(crate) fn record_rollback(&self, model: &str) {
        self.rollbacks.with_label_values(&[model]).inc();
    }

    /// Records the age of a version that can answer for the first time, and of its newest event.
    pub(crate) fn record_servable(&self, version: &Servable) {
        let manifest = version.manifest();
        let now = SystemTime::now();
        let model = manifest.model.as_str();
        // A clock that is behind the publisher's gives the age 0.
        let age = |at: SystemTime| now.duration_since(at).unwrap_or_default().as_secs_f64();
        let published = manifest.published();
        self.publish_to_servable.with_label_values(&[model]).observe(age(published));
        if let Some(ms) = manifest.origin.newest_event_ms {
            let event = UNIX_EPOCH + Duration::from_millis(ms);
            self.freshness.with_label_values(&[model]).observe(age(event));
        }
    }

    /// Records the version that answers by default. `gone` has the tables of the previous
    /// version that this version does not have.
    pub(crate) fn record_current(&self, version: &Servable, gone: &[String]) {
        let manifest = version.manifest();
        let model = manifest.model.as_str();
        for table in gone {
            for series in [&self.table_layers, &self.table_rows, &self.table_bytes] {
                // A series that does not exist need not be removed.
                let _ = series.remove_label_values(&[model, table]);
            }
        }
        let event = manifest.origin.newest_event_ms.unwrap_or(0) / 1000;
        self.published_at.with_label_values(&[model]).set(to_gauge(manifest.published_ms / 1000));
        self.newest_event_at.with_label_values(&[model]).set(to_gauge(event));
        let count = |of: &zillion_scorer::Retrievable| (of.items().len() as u64, of.bytes() as u64);
        let counts = version.retrievable().map_or((0, 0), count);
        self.items.with_label_values(&[model]).set(to_gauge(counts.0));
        self.item_bytes.with_label_values(&[model]).set(to_gauge(counts.1));
        let packed = version.packed_bytes() as u64;
        self.packed_bytes.with_label_values(&[model]).set(to_gauge(packed));
        let layers = version.rows().layers();
        for (index, table) in version.rows().tables().iter().enumerate() {
            let labels = &[model, table.name.as_str()];
            let with_rows = layers.iter().filter(|layer| layer.rows(index) > 0).count();
            self.table_layers.with_label_values(labels).set(to_gauge(with_rows as u64));
            let rows = layers.iter().map(|layer| layer.rows(index)).sum();
            self.table_rows.with_label_values(labels).set(to_gauge(rows));
            let bytes = layers.iter().map(|layer| layer.bytes(index)).sum();
            self.table_bytes.with_label_values(labels).set(to_gauge(bytes));
        }
    }

    /// Records the work of the cache since `before`, and its present contents.
    pub(crate) fn record_cache(
        &self,
        model: &str,
        before: CacheCounts,
        now: CacheCounts,
        size: Option<CacheSize>,
    ) {
        let add = |series: &IntCounterVec, before: u64, now: u64| {
            series.with_label_values(&[model]).inc_by(now - before);
        };
        add(&self.fetched_files, before.fetched_files, now.fetched_files);
        add(&self.fetched_bytes, before.fetched_bytes, now.fetched_bytes);
        add(&self.merges, before.merges, now.merges);
        add(&self.merged_bytes, before.merged_bytes, now.merged_bytes);
        if let Some(size) = size {
            self.cache_files.with_label_values(&[model]).set(to_gauge(size.files));
            self.cache_bytes.with_label_values(&[model]).set(to_gauge(size.bytes));
        }
    }
}

fn to_gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
