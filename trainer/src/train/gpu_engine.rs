//! The engine of a run whose rows stay on a GPU, beside the dense parameters.
//!
//! The host looks up the keys of a batch, which counts them and creates their rows, and enqueues
//! the work of the step. It does not wait for the GPU, and reads the results some steps later.
//! The threads that plan batches ahead have written the batch to pinned memory already, unless it
//! needs more memory than the batches before.
//!
//! # Invariants
//! * What the host decides in a step depends on the data alone and not on numbers of the GPU: the
//!   rows that exist, their places and their counts.
//! * A step that moves no weight is found by the GPU itself, so the steps behind it are right too.
//! * A loss that is not finite ends the run when it is read. No checkpoint is begun before the
//!   results of all earlier steps have been read.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use zillion_device::gpu::{Gpu, GpuError, Memory, Stream};
use zillion_embedding::ResidentTables;
use zillion_feature::LookupPlan;
use zillion_nn::{DeviceRows, Inputs, StepScalars, StepSeed};

use super::engine::{Engine, Stepped};
use super::graph_executor::GraphExecutor;
use super::model::Model;
use super::step::{StepBuffers, fill_log_counts};
use super::{Run, uses};
use crate::error::{Error, Result};
use crate::pipeline::{PlanStager, Planned};
use crate::profile::Stage;

/// The engine with rows on a GPU.
#[derive(Debug, Default)]
pub(super) struct GpuEngine {
    /// The number of floats of a row of each table.
    strides: Vec<usize>,
    /// The numbers of the steps whose results have not been read, the oldest first.
    steps: VecDeque<u64>,
}

impl GpuEngine {
    /// Creates the engine of tables whose rows have these numbers of floats.
    pub(super) fn new(strides: Vec<usize>) -> Self {
        Self { strides, ..Self::default() }
    }
}

impl Engine for GpuEngine {
    fn step(
        &mut self,
        run: &mut Run,
        planned: &mut Planned,
        _next: Option<&Arc<LookupPlan>>,
    ) -> Result<Stepped> {
        let refused = run.stage(Stage::Pull, |run| {
            run.begin_step()?;
            run.note_event_time(&planned.batch);
            run.give_event_time()?;
            run.look_up_rows(planned)
        })?;
        if let Some(reason) = refused {
            run.client.discard()?;
            return Ok(Stepped::NoRoom(reason));
        }
        run.stage(Stage::Model, |run| run.enqueue_step(planned, &self.strides))?;
        run.client.end_resident_step()?;
        self.steps.push_back(run.position.step + 1);
        run.keep_event_time();
        run.end_batch(planned);
        run.end_step();
        Ok(Stepped::Done)
    }

    fn finish(&mut self, run: &mut Run, waits: bool) -> Result<Option<f64>> {
        let results = run.stage(Stage::Model, |run| {
            Ok::<_, Error>(run.model.executor.gpu_mut()?.finish_step(waits)?)
        })?;
        let Some(results) = results else { return Ok(None) };
        let step = self.steps.pop_front().unwrap_or(run.position.step);
        let loss = f64::from(results.loss);
        if !loss.is_finite() {
            return Err(Error::Diverged { step, loss });
        }
        if results.is_skipped {
            run.count_skipped(step);
        }
        // The client counts what the GPU has done to the rows of the step.
        while run.client.collect_resident_step(false)?.is_some() {}
        Ok(Some(loss))
    }
}

impl Run {
    /// Returns the writer of planned batches to pinned memory, if the rows are on a GPU. At most
    /// `ahead` batches are planned and have not begun their step.
    pub(super) fn plan_stager(&mut self, ahead: NonZeroUsize) -> Option<PlanStager> {
        let Self { client, model, counts, .. } = self;
        let GraphExecutor::Gpu(executor) = &mut model.executor else { return None };
        // One more batch is in its step. The window of a cache has as many batches again.
        let window = if counts.gpu.has_cache { ahead.get() } else { 0 };
        let batches = counts.gpu.has_rows.then(|| executor.stager(ahead.get() + window + 1))?;
        let strides = client.layouts().iter().map(|layout| layout.stride).collect();
        Some(PlanStager { batches, strides })
    }

    /// Looks up the rows of a batch, which the tables then count, and creates those that are new.
    /// If the rows have no room on the GPU, returns the reason, and nothing has changed.
    fn look_up_rows(&mut self, planned: &Planned) -> Result<Option<String>> {
        let Self { job, data, client, buffers, .. } = self;
        let StepBuffers { grads, item_column, .. } = buffers;
        grads.reshape(client.layouts().iter().map(|layout| (0, layout.stride)));
        uses::fill_uses(&planned.batch, &planned.plan, &job.tables, grads);
        // If no pass over the data has counted the items, the counts of their rows are used.
        let counted = item_column.filter(|_| data.frequencies.is_none());
        let counted = counted.map(|column| planned.plan.columns[column].table);
        for (table, rows) in grads.tables.iter_mut().enumerate() {
            rows.counts = (counted == Some(table)).then(|| rows.counts.take().unwrap_or_default());
        }
        Ok(client.begin_resident_step(&planned.plan, grads)?)
    }

    /// Enqueues the work of a step whose rows have been looked up.
    fn enqueue_step(&mut self, planned: &mut Planned, strides: &[usize]) -> Result<()> {
        let (step, staged) = (self.position.step + 1, planned.staged.take());
        let (rate_scale, _) = self.rate_scales(step);
        let Self { job, data, client, model, buffers, .. } = self;
        let StepBuffers { grads, log_frequency, item_column, .. } = buffers;
        let mut inputs = Inputs::with_device_rows(&planned.batch, &planned.plan, strides);
        if let Some(column) = *item_column {
            match &data.frequencies {
                Some(counted) => {
                    counted.log_shares(&planned.batch.sparse[column].keys, log_frequency);
                }
                None => fill_log_counts(&planned.plan, column, grads, log_frequency),
            }
            inputs.numeric.push(log_frequency);
        }
        let seed = StepSeed { seed: job.seed, step };
        let scalars = StepScalars { seed, rate_scale, clip_norm: job.train.clip_norm };
        let rows = client.resident().ok_or_else(|| Error::DeviceRefused {
            device: "gpu".to_owned(),
            problem: "the rows of the tables are not on the GPU".to_owned(),
        })?;
        let Model { executor, params, optimizer, resident, .. } = model;
        if let Some(resident) = resident {
            resident.is_behind = true;
        }
        let rows = ClientRows(rows);
        let executor = executor.gpu_mut()?;
        executor.enqueue_staged_step(staged, &inputs, params, optimizer, &rows, scalars)?;
        Ok(())
    }
}

/// The rows of a client, as an executor sees them.
struct ClientRows<'a>(&'a ResidentTables);

/// Returns the error of a GPU for an error of tables.
fn as_gpu_error(error: zillion_embedding::Error) -> GpuError {
    match error {
        zillion_embedding::Error::Gpu(error) => error,
        other => GpuError::Device { device: "gpu".to_owned(), problem: other.to_string() },
    }
}

type Launched = std::result::Result<(), GpuError>;

impl DeviceRows for ClientRows<'_> {
    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn pull(&self, gpu: &dyn Gpu, stream: Stream, rows: &[Option<Memory>]) -> Launched {
        self.0.pull(gpu, stream, rows).map_err(as_gpu_error)
    }

    fn sq_norm(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        gradients: &[Memory],
        out: Memory,
    ) -> Launched {
        let gradients: Vec<Option<Memory>> = gradients.iter().copied().map(Some).collect();
        self.0.sq_norm(gpu, stream, &gradients, out).map_err(as_gpu_error)
    }

    fn update(
        &self,
        gpu: &dyn Gpu,
        stream: Stream,
        gradients: &[Memory],
        scale: Memory,
        skip: Memory,
    ) -> Launched {
        let gradients: Vec<Option<Memory>> = gradients.iter().copied().map(Some).collect();
        self.0.update(gpu, stream, &gradients, scale, skip).map_err(as_gpu_error)
    }
}
