//! Scoring on a GPU: one device with one budget of memory, which all models of a process share.
//!
//! * [`ScoringDevice`] is the device, its budget and its counts.
//! * [`engine`] runs a batch of a model; [`executors`] has what it needs for each bucket of rows.
//! * [`batcher`] puts the requests together that came while a batch ran.
//! * [`layers`] has the rows of versions that are on the device; [`hot`] chooses them.
//!
//! # Concurrency
//! A thread that has executors holds a turn of the device ([`ScoringDevice::turn`]). So a thread
//! that is alone on the device finds the executors of all models idle, and can free their memory.
//! No thread waits for a batch while it holds a turn.
//!
//! Scores have the bits of the processor: the graph is computed in f32 by the exact kernels, and a
//! row on the device is a copy of the row that a lookup on the host returns.

pub(crate) mod batcher;
pub(crate) mod engine;
mod executors;
mod fill;
mod hot;
pub(crate) mod layers;
pub(crate) mod merged;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Instant;

use zillion_device::gpu::{self, Budgeted, Gpu};

use self::engine::DeviceEngine;
use crate::error::{Error, Result};

/// The share of the device's free memory that a budget takes if none is given, in percent.
const USUAL_PERCENT: u64 = 80;

/// A GPU for scoring, with a budget of memory.
#[derive(Debug)]
pub struct ScoringDevice {
    name: String,
    gpu: Arc<Budgeted>,
    pub(crate) counts: Counts,
    /// The engines of all models.
    engines: Mutex<Vec<Weak<DeviceEngine>>>,
    /// The lock that batches share, and that a thread has alone while it frees their memory.
    turns: RwLock<()>,
    has_failed: AtomicBool,
}

/// The right of a thread to use the executors of a model.
pub(crate) enum Turn<'a> {
    /// Other threads use executors of other models at the same time.
    Shared(#[expect(dead_code, reason = "a guard")] RwLockReadGuard<'a, ()>),
    /// No other thread uses executors.
    Alone(#[expect(dead_code, reason = "a guard")] RwLockWriteGuard<'a, ()>),
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
    pub(crate) uploaded_rows: AtomicU64,
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
    /// The number of rows that were uploaded so far, also those that are gone.
    pub uploaded_rows: u64,
    /// Whether the device has failed, so that it scores nothing any more.
    pub has_failed: bool,
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
        Ok(Arc::new(Self {
            name: name.to_owned(),
            gpu,
            counts: Counts::default(),
            engines: Mutex::default(),
            turns: RwLock::default(),
            has_failed: AtomicBool::new(false),
        }))
    }

    /// Returns whether the device has failed. A request that failed there and the loaders of models
    /// look for that; this call does not ask the device.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Asks the device whether it can still be used. May wait for the work of other threads.
    pub(crate) fn look(&self) {
        // A device that has failed stays so, whatever another thread has seen before.
        if self.gpu.free_bytes().is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
    }

    /// Makes an engine known, so that its memory can be freed for other models.
    fn add_engine(&self, engine: &Arc<DeviceEngine>) {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|one| one.strong_count() > 0);
        engines.push(Arc::downgrade(engine));
    }

    /// Waits until no thread is alone on the device, and begins to use executors.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn::Shared(self.turns.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until no thread uses executors, and frees the memory of all of them. The caller holds
    /// no turn.
    pub(crate) fn turn_alone(&self) -> Turn<'_> {
        let turn = self.turns.write().unwrap_or_else(PoisonError::into_inner);
        self.drop_idle_executors();
        Turn::Alone(turn)
    }

    /// Frees the memory of the executors that no thread uses. Does not wait for a batch.
    pub(crate) fn drop_idle_executors(&self) {
        self.engines().iter().for_each(|engine| engine.drop_idle_executors());
    }

    /// Frees the memory that recent batches of all models did not need.
    pub(crate) fn drop_surplus_executors(&self, now: Instant) {
        self.engines().iter().for_each(|engine| engine.drop_surplus_executors(now));
    }

    fn engines(&self) -> Vec<Arc<DeviceEngine>> {
        let engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        engines.iter().filter_map(Weak::upgrade).collect()
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
            uploaded_rows: read(&counts.uploaded_rows),
            has_failed: self.has_failed(),
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
