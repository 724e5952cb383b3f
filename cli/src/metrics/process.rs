//! The `process_*` series that Prometheus' own clients have, read from /proc on each request, and
//! the memory that the process holds in reserve.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};
use zillion_device::machine::{file_limit, process};
use zillion_device::slab::reserve_bytes;

/// The series of this process: the figures that the kernel reports, and its reserve of memory.
pub(crate) struct Process {
    cpu_seconds: Counter,
    resident: Gauge,
    virtual_memory: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
    threads: Gauge,
    start_time: Gauge,
    reserve: Gauge,
}

impl Process {
    pub(crate) fn new() -> prometheus::Result<Self> {
        let series = Self {
            cpu_seconds: Counter::new(
                "process_cpu_seconds_total",
                "Processor time of the process, in seconds.",
            )?,
            resident: Gauge::new("process_resident_memory_bytes", "Resident memory in bytes.")?,
            virtual_memory: Gauge::new(
                "process_virtual_memory_bytes",
                "Virtual memory in bytes, mapped files included.",
            )?,
            open_fds: Gauge::new("process_open_fds", "Open file descriptors.")?,
            max_fds: Gauge::new("process_max_fds", "File descriptors that may be open.")?,
            threads: Gauge::new("process_threads", "Threads.")?,
            start_time: Gauge::new(
                "process_start_time_seconds",
                "When the process began, in seconds since 1970.",
            )?,
            reserve: Gauge::new(
                "zillion_memory_reserve_bytes",
                "Memory that is ready for tables that grow.",
            )?,
        };
        series.start_time.set(process::start_time().unwrap_or_default());
        Ok(series)
    }

    fn gauges(&self) -> [&Gauge; 7] {
        [
            &self.resident,
            &self.virtual_memory,
            &self.open_fds,
            &self.max_fds,
            &self.threads,
            &self.start_time,
            &self.reserve,
        ]
    }

    /// Reads the figures again. A figure that /proc does not contain keeps its last value.
    fn update(&self) {
        self.reserve.set(reserve_bytes() as f64);
        if let Some(seconds) = process::cpu_seconds(std::process::id()) {
            self.cpu_seconds.inc_by((seconds - self.cpu_seconds.get()).max(0.0));
        }
        if let Ok(status) = process::ProcessStatus::read(std::process::id()) {
            for (figure, gauge) in [
                (status.resident, &self.resident),
                (status.address_space, &self.virtual_memory),
                (status.threads, &self.threads),
            ] {
                figure.into_iter().for_each(|figure| gauge.set(figure as f64));
            }
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            // Reading the folder opens one more file descriptor.
            self.open_fds.set(files.count().saturating_sub(1) as f64);
        }
        if let Some(limit) = file_limit().filter(|limit| limit.soft != u64::MAX) {
            self.max_fds.set(limit.soft as f64);
        }
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = self.gauges().into_iter().flat_map(Collector::desc);
        self.cpu_seconds.desc().into_iter().chain(gauges).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.update();
        let gauges = self.gauges().into_iter().flat_map(Collector::collect);
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
