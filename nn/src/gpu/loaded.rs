//! The memory and the launches for a capacity.

use zillion_device::gpu::{Gpu, Graph, Memory, Param, Pinned, Stream};

use crate::error::Result;
use crate::gpu::batch::BatchPlaces;
use crate::gpu::bind::{Bound, Regions};
use crate::gpu::binder::{BoundLaunch, Operation, Setting};
use crate::gpu::row_plan::RowPlan;
use crate::gpu::sizes::{Form, Sizes};

/// The memory and the launches for batches of one form that fit a capacity.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) most: Sizes,
    form: Form,
    pub(crate) places: BatchPlaces,
    memory: Memory,
    /// The memory of the batch on the device.
    pub(crate) batch: Memory,
    pub(crate) bound: Bound,
    /// The launches as a recorded graph, from the second run on.
    graph: Option<Graph>,
    has_run: bool,
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
        for &row_grads in &bound.row_grads {
            gpu.fill(stream, row_grads, 0)?;
        }
        if let Some(library) = setting.library {
            library.prepare(gpu, stream, &bound)?;
        }
        let bytes = |of: &Memory| of.bytes();
        let results = setting.fixed.results.bytes()
            + bound.outputs.iter().flatten().map(bytes).sum::<usize>()
            + bound.row_grads.iter().map(bytes).sum::<usize>();
        let batch_in = gpu.allocate_pinned(setting.batch.bytes.max(1))?;
        let results_out = gpu.allocate_pinned(results.max(1))?;
        Ok(Self {
            most: setting.most.clone(),
            form: setting.form.clone(),
            places: setting.batch.clone(),
            memory,
            batch,
            bound,
            graph: None,
            has_run: false,
            batch_in,
            results_out,
        })
    }

    /// Returns whether the launches can run a batch.
    pub(crate) fn fits(&self, sizes: &Sizes, form: &Form) -> bool {
        self.form == *form && sizes.fits(&self.most)
    }

    /// Enqueues all launches of a run. The second run records them as a graph, which takes the host
    /// less time to enqueue.
    pub(crate) fn launch(&mut self, gpu: &dyn Gpu, stream: Stream) -> Result<()> {
        if !self.has_run {
            self.has_run = true;
            return enqueue(gpu, stream, &self.bound.operations);
        }
        let graph = match self.graph {
            Some(graph) => graph,
            None => {
                gpu.begin_capture(stream)?;
                let enqueued = enqueue(gpu, stream, &self.bound.operations);
                let graph = gpu.end_capture(stream)?;
                enqueued?;
                *self.graph.insert(graph)
            }
        };
        Ok(gpu.replay(stream, graph)?)
    }

    /// Frees the memory and the graph. No operation may use them any more.
    pub(crate) fn free(self, gpu: &dyn Gpu) -> Result<()> {
        let graph = self.graph.map_or(Ok(()), |graph| gpu.free_graph(graph));
        gpu.free(self.memory)?;
        Ok(graph?)
    }
}

fn enqueue(gpu: &dyn Gpu, stream: Stream, operations: &[Operation]) -> Result<()> {
    for operation in operations {
        match operation {
            Operation::Kernel(BoundLaunch { kernel, geometry, parameters, node }) => {
                let params = [Param::from_bytes(parameters)];
                let shapes = [("node", node.0 as usize)];
                gpu.launch(stream, &geometry.launch(kernel, &params, &shapes))?;
            }
            Operation::Product(product) => gpu.multiply(stream, product)?,
        }
    }
    Ok(())
}
