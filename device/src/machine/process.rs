//! The memory, the threads and the processor time of a process, as the kernel reports them.

use std::{fs, io};

/// The number of ticks per second in /proc/PID/stat. It is a constant of the Linux interface.
const TICKS: f64 = 100.0;

/// The memory in bytes and the number of threads of a process. A value that the kernel does not
/// report is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The resident memory of the process in total.
    pub resident: Option<u64>,
    /// The resident memory that no other process shares, which is mainly the heap.
    pub anonymous: Option<u64>,
    /// The resident memory of mapped files, whose pages other processes may share.
    pub mapped_files: Option<u64>,
    /// The size of the address space, including mapped files.
    pub address_space: Option<u64>,
    /// The number of threads.
    pub threads: Option<u64>,
}

impl ProcessStatus {
    /// Reads the present status of a process.
    pub fn read(pid: u32) -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string(format!("/proc/{pid}/status"))?))
    }

    fn parse(text: &str) -> Self {
        let bytes = |name: &str| field(text, name)?.checked_mul(1024);
        Self {
            resident: bytes("VmRSS:"),
            anonymous: bytes("RssAnon:"),
            mapped_files: bytes("RssFile:"),
            address_space: bytes("VmSize:"),
            threads: field(text, "Threads:"),
        }
    }
}

/// Returns the resident memory of a process in bytes. The bytes of a shared page are divided by the
/// number of processes that share it.
pub fn proportional_memory(pid: u32) -> io::Result<Option<u64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(field(&text, "Pss:").and_then(|kib| kib.checked_mul(1024)))
}

/// Returns the time when this process began, in seconds since 1970.
pub fn start_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    Some(field(&system, "btime")? as f64 + parse_start(&stat)?)
}

/// Returns the processor time that a process has used so far, in seconds.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    parse_cpu(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns the number in a line such as `VmRSS:   1234 kB` or `Threads:   3`.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Parses field 22 of `/proc/PID/stat`. Returns the start of the process in seconds after the start
/// of the machine.
fn parse_start(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().nth(19)?.parse::<f64>().ok()? / TICKS)
}

/// Parses fields 14 and 15 of `/proc/PID/stat`, and returns their sum in seconds. The second field
/// is a name in brackets, which may contain any text.
fn parse_cpu(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    Some((times.next()?.ok()? + times.next()?.ok()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_kernel_are_parsed() {
        let text = "Name:\tx\nVmRSS:\t  102400 kB\nRssAnon:\t 512 kB\nThreads:\t3\n";
        let status = ProcessStatus::parse(text);
        assert_eq!([status.resident, status.anonymous], [Some(100 << 20), Some(512 << 10)]);
        assert_eq!((status.mapped_files, status.threads), (None, Some(3)));
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 99 1 2";
        assert_eq!(parse_cpu(stat), Some(3.0));
        assert_eq!(parse_cpu("7 (a) S 1"), None);
        assert_eq!(parse_start(stat), Some(0.99));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_and_threads() {
        let pid = std::process::id();
        let status = ProcessStatus::read(pid).unwrap();
        assert!(status.resident.unwrap() > 0 && status.threads.unwrap() > 0, "{status:?}");
        assert!(proportional_memory(pid).unwrap().unwrap() > 0);
        assert!(cpu_seconds(pid).is_some());
    }
}
