//! What the kernel says about another process: its memory, and the time that processors spent on it.

use anyhow::{Context, Result};
use serde::Serialize;

/// Ticks a second in /proc/PID/stat: a constant of Linux' interface to programs.
const TICKS: f64 = 100.0;

/// Memory of a process, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Memory {
    /// Resident, all of it.
    rss_mib: f64,
    /// Its own: the heap.
    anon_mib: f64,
    /// Of mapped files; who else maps them has the same pages.
    file_mib: f64,
    /// Resident, each page divided by the number of processes that have it.
    pss_mib: f64,
}

impl Memory {
    /// Of a process, now.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
        };
        let (status, rollup) = (read("status")?, read("smaps_rollup")?);
        Ok(Self {
            rss_mib: mib(&status, "VmRSS:"),
            anon_mib: mib(&status, "RssAnon:"),
            file_mib: mib(&status, "RssFile:"),
            pss_mib: mib(&rollup, "Pss:"),
        })
    }
}

/// A line like `VmRSS:   1234 kB`, in MiB to a tenth.
fn mib(text: &str, name: &str) -> f64 {
    (number(text, name).unwrap_or_default() / 102.4).round() / 10.0
}

/// The number of a line like `VmRSS:   1234 kB` or `Threads:   3`.
pub(crate) fn number(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// File descriptors that this process may have open; `None` where there is no limit or the system does not tell.
pub(crate) fn max_fds() -> Option<f64> {
    number(&std::fs::read_to_string("/proc/self/limits").ok()?, "Max open files")
}

/// When this process began, in seconds since 1970; `None` where the system does not tell.
pub(crate) fn start_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    Some(number(&system, "btime")? + parse_start(&stat)?)
}

/// Field 22, in seconds since the machine began.
fn parse_start(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_whitespace().nth(19)?.parse::<f64>().ok()? / TICKS)
}

/// Processor seconds of a process so far; `None` where the system does not tell.
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    parse_cpu(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Fields 14 and 15; the second, a name in brackets, may have anything in it.
fn parse_cpu(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<f64>);
    Some((times.next()?.ok()? + times.next()?.ok()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        let status = "Name:\tx\nVmRSS:\t  102400 kB\nRssAnon:\t 512 kB\n";
        assert_eq!([mib(status, "VmRSS:"), mib(status, "RssAnon:")], [100.0, 0.5]);
        assert_eq!(mib(status, "Pss:"), 0.0);
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 99 1 2";
        assert_eq!(parse_cpu(stat), Some(3.0));
        assert_eq!(parse_cpu("7 (a) S 1"), None);
        assert_eq!(parse_start(stat), Some(0.99));
        assert_eq!(
            number("Max open files            1024   4096  files", "Max open files"),
            Some(1024.0)
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.rss_mib > 0.0 && memory.pss_mib > 0.0, "{memory:?}");
        assert!(cpu_seconds(std::process::id()).is_some());
    }
}
