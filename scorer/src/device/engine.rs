//! The executors of a model on a device.
//!
//! A list of launches belongs to a capacity, and a small batch in a large capacity starts blocks
//! that have nothing to do. So there is an executor for each bucket of rows, which is made when the
//! first batch of its size comes. If the budget of memory is exhausted, the executors that the
//! batch does not need are dropped.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zillion_device::gpu::GpuError;
use zillion_nn::{DeviceParams, GpuExecutor, NodeId, Params};
use zillion_rows::RowSource as _;
use zillion_rows::layer::{LayerSource, Throttle};

use super::ScoringDevice;
use super::batcher::Batcher;
use super::fill::{FillBuffers, Keys};
use super::layers::{LayerPool, VersionLayers};
use super::merged::{Merged, Prepared};
use crate::error::{Error, Result};
use crate::programs::Programs;
use crate::scorer::LateCheck;

/// The largest numbers of rows of the buckets. Larger batches are one more bucket.
const BUCKETS: [usize; 4] = [256, 1024, 4096, 16_384];

/// The executors of a model, for one batch at a time.
#[derive(Debug)]
pub(crate) struct DeviceEngine {
    device: Arc<ScoringDevice>,
    programs: Arc<Programs>,
    outputs: Vec<NodeId>,
    batcher: Batcher,
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

/// The executors, each with its buffers. One thread at a time has them.
#[derive(Debug, Default)]
pub(crate) struct Executors {
    by_bucket: BTreeMap<usize, (GpuExecutor, FillBuffers)>,
}

fn bucket_of(rows: usize) -> usize {
    BUCKETS.into_iter().find(|&most| rows <= most).unwrap_or(usize::MAX)
}

/// Returns whether the memory of the device or its budget is exhausted.
fn is_out_of_memory(error: &Error) -> bool {
    let is_memory =
        |error: &GpuError| matches!(error, GpuError::Budget { .. } | GpuError::OutOfMemory { .. });
    match error {
        Error::Device(error) | Error::Model(zillion_nn::Error::Gpu(error)) => is_memory(error),
        _ => false,
    }
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
    ) -> Result<Self> {
        let (batcher, pool) = (Batcher::default(), LayerPool::default());
        let couples_rows = programs.plan()?.couples_rows();
        Ok(Self { device, programs, outputs, batcher, pool, couples_rows })
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
        let params = self.batcher.alone(|executors| {
            let (executor, _) = self.executor(executors, BUCKETS[0])?;
            Ok::<_, Error>(Arc::new(executor.copy_params(&host)?))
        })?;
        pace.piece();
        let layers = self.pool.version(&self.device, &source, pace)?;
        let strides = source.tables().iter().map(|table| table.stride).collect();
        Ok(DeviceVersion { engine: self.clone(), params, host, source, layers, strides })
    }

    fn executor<'a>(
        &self,
        executors: &'a mut Executors,
        bucket: usize,
    ) -> Result<&'a mut (GpuExecutor, FillBuffers)> {
        Ok(match executors.by_bucket.entry(bucket) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) => {
                let executor = GpuExecutor::new(self.programs.plan()?, self.device.gpu())?;
                place.insert((executor, FillBuffers::default()))
            }
        })
    }

    /// Scores requests of one version and one form as one batch. If the memory does not suffice,
    /// what other batches have left there is freed first.
    pub(super) fn run(
        &self,
        executors: &mut Executors,
        version: &DeviceVersion,
        requests: &[&Prepared],
    ) -> Result<Vec<DeviceScores>> {
        let Some(merged) = Merged::new(requests.iter().copied()) else { return Ok(Vec::new()) };
        let ran = self.run_merged(executors, version, &merged);
        match ran {
            Err(error) if is_out_of_memory(&error) => {
                executors.by_bucket.clear();
                self.run_merged(executors, version, &merged)
            }
            ran => ran,
        }
    }

    fn run_merged(
        &self,
        executors: &mut Executors,
        version: &DeviceVersion,
        merged: &Merged,
    ) -> Result<Vec<DeviceScores>> {
        let (executor, buffers) = self.executor(executors, bucket_of(merged.all.rows))?;
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
