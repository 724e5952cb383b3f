//! The `process_*` series that Prometheus' own clients have, and the memory that the process holds
//! in reserve. The values are read from /proc on each request.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};
use zillion_device::machine::{file_limit, process};
use zillion_device::slab::reserve_bytes;

/// A function that reads a number of this process. It returns `None` if /proc does not contain the
/// number.
type Figure = fn() -> Option<f64>;

/// The gauges. Each has a name, a help text and a function for its value.
const GAUGES: [(&str, &str, Figure); 7] = [
    ("process_resident_memory_bytes", "Resident memory in bytes.", || {
        status()?.resident.map(|bytes| bytes as f64)
    }),
    ("process_virtual_memory_bytes", "Virtual memory in bytes, mapped files included.", || {
        status()?.address_space.map(|bytes| bytes as f64)
    }),
    ("process_threads", "Number of threads.", || status()?.threads.map(|threads| threads as f64)),
    ("process_open_fds", "Number of open file descriptors.", || {
        // Reading the folder opens one more file descriptor.
        let files = std::fs::read_dir("/proc/self/fd").ok()?;
        Some(files.count().saturating_sub(1) as f64)
    }),
    ("process_max_fds", "Largest number of open file descriptors.", || {
        let limit = file_limit().filter(|limit| limit.soft != u64::MAX)?;
        Some(limit.soft as f64)
    }),
    (
        "process_start_time_seconds",
        "Start of the process, in seconds since 1970.",
        process::start_time,
    ),
    ("zillion_memory_reserve_bytes", "Memory that is ready for tables that grow.", || {
        Some(reserve_bytes() as f64)
    }),
];

fn status() -> Option<process::ProcessStatus> {
    process::ProcessStatus::read(std::process::id()).ok()
}

/// The series of this process: the numbers of the kernel, and the reserve of memory.
pub(crate) struct Process {
    cpu_seconds: Counter,
    gauges: Vec<(Gauge, Figure)>,
}

impl Process {
    pub(crate) fn new() -> prometheus::Result<Self> {
        let help = "Processor time of the process, in seconds.";
        let gauges =
            GAUGES.iter().map(|(name, help, figure)| Ok((Gauge::new(*name, *help)?, *figure)));
        Ok(Self {
            cpu_seconds: Counter::new("process_cpu_seconds_total", help)?,
            gauges: gauges.collect::<prometheus::Result<_>>()?,
        })
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = self.gauges.iter().flat_map(|(gauge, _)| gauge.desc());
        self.cpu_seconds.desc().into_iter().chain(gauges).collect()
    }

    /// Reads all numbers again. If /proc does not contain a number, the series keeps its last
    /// value.
    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(seconds) = process::cpu_seconds(std::process::id()) {
            self.cpu_seconds.inc_by((seconds - self.cpu_seconds.get()).max(0.0));
        }
        let gauges = self.gauges.iter().flat_map(|(gauge, figure)| {
            figure().into_iter().for_each(|value| gauge.set(value));
            gauge.collect()
        });
        self.cpu_seconds.collect().into_iter().chain(gauges).collect()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let registry = super::super::registry("test").unwrap();
        let families = registry.gather();
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name() == name).unwrap();
            let metric = &family.get_metric()[0];
            metric.get_gauge().get_value().max(metric.get_counter().get_value())
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_virtual_memory_bytes") >= value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0 && value("process_max_fds") > 3.0);
        assert!(value("process_threads") >= 1.0);
        // The time must be after 2020 and not in the future.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let start = value("process_start_time_seconds");
        assert!((1.6e9..=now.as_secs_f64() + 2.0).contains(&start), "{start}");
        assert_eq!(value("zillion_build_info"), 1.0);
        assert!(Process::new().unwrap().desc().len() == 8);
    }
}
