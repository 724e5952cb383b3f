//! The rates at which this machine can read and update random rows in memory. They are upper bounds
//! for the rates of a table.

use std::time::Duration;

use anyhow::Result;
use zillion_device::Workers;
use zillion_device::probe::RowProbe;

use crate::turns::{TURN, median};

/// The rates for random rows of 64 bytes in memory, with all threads at the same time.
pub(super) struct Limits {
    pub(super) read: Limit,
    pub(super) rmw: Limit,
}

/// The rate of one kind of memory access.
pub(super) struct Limit {
    pub(super) mrows_s: f64,
    /// The rate with all threads divided by the rate with one thread. `None` if there is only one
    /// thread.
    pub(super) speedup: Option<f64>,
}

impl Limits {
    pub(super) fn probe(workers: &Workers, rows: u32, duration: Duration) -> Result<Self> {
        let probes = (0..workers.threads()).map(|_| RowProbe::new(rows));
        let mut probes: Vec<RowProbe> = probes.collect::<Result<_, _>>()?;
        let reads = |probe: &mut RowProbe, length| probe.reads_per_second(length);
        let updates = |probe: &mut RowProbe, length| probe.updates_per_second(length);
        Ok(Self {
            read: Limit::probe(workers, &mut probes, duration, reads),
            rmw: Limit::probe(workers, &mut probes, duration, updates),
        })
    }
}

impl Limit {
    /// Measures the rate. If there are several threads, turns with all threads and turns with one
    /// thread alternate.
    fn probe(
        workers: &Workers,
        probes: &mut [RowProbe],
        duration: Duration,
        rate: impl Fn(&mut RowProbe, Duration) -> f64 + Sync,
    ) -> Self {
        let length = TURN.min(duration);
        let (mut rates, mut speedups) = (Vec::new(), Vec::new());
        loop {
            let mut turn: Vec<(&mut RowProbe, f64)> =
                probes.iter_mut().map(|probe| (probe, 0.0)).collect();
            workers.for_each_mut(&mut turn, |_, (probe, got)| *got = rate(probe, length));
            let all = turn.iter().map(|(_, got)| got).sum::<f64>();
            rates.push(all);
            if probes.len() > 1 {
                speedups.push(all / rate(&mut probes[0], length));
            }
            if length * rates.len() as u32 >= duration {
                break;
            }
        }
        Self {
            mrows_s: rates.iter().sum::<f64>() / rates.len() as f64 / 1e6,
            speedup: (probes.len() > 1).then(|| median(&mut speedups)),
        }
    }
}
