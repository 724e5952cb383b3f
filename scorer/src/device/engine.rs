//! The scores of a model on a device: its executors, its versions and a run of a batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use zillion_nn::{DeviceParams, GpuExecutor, NodeId, Params};
use zillion_rows::RowSource as _;
use zillion_rows::layer::{LayerSource, Throttle};

use super::ScoringDevice;
use super::batcher::Batcher;
use super::executors::{BUCKETS, Executors};
use super::fill::Keys;
use super::layers::{LayerPool, VersionLayers};
use super::merged::{Merged, Prepared};
use crate::error::{Error, Result};
use crate::late::LateCheck;
use crate::programs::Programs;

/// The executors of a model, for one batch at a time.
#[derive(Debug)]
pub(crate) struct DeviceEngine {
    device: Arc<ScoringDevice>,
    programs: Arc<Programs>,
    outputs: Vec<NodeId>,
    pub(super) batcher: Batcher,
    pool: LayerPool,
    couples_rows: bool,
}

/// A version of a model on a device: its parameters and its rows.
#[derive(Debug)]
pub(crate) struct DeviceVersion {
    engine: Arc<DeviceEngine>,
    params: Arc<DeviceParams>,
    host: Arc<Params>,
    source: LayerSource,
    layers: VersionLayers,
    strides: Vec<usize>,
}

/// The scores of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeviceScores {
    /// The values of each output.
    pub(crate) outputs: Vec<Vec<f32>>,
    /// The number of unique keys that have no row.
    pub(crate) missing: u64,
}

impl DeviceEngine {
    /// Creates the engine of a model. The first version makes the first executor.
    ///
    /// # Errors
    /// Returns an error if a result does not have one row for each row of a batch.
    pub(crate) fn new(
        device: Arc<ScoringDevice>,
        programs: Arc<Programs>,
        outputs: Vec<NodeId>,
    ) -> Result<Arc<Self>> {
        let (batcher, pool) = (Batcher::new(device.clone()), LayerPool::default());
        let couples_rows = programs.plan()?.couples_rows();
        let engine = Arc::new(Self { device, programs, outputs, batcher, pool, couples_rows });
        engine.device.add_engine(&engine);
        Ok(engine)
    }

    /// Drops the executors if no batch runs.
    pub(super) fn drop_idle_executors(&self) {
        self.batcher.drop_idle();
    }

    /// Drops the executors that recent batches did not need, if no batch runs.
    pub(super) fn drop_surplus_executors(&self, now: Instant) {
        self.batcher.drop_surplus(now);
    }

    /// Returns whether each request needs a batch of its own, because a value of a row depends on
    /// the other rows.
    pub(super) fn couples_rows(&self) -> bool {
        self.couples_rows
    }

    /// Brings a version to the device.
    ///
    /// # Errors
    /// Returns an error that names the first node that a device cannot compute, or an error of the
    /// device. If the budget has no room for the parameters, the error has the figures.
    pub(crate) fn load(
        self: &Arc<Self>,
        host: Arc<Params>,
        source: LayerSource,
        pace: &mut dyn Throttle,
    ) -> Result<DeviceVersion> {
        let copy = |executors: &mut Executors| {
            let make = || self.make_executor();
            let bucket = executors.of(BUCKETS[0], 0, Instant::now(), make)?;
            Ok(Arc::new(bucket.executor.copy_params(&host)?))
        };
        let params = self.batcher.alone(copy).inspect_err(|error| self.note(error))?;
        pace.piece();
        let layers = self.pool.version(&self.device, &source, pace)?;
        let strides = source.tables().iter().map(|table| table.stride).collect();
        Ok(DeviceVersion { engine: self.clone(), params, host, source, layers, strides })
    }

    fn make_executor(&self) -> Result<GpuExecutor> {
        Ok(GpuExecutor::new(self.programs.plan()?, self.device.gpu())?)
    }

    /// Looks whether the device has failed, if an error is not about its memory.
    fn note(&self, error: &Error) {
        if !error.is_out_of_memory() {
            self.device.look();
        }
    }

    /// Scores requests of one version and one form as one batch.
    pub(super) fn run(
        &self,
        executors: &mut Executors,
        version: &DeviceVersion,
        requests: &[&Prepared],
    ) -> Result<Vec<DeviceScores>> {
        let Some(merged) = Merged::new(requests.iter().copied()) else { return Ok(Vec::new()) };
        self.run_merged(executors, version, &merged).inspect_err(|error| self.note(error))
    }

    fn run_merged(
        &self,
        executors: &mut Executors,
        version: &DeviceVersion,
        merged: &Merged,
    ) -> Result<Vec<DeviceScores>> {
        let (rows, size) = (merged.all.rows, merged.all.rows + merged.all.values());
        let bucket = executors.of(rows, size, Instant::now(), || self.make_executor())?;
        let (executor, buffers) = (&mut bucket.executor, &mut bucket.buffers);
        let keys =
            Keys { all: &merged.all.keys, of_requests: &merged.keys, strides: &version.strides };
        let of_version = (&version.layers, &version.source);
        let (gpu, inputs) = (self.device.gpu(), merged.all.inputs());
        let mut filled = None;
        executor.score(&inputs, &version.params, &version.host, |_, stream, to| {
            filled = Some(buffers.fill(&gpu, stream, &keys, of_version, to)?);
            Ok(())
        })?;
        let filled = filled.unwrap_or_default();
        let mut scores = Vec::with_capacity(merged.rows.len());
        for (number, rows) in merged.rows.iter().enumerate() {
            let of_rows = |&id: &NodeId| {
                let values = executor.output(id).ok_or(Error::NoLogits)?;
                values.get(rows.clone()).map(<[f32]>::to_vec).ok_or(Error::NoLogits)
            };
            let outputs = self.outputs.iter().map(of_rows).collect::<Result<_>>()?;
            let missing = filled.missing.get(number).copied().unwrap_or_default();
            scores.push(DeviceScores { outputs, missing });
        }
        let counts = &self.device.counts;
        let add = |count: &AtomicU64, by: u64| {
            count.fetch_add(by, Ordering::Relaxed);
        };
        add(&counts.batches, 1);
        add(&counts.requests, merged.rows.len() as u64);
        add(&counts.rows, merged.all.rows as u64);
        add(&counts.keys, filled.keys);
        add(&counts.hits, filled.hits);
        Ok(scores)
    }
}

impl DeviceVersion {
    /// Returns the number of floats from one row of each table to the next.
    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides
    }

    pub(super) fn engine(&self) -> &DeviceEngine {
        &self.engine
    }

    /// Drops what recent batches did not need, and looks for a failed device.
    pub(crate) fn release_idle(&self, now: Instant) {
        self.engine.drop_surplus_executors(now);
        self.engine.device.look();
    }

    /// Scores a request, in one batch with others of the same version that wait.
    ///
    /// # Errors
    /// Returns [`Error::Late`] if `is_late` returned `true` before the batch began, and the errors
    /// of the model and of the device.
    pub(crate) fn score(
        self: &Arc<Self>,
        request: Prepared,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<DeviceScores> {
        self.engine.batcher.score(self, request, is_late)
    }
}
