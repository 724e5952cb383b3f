//! The memory figures of a server, for the report of a benchmark.

use anyhow::{Context, Result};
use serde::Serialize;
use zillion_device::machine::process::{ProcessStatus, proportional_memory};

/// The memory of a process, in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Memory {
    /// The total resident memory.
    rss_mib: f64,
    /// The memory that belongs only to the process, which is mainly its heap.
    anon_mib: f64,
    /// The memory of mapped files. Other processes may share its pages.
    file_mib: f64,
    /// The proportional memory: each resident page is divided by the number of processes that share
    /// it.
    pss_mib: f64,
}

impl Memory {
    /// Reads the current memory of a process.
    pub(crate) fn read(pid: u32) -> Result<Self> {
        let problem = || format!("cannot read the memory of process {pid}");
        let status = ProcessStatus::read(pid).with_context(problem)?;
        Ok(Self {
            rss_mib: tenths_of_mib(status.resident),
            anon_mib: tenths_of_mib(status.anonymous),
            file_mib: tenths_of_mib(status.mapped_files),
            pss_mib: tenths_of_mib(proportional_memory(pid).with_context(problem)?),
        })
    }
}

/// Converts bytes to MiB, rounded to tenths.
fn tenths_of_mib(bytes: Option<u64>) -> f64 {
    (bytes.unwrap_or_default() as f64 / (1024.0 * 102.4)).round() / 10.0
}
