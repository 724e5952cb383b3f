//! The best rates of the machine, measured in the process that is profiled.

use std::time::Duration;

use serde::Serialize;
use zillion_device::DeviceError;
use zillion_device::probe::{RowProbe, cached_bytes_per_second, gemm_flops_per_second};

use crate::error::Result;

/// The duration of one measurement of a rate.
const MOMENT: Duration = Duration::from_millis(50);
/// The number of rounds. Each round measures all rates once. The highest measured value of each
/// rate is used, because other work on the machine can only make a measurement slower.
const ROUNDS: usize = 4;
/// The number of rows of 64 bytes that all threads probe together. So many rows do not fit into the
/// caches.
const ROWS: u32 = 1 << 21;

/// The rates of the machine when all threads work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// The number of threads that were measured at once.
    pub threads: usize,
    /// The number of floating-point operations in a second of a large matrix product.
    pub product_flops: f64,
    /// The number of bytes moved between registers and the near caches in a second.
    pub cached_bytes: f64,
    /// The number of random rows of 64 bytes that are read in a second.
    pub row_reads: f64,
    /// The number of random rows of 64 bytes that are changed and written back in a second.
    pub row_updates: f64,
}

impl Limits {
    /// Measures the rates of this machine, which takes about a second.
    ///
    /// # Errors
    /// Returns an error if the system refuses memory or a thread.
    pub fn probe(threads: usize) -> Result<Self> {
        let rows = (ROWS / threads.max(1) as u32).max(1 << 14);
        let mut probes = Vec::new();
        for _ in 0..threads.max(1) {
            probes.push(RowProbe::new(rows)?);
        }
        let mut best = [0.0f64; 4];
        for _ in 0..ROUNDS {
            let reached = [
                measure_all(&mut probes, |_| gemm_flops_per_second(MOMENT))?,
                measure_all(&mut probes, |_| cached_bytes_per_second(MOMENT))?,
                measure_all(&mut probes, |probe| probe.reads_per_second(MOMENT))?,
                measure_all(&mut probes, |probe| probe.updates_per_second(MOMENT))?,
            ];
            best.iter_mut().zip(reached).for_each(|(best, reached)| *best = best.max(reached));
        }
        let [product_flops, cached_bytes, row_reads, row_updates] = best;
        Ok(Self { threads: probes.len(), product_flops, cached_bytes, row_reads, row_updates })
    }
}

/// Returns the sum of the rates that all threads reach at the same time.
fn measure_all(probes: &mut [RowProbe], rate: impl Fn(&mut RowProbe) -> f64 + Sync) -> Result<f64> {
    let rate = &rate;
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (index, probe) in probes.iter_mut().enumerate() {
            let thread = std::thread::Builder::new().name("zillion-probe".to_owned());
            let thread = thread.spawn_scoped(scope, move || rate(probe));
            running.push(thread.map_err(|source| DeviceError::Thread { index, source })?);
        }
        let ended = |thread: std::thread::ScopedJoinHandle<'_, f64>| thread.join().unwrap_or(0.0);
        Ok(running.into_iter().map(ended).sum())
    })
}
