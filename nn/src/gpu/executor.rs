//! The executor, which runs a program on a GPU.
//!
//! A run has three stages. The batch and the parameters are uploaded, the launches are enqueued,
//! and the results are downloaded. The host waits only once, at the end. If the rows of tables stay
//! on the device too, the host does not wait at all ([`GpuExecutor::enqueue_step`]).
//!
//! # Invariants
//! * Memory is allocated for a capacity. A step allocates only if its batch does not fit the
//!   capacity, or if it has another form (see [`Form`]).
//! * Launches contain addresses, so they are made anew with the memory.
//! * All operations are on one stream, or beside it on a stream that is joined back to it before
//!   anything else. The pinned memory of a run is used again only after the
//!   wait at the end of the run. Steps that nothing waits for have rings of pinned memory (see
//!   [`Ring`]).

use std::sync::{Arc, Weak};

use zillion_device::gpu::{Gpu, GpuError, Memory, Pinned, Stream};

use crate::cpu::program::Program;
use crate::error::{Error, Result};
use crate::gpu::batch::BatchPlaces;
use crate::gpu::bind::{Bound, bind_without_memory};
use crate::gpu::binder::Setting;
use crate::gpu::device_params::DeviceParams;
use crate::gpu::fixed::Fixed;
use crate::gpu::library::LibraryProducts;
use crate::gpu::loaded::Loaded;
use crate::gpu::measured::Measured;
use crate::gpu::resident::Resident;
use crate::gpu::ring::Ring;
use crate::gpu::row_plan::RowPlan;
use crate::gpu::side::Side;
use crate::gpu::sizes::{Form, Sizes};
use crate::gpu::sources::Sources;
use crate::gpu::staging::{BatchStager, Staging};
use crate::gpu::values::ValuePlan;
use crate::graph::op::Op;
use crate::graph::shape::{NodeId, ParamId};
use crate::inputs::Inputs;
use crate::ops::StepSeed;
use crate::params::Params;

/// An engine that runs a [`Program`] on a GPU and keeps its memory between runs.
///
/// Its results have the bits of [`Executor`](crate::Executor), except for the payload of a NaN.
/// With [`LibraryProducts`], they have those of a model of GPU and a version of the library.
#[derive(Debug)]
pub struct GpuExecutor {
    pub(super) program: Program,
    pub(super) gpu: Arc<dyn Gpu>,
    pub(super) stream: Stream,
    pub(super) side: Side,
    pub(super) fixed: Fixed,
    pub(super) sources: Sources,
    values: ValuePlan,
    pub(super) plans: Vec<RowPlan>,
    params_in: Pinned,
    pub(super) loaded: Option<Loaded>,
    /// The memory and the launches for batches of the form before.
    pub(super) spare: Option<Loaded>,
    growths: u64,
    pub(super) batch: Measured,
    /// The constants of the last run, in the order of the device's memory.
    pub(super) results: Vec<f32>,
    pub(super) outputs: Vec<Vec<f32>>,
    /// The state of the optimizer, if the parameters stay on the device.
    pub(super) resident: Option<Resident>,
    /// The steps that nothing waits for.
    pub(super) ring: Ring,
    /// The settings of the library's products; `None` if all products are exact.
    pub(super) library: Option<LibraryProducts>,
    /// The blocks of batches that other threads write before their steps.
    pub(super) staging: Option<Staging>,
    /// The number of steps whose batch was in such a block.
    pub(super) staged_steps: u64,
    /// The parameters on the device that the memory of parameters has a copy of, if any.
    pub(super) scored_params: Weak<DeviceParams>,
}

impl GpuExecutor {
    /// Creates an executor, and allocates the memory of the parameters and constants. The first run
    /// allocates the rest.
    ///
    /// # Errors
    /// Returns an error that names the first node that a GPU cannot compute, or an error of the
    /// GPU.
    pub fn new(program: Program, gpu: Arc<dyn Gpu>) -> Result<Self> {
        Self::with_products(program, gpu, None)
    }

    /// Creates an executor as [`GpuExecutor::new`] does. With `library`, the library of the GPU
    /// computes the products of layers.
    ///
    /// # Errors
    /// Returns the errors of [`GpuExecutor::new`], or an error if the GPU has no library of
    /// products.
    pub fn with_products(
        program: Program,
        gpu: Arc<dyn Gpu>,
        library: Option<LibraryProducts>,
    ) -> Result<Self> {
        if library.is_some()
            && let (_, Some(problem)) = gpu.info().product_library()
        {
            return Err(problem.into());
        }
        let lowered = &program.lowered;
        let stream = gpu.create_stream()?;
        let side = Side::new(&*gpu, stream)?;
        let sources = Sources::new(lowered);
        let values = ValuePlan::new(lowered);
        let plans = RowPlan::all(lowered);
        let block = library.as_ref().map_or(0, LibraryProducts::block);
        let fixed =
            Fixed::new(&*gpu, stream, lowered).inspect_err(|_| give_back(&*gpu, stream, &side))?;
        let params_in = gpu.allocate_pinned(fixed.params_bytes.max(1)).inspect_err(|_| {
            let _ = gpu.free(fixed.memory);
            give_back(&*gpu, stream, &side);
        })?;
        let outputs = vec![Vec::new(); lowered.outputs.len()];
        let executor = Self {
            batch: Measured::new(lowered, block),
            program,
            gpu,
            stream,
            side,
            fixed,
            sources,
            values,
            plans,
            params_in,
            loaded: None,
            spare: None,
            growths: 0,
            results: Vec::new(),
            outputs,
            resident: None,
            ring: Ring::default(),
            library,
            staging: None,
            staged_steps: 0,
            scored_params: Weak::new(),
        };
        // The operations without a batch show whether there is a kernel for each node.
        executor.bind_without_batch()?;
        Ok(executor)
    }

    /// Makes the operations for no batch, or for a block of the library's products.
    pub(super) fn bind_without_batch(&self) -> Result<Bound> {
        let Measured { sizes, form, .. } = &self.batch;
        let places = self.lay_out(sizes, form);
        bind_without_memory(self.setting(sizes, form, &places), &self.plans)
    }

    /// Returns the program that is run.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the stream of all operations.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// Returns the device that runs the program.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Returns the number of times that memory was allocated for a larger batch, or for a batch of
    /// another form.
    pub fn growths(&self) -> u64 {
        self.growths
    }

    /// Returns a writer of batches, with which other threads write up to `batches` batches to
    /// pinned memory before their steps ([`GpuExecutor::enqueue_staged_step`]). All calls return
    /// the same writer; the first one decides the number. The blocks are allocated by the first
    /// steps.
    pub fn stager(&mut self, batches: usize) -> BatchStager {
        let Self { program, sources, plans, staging, .. } = self;
        let new = || Staging::new(&program.lowered, sources, plans, batches);
        let stager = staging.get_or_insert_with(new).stager();
        self.publish_layouts();
        stager
    }

    /// Frees the blocks of batches that other threads write. Their batches get none from now on.
    pub fn stop_staging(&mut self) {
        self.staging = None;
    }

    /// Returns the number of steps whose batch another thread has written.
    pub fn staged_steps(&self) -> u64 {
        self.staged_steps
    }

    /// Runs a training program. It computes the loss and all gradients, and updates the running
    /// statistics in `params`. `row_grads` has one slice of `unique × stride` floats for each
    /// table, as for [`Executor::train`](crate::Executor::train).
    ///
    /// # Errors
    /// Returns an error if the inputs or the parameters do not fit the program, or an error of the
    /// GPU.
    pub fn train(
        &mut self,
        inputs: &Inputs<'_>,
        params: &mut Params,
        seed: StepSeed,
        row_grads: &mut [&mut [f32]],
    ) -> Result<()> {
        self.program.lowered.check_row_grads(inputs, row_grads)?;
        self.run(inputs, params, seed)?;
        self.read_row_grads(inputs, row_grads)?;
        for &(param, node) in &self.program.lowered.updates {
            if let Some(value) = self.constant(node) {
                params.value_mut(param).copy_from_slice(value);
            }
        }
        Ok(())
    }

    /// Runs an inference program.
    ///
    /// # Errors
    /// Returns an error if the inputs or the parameters do not fit the program, or an error of the
    /// GPU.
    pub fn infer(&mut self, inputs: &Inputs<'_>, params: &Params) -> Result<()> {
        self.run(inputs, params, StepSeed::default())
    }

    /// Returns a result of the last run, row after row. `node` is the node of the result in the
    /// graph from which the program was planned. Returns `None` if the result was not requested.
    pub fn output(&self, node: NodeId) -> Option<&[f32]> {
        let index = self.program.lowered.requested.iter().position(|&id| id == node)?;
        Some(&self.outputs[index])
    }

    /// Returns a result of the last run by its name in the graph, or `None` if it was not
    /// requested.
    pub fn named_output(&self, name: &str) -> Option<&[f32]> {
        let node = self.program.lowered.graph.output(name)?;
        let index = self.program.lowered.outputs.iter().position(|&id| id == node)?;
        Some(&self.outputs[index])
    }

    /// Returns the loss of the last run, or `None` if the program does not train.
    pub fn loss(&self) -> Option<f32> {
        self.constant(self.program.lowered.loss?)?.first().copied()
    }

    /// Returns the gradient of a parameter, in the parameter's shape. Returns `None` if the loss
    /// does not depend on the parameter.
    pub fn param_grad(&self, param: ParamId) -> Option<&[f32]> {
        let grads = &self.program.lowered.param_grads;
        let index = grads.binary_search_by_key(&param, |&(p, _)| p).ok()?;
        self.constant(grads[index].1)
    }

    /// Returns the gradient of each parameter that has one, in the order of parameters.
    pub fn param_grads(&self) -> impl Iterator<Item = (ParamId, &[f32])> {
        let grads = self.program.lowered.param_grads.iter();
        grads.filter_map(|&(param, node)| self.constant(node).map(|grad| (param, grad)))
    }

    /// Returns the memory of a parameter on the device. The next run writes the parameters there.
    pub fn device_param(&self, param: ParamId) -> Result<Memory> {
        let spec = self.program.lowered.graph.param(param);
        let at = self.fixed.params[param.0 as usize];
        Ok(self.fixed.memory.part(at, 4 * spec.rows * spec.cols)?)
    }

    /// Returns the memory of a parameter's gradient on the device. Returns `None` if the loss does
    /// not depend on the parameter.
    pub fn device_param_grad(&self, param: ParamId) -> Option<Memory> {
        let grads = &self.program.lowered.param_grads;
        let index = grads.binary_search_by_key(&param, |&(p, _)| p).ok()?;
        let (start, len) = self.constant_range(grads[index].1)?;
        self.fixed.results.part(4 * start, 4 * len).ok()
    }

    /// Returns the memory of the gradients of a table's rows on the device, after a run. It has the
    /// capacity of the table; the unique rows of the last batch come first, in the order of its
    /// plan. Returns `None` before the first run, or if the loss does not depend on the table.
    pub fn device_row_grads(&self, table: usize) -> Option<Memory> {
        let index = self.plans.iter().position(|plan| plan.table == table)?;
        self.loaded.as_ref().map(|loaded| loaded.bound.row_grads[index])
    }

    /// Returns the first float and the number of floats of a constant that the run computed, or
    /// `None` for another node.
    pub(super) fn constant_range(&self, id: NodeId) -> Option<(usize, usize)> {
        let graph = &self.program.lowered.graph;
        let len = graph.shape(id).const_len()?;
        let (mut id, mut start) = (id, 0);
        loop {
            if let Some(float) = self.fixed.constants[id.0 as usize] {
                return Some((float + start, len));
            }
            let node = graph.node(id);
            let Op::Slice { start: of_view, .. } = node.op else { return None };
            start += of_view;
            id = node.inputs[0];
        }
    }

    pub(super) fn constant(&self, id: NodeId) -> Option<&[f32]> {
        let (start, len) = self.constant_range(id)?;
        self.results.get(start..start + len)
    }

    fn run(&mut self, inputs: &Inputs<'_>, params: &Params, seed: StepSeed) -> Result<()> {
        self.program.lowered.check(inputs, params)?;
        self.drop_kept()?;
        self.begin(inputs, seed)?;
        self.upload_params(params)?;
        self.launch()?;
        self.download(inputs, true)?;
        self.read_outputs(inputs, params)
    }

    /// Makes the memory and the launches for a batch, and enqueues its upload.
    pub(super) fn begin(&mut self, inputs: &Inputs<'_>, seed: StepSeed) -> Result<()> {
        self.load(inputs)?;
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        loaded.allocate_host(&*self.gpu)?;
        let to = loaded.batch;
        let Some((host, places)) = loaded.host_mut() else { return Ok(()) };
        let of = (&self.program.lowered, &self.sources, &self.plans[..]);
        self.batch.write(&mut host.batch_in, places, of, inputs, seed)?;
        places.write_rows(&mut host.batch_in, inputs)?;
        Ok(self.gpu.copy_in(self.stream, to, &host.batch_in, 0)?)
    }

    fn lay_out(&self, most: &Sizes, form: &Form) -> BatchPlaces {
        BatchPlaces::new(&self.program.lowered, &self.sources, &self.batch.cut, most, form)
    }

    fn setting<'a>(
        &'a self,
        most: &'a Sizes,
        form: &'a Form,
        batch: &'a BatchPlaces,
    ) -> Setting<'a> {
        Setting {
            lowered: &self.program.lowered,
            fixed: &self.fixed,
            most,
            form,
            batch,
            values: &self.values,
            numeric: &self.sources.numeric,
            shared_bytes: self.gpu.info().shared_bytes,
            library: self.library.as_ref(),
        }
    }

    /// Measures a batch. Allocates memory and makes the launches, unless those of an earlier batch
    /// fit. The memory and the launches of two forms are kept, because the batches of a run may
    /// have two: the last batch of an epoch is smaller, which is a form of its own if a node
    /// compares all rows of a batch.
    pub(super) fn load(&mut self, inputs: &Inputs<'_>) -> Result<()> {
        if let Some(library) = &self.library {
            library.check(inputs.rows)?;
        }
        self.batch.set(&self.program.lowered, &self.plans, inputs);
        let Measured { sizes, form, .. } = &self.batch;
        let fits = |of: &Option<Loaded>| of.as_ref().is_some_and(|it| it.fits(sizes, form));
        if fits(&self.loaded) {
            return Ok(());
        }
        if fits(&self.spare) {
            std::mem::swap(&mut self.loaded, &mut self.spare);
            return Ok(());
        }
        // Steps that nothing has waited for use the memory.
        self.drain_steps()?;
        let mut earlier = Sizes::default();
        if let Some(loaded) = self.loaded.take() {
            earlier = loaded.layout.most.clone();
            let has_form = loaded.layout.form == self.batch.form;
            let old = if has_form { Some(loaded) } else { self.spare.replace(loaded) };
            self.unload(old)?;
        }
        self.loaded = Some(match self.make_loaded(&earlier) {
            Err(Error::Gpu(GpuError::OutOfMemory { .. } | GpuError::Budget { .. }))
                if self.spare.is_some() =>
            {
                let old = self.spare.take();
                self.unload(old)?;
                self.make_loaded(&earlier)?
            }
            made => made?,
        });
        self.growths += 1;
        self.publish_layouts();
        Ok(())
    }

    /// Tells the threads that write batches ahead the layouts of the present capacities.
    fn publish_layouts(&self) {
        let Some(staging) = &self.staging else { return };
        let all = [&self.loaded, &self.spare].into_iter().flatten();
        staging.set_layouts(all.map(|loaded| Arc::clone(&loaded.layout)).collect());
    }

    fn make_loaded(&self, earlier: &Sizes) -> Result<Loaded> {
        let (mut most, form) = (self.batch.sizes.grow(earlier), &self.batch.form);
        if let Some(library) = &self.library {
            most = most.in_blocks(library.block());
        }
        let places = self.lay_out(&most, form);
        let setting = self.setting(&most, form, &places);
        Loaded::new(&*self.gpu, self.stream, setting, &self.plans)
    }

    fn unload(&self, loaded: Option<Loaded>) -> Result<()> {
        loaded.map_or(Ok(()), |loaded| loaded.free(&*self.gpu, self.stream))
    }

    pub(super) fn upload_params(&mut self, params: &Params) -> Result<()> {
        self.scored_params = Weak::new();
        for (&at, (_, values)) in self.fixed.params.iter().zip(params.iter()) {
            self.params_in.write(at, values)?;
        }
        let to = self.fixed.memory.part(0, self.fixed.params_bytes)?;
        Ok(self.gpu.copy_in(self.stream, to, &self.params_in, 0)?)
    }

    pub(super) fn launch(&mut self) -> Result<()> {
        match &mut self.loaded {
            Some(loaded) => loaded.launch(&*self.gpu, self.stream, &self.side),
            None => Ok(()),
        }
    }
}

impl Drop for GpuExecutor {
    fn drop(&mut self) {
        // An error cannot be returned from here. The device reports it again at its next use.
        let _ = self.gpu.synchronize(self.stream);
        for loaded in [self.loaded.take(), self.spare.take()] {
            let _ = self.unload(loaded);
        }
        let _ = self.drop_kept();
        let _ = self.ring.free(&*self.gpu);
        let _ = self.gpu.free(self.fixed.memory);
        // The graphs, which use the memory that the library has for the stream, are gone.
        give_back(&*self.gpu, self.stream, &self.side);
    }
}

/// Frees the streams. An error is reported again by the next use of the device.
fn give_back(gpu: &dyn Gpu, stream: Stream, side: &Side) {
    let _ = side.free(gpu);
    let _ = gpu.free_stream(stream);
}
