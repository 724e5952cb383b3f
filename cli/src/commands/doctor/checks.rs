//! The findings about the machine that do not need access to the disk.

use std::fs;
use std::time::Duration;

use zillion_device::gpu::LibraryInfo;
use zillion_device::gpu::cuda::libraries;
use zillion_device::machine::{self, HugePages};
use zillion_device::probe::{RowProbe, gemm_flops_per_second};
use zillion_device::simd::{self, Level};

use super::Finding;

/// The number of files that a server with the default limits may have open: its connections and the
/// files of its versions.
const FILES: u64 = 8192;
/// The number of memory mappings that is enough for a server with many open versions.
const MAPPINGS: u64 = 65_530;
/// The number of connections that can wait until the server accepts them.
const BACKLOG: u64 = 1024;
/// The number of rows of the slab for the measurement. The slab has 64 MiB, which is more than the
/// cache of any processor.
const PROBED_ROWS: u32 = 1 << 20;
/// The duration of each measurement.
const PROBED_TIME: Duration = Duration::from_millis(300);

/// The text of a property that the system does not report.
const NOT_REPORTED: &str = "not reported";

/// Returns all findings, in the order in which the command prints them.
pub(super) fn machine() -> Vec<Finding> {
    let mut findings = vec![
        processors(),
        instructions(),
        governor(),
        numa(),
        memory(),
        huge_pages(),
        rates(),
        open_files(),
        mappings(),
        backlog(),
        clock(),
        gpu(),
    ];
    findings.extend(gpu_libraries());
    findings
}

fn processors() -> Finding {
    let usable = machine::cpus();
    let name = machine::processor_name().unwrap_or_else(|| "unknown processor".to_owned());
    Finding::good("processors", format!("{usable} usable: {name}"))
}

fn instructions() -> Finding {
    let what = "instructions";
    let sets = machine::instruction_sets().join(" ");
    match simd::level() {
        Level::Avx512 => Finding::good(what, format!("kernels use AVX-512 (has {sets})")),
        Level::Avx2 => Finding::improve(
            what,
            format!("kernels use AVX2 (has {sets})"),
            "products run about twice as fast on a processor with AVX-512",
        ),
        Level::Scalar if cfg!(target_arch = "x86_64") => Finding::improve(
            what,
            format!("kernels use SSE2 (has {sets})"),
            "a virtual machine may hide what the processor can do: choose its `host` CPU type",
        ),
        Level::Scalar => Finding::note(what, format!("kernels use the baseline (has {sets})")),
    }
}

fn governor() -> Finding {
    let what = "frequency";
    match machine::governor().as_deref() {
        None => Finding::note(what, "not reported (usual on virtual machines)"),
        Some("powersave" | "conservative") => Finding::improve(
            what,
            "the governor saves power",
            "`cpupower frequency-set -g performance`: latencies get shorter and steadier",
        ),
        Some(governor) => Finding::good(what, format!("governor {governor}")),
    }
}

fn numa() -> Finding {
    let what = "memory nodes";
    match machine::numa_nodes() {
        None => Finding::note(what, NOT_REPORTED),
        Some(1) => Finding::good(what, "one"),
        Some(nodes) => Finding::improve(
            what,
            format!("{nodes}"),
            "run one process for each node: `numactl --cpunodebind=N --membind=N zillion …`; memory of another \
             node is about half as fast",
        ),
    }
}

fn memory() -> Finding {
    let what = "memory";
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64);
    let (Some(total), Some(available)) = (machine::total_memory(), machine::available_memory())
    else {
        return Finding::note(what, NOT_REPORTED);
    };
    let found = format!("{}, {} available", gib(total), gib(available));
    if available.saturating_mul(5) < total {
        let advice = "other processes hold most of it: `ps aux --sort=-rss | head`";
        return Finding::improve(what, found, advice);
    }
    Finding::good(what, found)
}

fn huge_pages() -> Finding {
    let what = "huge pages";
    match machine::huge_pages() {
        None => Finding::note(what, NOT_REPORTED),
        Some(HugePages::Always) => Finding::good(what, "always"),
        Some(HugePages::Advised) => {
            Finding::good(what, "where a program asks for them, as tables do")
        }
        Some(HugePages::Never) => Finding::improve(
            what,
            "never",
            "`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`: random access to large \
             tables becomes about twice as fast",
        ),
    }
}

/// Measures the rates of one thread. The rates have no grade, because they are used only to compare
/// machines.
fn rates() -> Finding {
    let gflops = gemm_flops_per_second(PROBED_TIME) / 1e9;
    match RowProbe::new(PROBED_ROWS) {
        Err(error) => Finding::note("one thread", format!("{gflops:.0} GFLOP/s; {error}")),
        Ok(mut probe) => {
            let reads = probe.reads_per_second(PROBED_TIME) / 1e6;
            let updates = probe.updates_per_second(PROBED_TIME) / 1e6;
            let rows = format!("{reads:.0} M random 64-byte rows/s read, {updates:.0} M updated");
            Finding::note("one thread", format!("{gflops:.0} GFLOP/s of products, {rows}"))
        }
    }
}

fn open_files() -> Finding {
    let what = "open files";
    match machine::file_limit() {
        None => Finding::note(what, NOT_REPORTED),
        Some(limit) if limit.soft >= FILES => Finding::good(what, format!("up to {}", limit.soft)),
        Some(limit) => {
            let found = format!("up to {}", limit.soft);
            let unit = format!("in a systemd unit `LimitNOFILE={FILES}`");
            let advice = match limit.hard.min(FILES) {
                more if more > limit.soft => format!("`ulimit -n {more}`, {unit}"),
                _ => format!(
                    "{unit}, or as root in /etc/security/limits.conf, because the hard limit is as low"
                ),
            };
            Finding::improve(what, found, advice)
        }
    }
}

fn mappings() -> Finding {
    let advice = format!("`sudo sysctl vm.max_map_count={MAPPINGS}`: versions are mapped files");
    kernel_limit("mappings", "/proc/sys/vm/max_map_count", MAPPINGS, advice)
}

fn backlog() -> Finding {
    let advice =
        format!("`sudo sysctl net.core.somaxconn={BACKLOG}` for servers with many clients");
    kernel_limit("waiting connections", "/proc/sys/net/core/somaxconn", BACKLOG, advice)
}

/// Makes the finding about a limit of the kernel, which should be at least `enough`.
fn kernel_limit(what: &'static str, path: &str, enough: u64, advice: String) -> Finding {
    let limit = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    match limit {
        None => Finding::note(what, NOT_REPORTED),
        Some(limit) if limit >= enough => Finding::good(what, format!("up to {limit}")),
        Some(limit) => Finding::improve(what, format!("up to {limit}"), advice),
    }
}

fn clock() -> Finding {
    let what = "clock";
    match machine::clock_source().as_deref() {
        None => Finding::note(what, NOT_REPORTED),
        Some(source @ ("hpet" | "acpi_pm" | "xen" | "jiffies")) => Finding::improve(
            what,
            format!("read from {source}"),
            "reading the time is slow; check whether \
             /sys/devices/system/clocksource/clocksource0/available_clocksource lists tsc",
        ),
        Some(source) => Finding::good(what, format!("read from {source}")),
    }
}

fn gpu() -> Finding {
    match machine::gpus() {
        None => Finding::note("gpu", "no NVIDIA driver: everything runs on processors"),
        Some(gpus) => {
            let devices = gpus.devices.join(", ");
            let found = format!(
                "driver {}: {devices}; `zillion gpu check` checks it, and training uses it (`run.device`)",
                gpus.driver
            );
            Finding::note("gpu", found)
        }
    }
}

/// Returns a finding for each library of the GPU. Without a driver, a missing library is not a
/// problem.
fn gpu_libraries() -> Vec<Finding> {
    let has_driver = machine::gpus().is_some();
    let finding = |library: LibraryInfo| {
        let LibraryInfo { name, path, version, problem } = library;
        let path = path.unwrap_or_else(|| "not found".to_owned());
        let found = version.map_or(path.clone(), |version| format!("{version}, {path}"));
        match problem {
            None => Finding::good(name, found),
            Some(problem) if has_driver => {
                Finding::improve(name, found, format!("{name} {problem}"))
            }
            Some(problem) => Finding::note(name, format!("{found}; {problem}")),
        }
    };
    libraries().into_iter().map(finding).collect()
}
