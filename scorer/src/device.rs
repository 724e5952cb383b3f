//! Scoring on a GPU: one device with one budget of memory, which all models of a process share.
//!
//! * [`ScoringDevice`] is the device, its budget and its counts.
//! * [`engine`] has the executors of a model, one for each bucket of rows, and runs a batch.
//! * [`batcher`] puts the requests together that came while a batch ran.
//! * [`layers`] has the rows of versions that are on the device; [`hot`] chooses them.
//!
//! Scores have the bits of the processor: the graph is computed in f32 by the exact kernels, and a
//! row on the device is a copy of the row that a lookup on the host returns.

pub(crate) mod batcher;
pub(crate) mod engine;
mod fill;
mod hot;
pub(crate) mod layers;
pub(crate) mod merged;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zillion_device::gpu::{self, Budgeted, Gpu};

use crate::error::{Error, Result};

/// The share of the device's free memory that a budget takes if none is given, in percent.
const USUAL_PERCENT: u64 = 80;

/// A GPU for scoring, with a budget of memory.
#[derive(Debug)]
pub struct ScoringDevice {
    name: String,
    gpu: Arc<Budgeted>,
    pub(crate) counts: Counts,
}

/// The counts of the work of a device. A batch changes them a few times.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) batches: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) keys: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) resident_rows: AtomicU64,
    pub(crate) versions_without_rows: AtomicU64,
}

/// The counts of a device at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DeviceStatistics {
    /// The number of bytes of the budget.
    pub budget_bytes: u64,
    /// The number of bytes of the budget that are in use.
    pub used_bytes: u64,
    /// The number of rows of tables that are on the device.
    pub resident_rows: u64,
    /// The number of batches that were scored.
    pub batches: u64,
    /// The number of requests in these batches.
    pub requests: u64,
    /// The number of rows in these batches.
    pub rows: u64,
    /// The number of keys whose rows these batches have read.
    pub keys: u64,
    /// The number of these keys whose rows were on the device.
    pub hits: u64,
    /// The number of loads of a version whose changed rows did not fit, so that all its rows are
    /// read from the host.
    pub versions_without_rows: u64,
}

impl ScoringDevice {
    /// Opens the device with this name (`cuda:0`). All its allocations together take at most
    /// `memory` bytes, or four fifths of what is free now.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened, or has less free memory than the budget.
    pub fn open(name: &str, memory: Option<u64>) -> Result<Arc<Self>> {
        let inner: Arc<dyn Gpu> = Arc::from(gpu::open(name, None)?);
        let free = inner.free_bytes()?;
        let budget = memory.unwrap_or(free / 100 * USUAL_PERCENT);
        if budget > free {
            return Err(Error::Refused(format!(
                "the device `{name}` has {free} bytes of free memory, but the budget is {budget} \
                 bytes; give a smaller budget, or end the programs that use the device"
            )));
        }
        let gpu = Arc::new(Budgeted::new(inner, budget));
        Ok(Arc::new(Self { name: name.to_owned(), gpu, counts: Counts::default() }))
    }

    /// Returns one line that names the device and its budget.
    pub fn describe(&self) -> String {
        let (name, model) = (&self.name, &self.gpu.info().name);
        format!("device {name} ({model}), {} bytes of memory for all models", self.gpu.budget())
    }

    /// Returns the counts of this moment.
    pub fn statistics(&self) -> DeviceStatistics {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        DeviceStatistics {
            budget_bytes: self.gpu.budget(),
            used_bytes: self.gpu.used(),
            resident_rows: read(&counts.resident_rows),
            batches: read(&counts.batches),
            requests: read(&counts.requests),
            rows: read(&counts.rows),
            keys: read(&counts.keys),
            hits: read(&counts.hits),
            versions_without_rows: read(&counts.versions_without_rows),
        }
    }

    /// Returns the device for executors.
    pub(crate) fn gpu(&self) -> Arc<dyn Gpu> {
        self.gpu.clone()
    }

    /// Returns the number of bytes of the budget that are free.
    pub(crate) fn left(&self) -> u64 {
        self.gpu.left()
    }
}
