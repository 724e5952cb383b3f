//! The memory and the launches for a capacity.

use std::sync::Arc;

use zillion_device::gpu::{Gpu, Memory, Param, Pinned, Stream};

use crate::error::Result;
use crate::gpu::batch::BatchPlaces;
use crate::gpu::bind::{Bound, Regions};
use crate::gpu::binder::{BoundLaunch, Operation, Setting};
use crate::gpu::replayed::Replayed;
use crate::gpu::results::StepKey;
use crate::gpu::row_plan::RowPlan;
use crate::gpu::side::Side;
use crate::gpu::sizes::{Form, Sizes};
use crate::gpu::staging::BatchLayout;

/// The memory and the launches for batches of one form that fit a capacity.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) layout: Arc<BatchLayout>,
    memory: Memory,
    /// The memory of the batch on the device.
    pub(crate) batch: Memory,
    pub(crate) bound: Bound,
    /// The memory of the unique rows of each table; `None` for a table that no node reads.
    pub(crate) rows: Vec<Option<Memory>>,
    /// The graph of the launches of a run.
    launches: Replayed<()>,
    /// The graph of whole steps.
    pub(crate) step: Replayed<StepKey>,
    /// The pinned memory of runs whose end the host waits for.
    host: Option<HostBuffers>,
    /// The number of bytes of the results that the host may download.
    results_bytes: usize,
}

/// The pinned memory of runs whose end the host waits for.
#[derive(Debug)]
pub(crate) struct HostBuffers {
    pub(crate) batch_in: Pinned,
    /// The results: the constants, then the requested results, then the gradients of rows.
    pub(crate) results_out: Pinned,
}

impl Loaded {
    /// Allocates memory and makes the launches.
    pub(crate) fn new(
        gpu: &dyn Gpu,
        stream: Stream,
        setting: Setting<'_>,
        plans: &[RowPlan],
    ) -> Result<Self> {
        let regions = Regions::measure(setting, plans)?;
        let memory = gpu.allocate(regions.bytes)?;
        Self::in_memory(gpu, stream, setting, plans, (regions, memory)).or_else(|error| {
            gpu.free(memory)?;
            Err(error)
        })
    }

    fn in_memory(
        gpu: &dyn Gpu,
        stream: Stream,
        setting: Setting<'_>,
        plans: &[RowPlan],
        (regions, memory): (Regions, Memory),
    ) -> Result<Self> {
        let batch = regions.batch(memory, setting.batch.bytes)?;
        let bound = regions.bind(setting, plans, memory)?;
        if !bound.statics.is_empty() {
            gpu.upload(stream, regions.statics(memory)?, &bound.statics)?;
        }
        // No kernel writes the floats of a row that no lookup reads.
        for &gradients in &bound.table_grads {
            gpu.fill(stream, gradients, 0)?;
        }
        let tables = setting.batch.tables.iter().zip(&setting.most.unique);
        let rows = tables.zip(&setting.form.strides).map(|((places, unique), stride)| {
            let part = || batch.part(places.rows, 4 * unique * stride);
            Ok(if places.is_read { Some(part()?) } else { None })
        });
        let rows = rows.collect::<Result<_>>()?;
        if let Some(library) = setting.library {
            library.prepare(gpu, stream, &bound)?;
        }
        let bytes = |of: &Memory| of.bytes();
        let results_bytes = setting.fixed.results.bytes()
            + bound.outputs.iter().flatten().map(bytes).sum::<usize>()
            + bound.row_grads.iter().map(bytes).sum::<usize>();
        Ok(Self {
            layout: Arc::new(BatchLayout {
                most: setting.most.clone(),
                form: setting.form.clone(),
                places: setting.batch.clone(),
            }),
            memory,
            batch,
            bound,
            rows,
            launches: Replayed::default(),
            step: Replayed::default(),
            host: None,
            results_bytes,
        })
    }

    /// Returns whether the launches can run a batch.
    pub(crate) fn fits(&self, sizes: &Sizes, form: &Form) -> bool {
        self.layout.fits(sizes, form)
    }

    /// Allocates the pinned memory of runs whose end the host waits for, unless it is there.
    pub(crate) fn allocate_host(&mut self, gpu: &dyn Gpu) -> Result<()> {
        if self.host.is_none() {
            let batch_in = gpu.allocate_pinned(self.layout.places.bytes.max(1))?;
            let results_out = gpu.allocate_pinned(self.results_bytes.max(1))?;
            self.host = Some(HostBuffers { batch_in, results_out });
        }
        Ok(())
    }

    /// Returns the pinned memory of runs whose end the host waits for, and the places of a batch.
    pub(crate) fn host_mut(&mut self) -> Option<(&mut HostBuffers, &BatchPlaces)> {
        Some((self.host.as_mut()?, &self.layout.places))
    }

    /// Returns the pinned memory of runs whose end the host waits for.
    pub(crate) fn host(&self) -> Option<&HostBuffers> {
        self.host.as_ref()
    }

    /// Enqueues all launches of a run.
    pub(crate) fn launch(&mut self, gpu: &dyn Gpu, stream: Stream, side: &Side) -> Result<()> {
        let Self { launches, bound, .. } = self;
        launches.run(gpu, stream, (), || enqueue(gpu, stream, side, &bound.operations))
    }

    /// Frees the memory and the graphs. No operation may use them any more.
    pub(crate) fn free(mut self, gpu: &dyn Gpu, stream: Stream) -> Result<()> {
        let launches = self.launches.forget(gpu, stream);
        let step = self.step.forget(gpu, stream);
        gpu.free(self.memory)?;
        launches.and(step)
    }
}

/// Enqueues operations in their order, some of them beside the others. At the end, the stream waits
/// for all of them.
pub(crate) fn enqueue(
    gpu: &dyn Gpu,
    stream: Stream,
    side: &Side,
    operations: &[Operation],
) -> Result<()> {
    let (mut is_forked, mut is_beside) = (false, false);
    for operation in operations {
        let BoundLaunch { kernel, geometry, parameters, node, beside } = match operation {
            Operation::Kernel(launch) => launch,
            Operation::Product(product) => {
                is_forked = false;
                gpu.multiply(stream, product)?;
                continue;
            }
        };
        if *beside && !is_forked {
            side.fork(gpu)?;
        }
        is_forked = *beside;
        is_beside |= *beside;
        let params = [Param::from_bytes(parameters)];
        let stream = if *beside { side.stream } else { stream };
        gpu.launch(stream, &geometry.launch(kernel, &params, &[("node", node.0 as usize)]))?;
    }
    if is_beside { side.join(gpu) } else { Ok(()) }
}
