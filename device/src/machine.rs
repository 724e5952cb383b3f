//! The resources of this machine, and their use by this process and by other processes.
//!
//! A value that the system does not report is `None`.

mod file_system;
mod gpu;
pub(crate) mod huge;
mod memory_return;
pub(crate) mod numa;
mod priority;
pub mod process;
mod processor;

use std::ffi::CString;
use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

pub use file_system::file_system_kind;
pub use gpu::{Gpus, gpus};
pub use huge::{HugePages, huge_pages};
pub use memory_return::{limit_kept_memory, return_free_memory};
pub use priority::lower_thread_priority;
pub use processor::{clock_source, governor, instruction_sets, numa_nodes, processor_name};

/// Returns the number of processors that this process may use. The affinity of the process and the
/// quotas of its cgroups limit this number.
pub fn cpus() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// The sizes of the caches of one processor, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caches {
    /// The size of the first-level data cache.
    pub level1: Option<usize>,
    /// The size of the second-level cache.
    pub level2: Option<usize>,
    /// The size of the third-level cache, which is usually shared.
    pub level3: Option<usize>,
}

/// Returns the sizes of the caches of processor 0, as the kernel reports them.
pub fn caches() -> Caches {
    let mut caches = Caches::default();
    for index in 0..16 {
        let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
        let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size"))
        else {
            break;
        };
        if kind.trim() == "Instruction" {
            continue;
        }
        let size = parse_size(size.trim());
        match level.trim() {
            "1" => caches.level1 = size,
            "2" => caches.level2 = size,
            "3" => caches.level3 = size,
            _ => {}
        }
    }
    caches
}

/// Returns the memory that this process can use, in bytes: the smaller of the physical memory and
/// the limit of the cgroup.
pub fn total_memory() -> Option<u64> {
    let machine = kib_field("/proc/meminfo", "MemTotal:");
    let cgroup = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let cgroup = cgroup.and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(cgroup).min()
}

/// Returns the memory in bytes that can be allocated without swapping.
pub fn available_memory() -> Option<u64> {
    kib_field("/proc/meminfo", "MemAvailable:")
}

/// Returns the resident memory of this process, in bytes.
pub fn resident_memory() -> Option<u64> {
    kib_field("/proc/self/status", "VmRSS:")
}

/// Returns the highest resident memory of this process so far, in bytes.
pub fn peak_resident_memory() -> Option<u64> {
    kib_field("/proc/self/status", "VmHWM:")
}

/// The number of bytes of freed memory that the allocator keeps for the next request.
const KEPT: libc::c_int = 64 << 20;
/// The size in bytes from which the allocator maps each allocation separately.
const MAPPED_ALONE: libc::c_int = 32 << 20;

/// Makes the allocator keep up to 64 MiB of freed memory instead of returning it at once. Batches
/// are allocated and freed many times per second, and page faults for their memory would take a
/// third of the reader's time.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers and touches only the settings of the allocator; it refuses
    // a value that it does not accept, which changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_ALONE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// Makes this process end when it writes to a closed pipe (`zillion … | head`), like most programs
/// of the system. A command that only prints results should call this function, but a server should
/// not.
pub fn exit_on_closed_pipe() {
    // SAFETY: the default disposition of a signal is always valid. It replaces no handler of ours
    // (the standard library ignores this signal), and nothing but the disposition changes.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// The limits on open files of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimit {
    /// The limit at present, which the process may raise up to `hard`.
    pub soft: u64,
    /// The highest limit that the process may set.
    pub hard: u64,
}

/// Returns the limits on open files of this process, or `None` if the system does not report them.
pub fn file_limit() -> Option<FileLimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer, and the call does nothing else.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (status == 0).then_some(FileLimit { soft: limit.rlim_cur, hard: limit.rlim_max })
}

/// Raises the limit on open files of this process to the highest one that it may set, and returns
/// the limits, or `None` if the system does not report or change them.
pub fn raise_file_limit() -> Option<FileLimit> {
    let FileLimit { soft, hard } = file_limit()?;
    if soft >= hard {
        return Some(FileLimit { soft, hard });
    }
    let limit = libc::rlimit { rlim_cur: hard, rlim_max: hard };
    // SAFETY: the call only reads `limit`, which is valid, and changes only the limit of this
    // process. A higher limit closes no file and makes no descriptor invalid.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    if status == 0 { file_limit() } else { None }
}

/// Returns whether a call failed because this process, or the machine, has no file descriptor left.
pub fn is_out_of_files(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns the number of bytes that this user may still write on the file system of `path`, which
/// must exist.
pub fn free_disk(path: &Path) -> Option<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero is a valid `statvfs`: it consists of integers.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a C string that outlives the call, `answer` a valid place for the answer.
    let status = unsafe { libc::statvfs(path.as_ptr(), &mut answer) };
    (status == 0).then(|| answer.f_bavail.saturating_mul(answer.f_frsize))
}

/// The processor times at one moment. The difference of two such values is a [`CpuUse`].
#[derive(Clone, Copy, Debug)]
pub struct CpuTimes {
    taken: Instant,
    /// The processor time of this process, over all threads, in user and system mode.
    pub own: Duration,
    /// The processor time of all processes of the machine, or `None` if the system does not report
    /// it.
    pub all: Option<Duration>,
}

/// The average number of busy processors over a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuUse {
    /// The number of processors that this process used.
    pub own_cpus: f64,
    /// The number of processors that other processes used, or that the host of this virtual machine
    /// gave to other virtual machines. It is near zero during a clean benchmark.
    pub other_cpus: Option<f64>,
}

impl CpuTimes {
    /// Reads the present processor times.
    pub fn now() -> Self {
        Self { taken: Instant::now(), own: process_cpu_time(), all: machine_cpu_time() }
    }

    /// Returns the use of the processors between `earlier` and this moment.
    pub fn since(&self, earlier: &Self) -> CpuUse {
        let wall = self.taken.saturating_duration_since(earlier.taken).as_secs_f64().max(1e-9);
        let own = self.own.saturating_sub(earlier.own).as_secs_f64();
        let other = self.all.zip(earlier.all).map(|(now, then)| {
            let all = now.saturating_sub(then).as_secs_f64();
            // The two times come from clocks of different resolution, so the difference may be
            // below zero.
            ((all - own) / wall).max(0.0)
        });
        CpuUse { own_cpus: own / wall, other_cpus: other }
    }
}

/// Returns the processor time of this process.
fn process_cpu_time() -> Duration {
    // SAFETY: all-zero is a valid `rusage`: it consists of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a valid place for the answer. It cannot fail for RUSAGE_SELF.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let duration = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

/// Returns the processor time of the machine.
fn machine_cpu_time() -> Option<Duration> {
    // SAFETY: sysconf only reads a setting.
    let ticks_a_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    let ticks = parse_busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    (ticks_a_second > 0).then(|| Duration::from_secs_f64(ticks as f64 / ticks_a_second as f64))
}

/// Parses the first line of /proc/stat. Returns the sum of the busy ticks, which are all ticks
/// except idle and iowait. Guest time is part of user time.
fn parse_busy_ticks(text: &str) -> Option<u64> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, rest @ ..] = ticks.as_slice() else {
        return None;
    };
    Some(user + nice + system + rest.iter().take(3).sum::<u64>())
}

/// Parses a size such as "32K", "1024K", "8M" or a plain number of bytes.
fn parse_size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// Reads the field `name` of a file with lines such as `VmRSS:   1234 kB`, in bytes.
fn kib_field(path: &str, name: &str) -> Option<u64> {
    process::field(&fs::read_to_string(path).ok()?, name)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_files_is_raised() {
        let limit = raise_file_limit().expect("the system reports its limits");
        assert_eq!(limit.soft, limit.hard);
        assert_eq!(file_limit(), Some(limit));
        // A process that has no descriptor left gets this error from every call that needs one.
        assert!(is_out_of_files(&std::io::Error::from_raw_os_error(libc::EMFILE)));
        assert!(!is_out_of_files(&std::io::Error::from_raw_os_error(libc::ENOENT)));
    }

    #[test]
    fn texts_of_the_kernel_are_parsed() {
        assert_eq!(parse_size("32K"), Some(32 << 10));
        assert_eq!(parse_size("8M"), Some(8 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!((parse_size(""), parse_size("K"), parse_size("xM")), (None, None, None));
        assert_eq!(parse_busy_ticks("cpu  10 1 5 1000 7 2 3 4 99 0\ncpu0 1"), Some(25));
        assert_eq!(parse_busy_ticks("cpu  10 1"), None);
        assert_eq!(parse_busy_ticks(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_reports_its_resources() {
        let total = total_memory().unwrap();
        assert!(total > 1 << 26 && available_memory().unwrap() <= total);
        let (resident, peak) = (resident_memory().unwrap(), peak_resident_memory().unwrap());
        assert!(resident > 1 << 18 && peak > 1 << 18);
        assert!(cpus().get() >= 1);
        let limit = file_limit().unwrap();
        assert!(limit.soft > 0 && limit.soft <= limit.hard);
        huge_pages();
        caches();
        assert!(free_disk(&std::env::temp_dir()).is_some());
        assert_eq!(free_disk(Path::new("/nonexistent")), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_busy_thread_is_seen() {
        let start = CpuTimes::now();
        let clock = Instant::now();
        while clock.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        let used = CpuTimes::now().since(&start);
        // The value is below one if other processes use the processor at the same time. Other tests
        // may increase it.
        assert!(used.own_cpus > 0.05, "{used:?}");
        assert!(used.other_cpus.unwrap() >= 0.0, "{used:?}");
    }
}
