//! All checks of a device in one report: the device itself, and then its kernels.

use std::time::Instant;

use serde::Serialize;

use super::check::{self, Size};
use super::conformance;
use super::device::Gpu;
use super::info::{Counters, Info};

/// The outcome of one check.
#[derive(Clone, Debug, Serialize)]
pub struct CheckLine {
    /// The name of the check, and what it has found if more than one outcome is right.
    pub name: String,
    /// The number of values that were compared by their bits; 0 for a check of the device itself.
    pub compared: u64,
    /// The time that the check took, in seconds.
    pub seconds: f64,
    /// The text of the error, if the check failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The outcome of all checks.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The properties of the device.
    pub device: Info,
    /// The checks, in order.
    pub checks: Vec<CheckLine>,
    /// The number of checks that failed.
    pub failed: usize,
    /// The kernels that were launched, and how often.
    pub launches: Vec<(&'static str, u64)>,
    /// The counts of the device.
    pub counters: Counters,
}

/// Runs all checks whose name is wanted, and calls `tell` after each. A device that has failed runs
/// no further check.
pub fn check(
    gpu: &dyn Gpu,
    size: Size,
    is_wanted: impl Fn(&str) -> bool,
    mut tell: impl FnMut(&CheckLine),
) -> CheckReport {
    let mut checks: Vec<CheckLine> = Vec::new();
    let mut add = |name: &str, run: &dyn Fn() -> Result<(u64, String), super::GpuError>| {
        let is_lost = checks.last().is_some_and(|_| gpu.free_bytes().is_err());
        if !is_wanted(name) || is_lost {
            return;
        }
        let started = Instant::now();
        let outcome = run();
        let seconds = started.elapsed().as_secs_f64();
        let (compared, found, error) = match outcome {
            Ok((compared, found)) => (compared, found, None),
            Err(error) => (0, String::new(), Some(error.to_string())),
        };
        let line = CheckLine { name: format!("{name}{found}"), compared, seconds, error };
        tell(&line);
        checks.push(line);
    };
    for check in conformance::CHECKS {
        add(check.name, &|| (check.run)(gpu).map(|()| (0, String::new())));
    }
    let tell_relu = || conformance::tell_relu_of_nan(gpu).map(|text| (0, format!(": {text}")));
    add(conformance::RELU_OF_NAN, &tell_relu);
    for check in check::CHECKS {
        add(check.name, &|| {
            (check.run)(gpu, size).map(|outcome| (outcome.compared, String::new()))
        });
    }
    let failed = checks.iter().filter(|line| line.error.is_some()).count();
    let (launches, counters) = (gpu.launches(), gpu.counters());
    CheckReport { device: gpu.info().clone(), checks, failed, launches, counters }
}
