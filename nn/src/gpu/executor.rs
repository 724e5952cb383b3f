//! The executor, which runs a program on a GPU.
//!
//! A step has three stages. The batch and the parameters are uploaded, the launches are enqueued,
//! and the results are downloaded. The host waits only once, at the end.
//!
//! # Invariants
//! * Memory is allocated for a capacity. A step allocates only if its batch does not fit the
//!   capacity, or if it has another form (see [`Form`]).
//! * Launches contain addresses, so they are made anew with the memory.
//! * All operations are on one stream. The pinned memory of a step is used again only after the
//!   wait at the end of the step.

use std::sync::Arc;

use zillion_device::gpu::{Gpu, Memory, Pinned, Stream};

use crate::cpu::program::Program;
use crate::error::Result;
use crate::gpu::batch::BatchPlaces;
use crate::gpu::bind::{Bound, bind_without_memory};
use crate::gpu::binder::Setting;
use crate::gpu::cut::Cut;
use crate::gpu::fixed::Fixed;
use crate::gpu::library::LibraryProducts;
use crate::gpu::loaded::Loaded;
use crate::gpu::resident::Resident;
use crate::gpu::row_plan::{Occurrences, RowPlan};
use crate::gpu::sizes::{Form, Sizes};
use crate::gpu::sources::Sources;
use crate::gpu::values::ValuePlan;
use crate::graph::op::Op;
use crate::graph::shape::{NodeId, ParamId};
use crate::inputs::Inputs;
use crate::ops::StepSeed;
use crate::params::Params;

/// An engine that runs a [`Program`] on a GPU and keeps its memory between runs.
///
/// Its results have the bits of [`Executor`](crate::Executor), except for the payload of a NaN. With
/// [`LibraryProducts`], they have those of a model of GPU and a version of the library.
#[derive(Debug)]
pub struct GpuExecutor {
    pub(super) program: Program,
    pub(super) gpu: Arc<dyn Gpu>,
    pub(super) stream: Stream,
    pub(super) fixed: Fixed,
    sources: Sources,
    values: ValuePlan,
    plans: Vec<RowPlan>,
    params_in: Pinned,
    pub(super) loaded: Option<Loaded>,
    growths: u64,
    batch: BatchState,
    /// The constants of the last run, in the order of the device's memory.
    results: Vec<f32>,
    outputs: Vec<Vec<f32>>,
    /// The state of the optimizer, if the parameters stay on the device.
    pub(super) resident: Option<Resident>,
    /// The settings of the library's products; `None` if all products are exact.
    pub(super) library: Option<LibraryProducts>,
}

/// The state that is computed on the host from each batch. Its buffers are reused.
#[derive(Debug)]
struct BatchState {
    cut: Cut,
    sizes: Sizes,
    form: Form,
    occurrences: Occurrences,
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
        let sources = Sources::new(lowered);
        let values = ValuePlan::new(lowered);
        let plans = RowPlan::all(lowered);
        let cut = Cut::new(lowered);
        let inputs = &lowered.graph.inputs;
        let form = Form {
            lists: vec![true; inputs.columns.len()],
            weighted: vec![true; inputs.columns.len()],
            masked: vec![true; inputs.labels.len()],
            sample_weights: true,
            strides: inputs.tables.iter().map(|table| table.stride).collect(),
            exact_rows: 0,
        };
        let block = library.as_ref().map_or(0, LibraryProducts::block);
        let sizes = Sizes {
            rows: block,
            values: vec![block; inputs.columns.len()],
            unique: vec![0; inputs.tables.len()],
            occurrences: vec![0; inputs.tables.len()],
            ..Sizes::default()
        };
        let fixed = Fixed::new(&*gpu, stream, lowered)?;
        let params_in = gpu.allocate_pinned(fixed.params_bytes.max(1))?;
        let outputs = vec![Vec::new(); lowered.outputs.len()];
        let executor = Self {
            batch: BatchState { cut, sizes, form, occurrences: Occurrences::default() },
            program,
            gpu,
            stream,
            fixed,
            sources,
            values,
            plans,
            params_in,
            loaded: None,
            growths: 0,
            results: Vec::new(),
            outputs,
            resident: None,
            library,
        };
        // The operations without a batch show whether there is a kernel for each node.
        executor.bind_without_batch()?;
        Ok(executor)
    }

    /// Makes the operations for no batch, or for a block of the library's products.
    pub(super) fn bind_without_batch(&self) -> Result<Bound> {
        let BatchState { sizes, form, .. } = &self.batch;
        let places = self.lay_out(sizes, form);
        bind_without_memory(self.setting(sizes, form, &places), &self.plans)
    }

    /// Returns the program that is run.
    pub fn program(&self) -> &Program {
        &self.program
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

    fn constant(&self, id: NodeId) -> Option<&[f32]> {
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
        if let Some(library) = &self.library {
            library.check(inputs.rows)?;
        }
        self.measure(inputs);
        self.load()?;
        self.upload_batch(inputs, seed)
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

    /// Measures a batch: its division, its sizes and its form.
    fn measure(&mut self, inputs: &Inputs<'_>) {
        let BatchState { cut, sizes, form, .. } = &mut self.batch;
        cut.set(&self.program.lowered, inputs);
        form.set(inputs, !self.program.lowered.single_columns.is_empty());
        sizes.rows = inputs.rows;
        sizes.values.clear();
        sizes.values.extend(inputs.columns.iter().map(|column| column.inverse.len()));
        sizes.unique.clear();
        sizes.unique.extend(inputs.tables.iter().map(|table| table.unique));
        sizes.occurrences.clear();
        sizes.occurrences.resize(inputs.tables.len(), 0);
        for plan in &self.plans {
            sizes.occurrences[plan.table] = plan.count(inputs);
        }
        (sizes.tiles, sizes.blocks) = (cut.tiles(), cut.blocks());
    }

    /// Allocates memory and makes the launches, unless those of an earlier batch fit.
    fn load(&mut self) -> Result<()> {
        let BatchState { sizes, form, .. } = &self.batch;
        if self.loaded.as_ref().is_some_and(|loaded| loaded.fits(sizes, form)) {
            return Ok(());
        }
        let mut earlier = Sizes::default();
        if let Some(loaded) = self.loaded.take() {
            earlier = loaded.most.clone();
            loaded.free(&*self.gpu)?;
        }
        let (mut most, form) = (self.batch.sizes.grow(&earlier), &self.batch.form);
        if let Some(library) = &self.library {
            most = most.in_blocks(library.block());
        }
        let places = self.lay_out(&most, form);
        let setting = self.setting(&most, form, &places);
        self.loaded = Some(Loaded::new(&*self.gpu, self.stream, setting, &self.plans)?);
        self.growths += 1;
        Ok(())
    }

    fn upload_batch(&mut self, inputs: &Inputs<'_>, seed: StepSeed) -> Result<()> {
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        let BatchState { cut, occurrences, .. } = &mut self.batch;
        let Loaded { places, batch_in, batch, .. } = loaded;
        places.write(batch_in, &self.sources, cut, inputs, seed)?;
        for plan in &self.plans {
            plan.list(&self.program.lowered, inputs, occurrences)?;
            places.write_occurrences(batch_in, plan, inputs, occurrences)?;
        }
        Ok(self.gpu.copy_in(self.stream, *batch, batch_in, 0)?)
    }

    pub(super) fn upload_params(&mut self, params: &Params) -> Result<()> {
        for (&at, (_, values)) in self.fixed.params.iter().zip(params.iter()) {
            self.params_in.write(at, values)?;
        }
        let to = self.fixed.memory.part(0, self.fixed.params_bytes)?;
        Ok(self.gpu.copy_in(self.stream, to, &self.params_in, 0)?)
    }

    pub(super) fn launch(&mut self) -> Result<()> {
        match &mut self.loaded {
            Some(loaded) => loaded.launch(&*self.gpu, self.stream),
            None => Ok(()),
        }
    }

    /// Copies the results to pinned memory, waits, and reads the constants. Copies all constants,
    /// or the loss alone.
    pub(super) fn download(&mut self, inputs: &Inputs<'_>, all: bool) -> Result<()> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let results = self.fixed.results;
        let loss = self.program.lowered.loss.and_then(|loss| self.constant_range(loss));
        let constants = match loss {
            Some((start, len)) if !all => start..start + len,
            _ => 0..results.bytes() / 4,
        };
        let from = results.part(4 * constants.start, 4 * constants.len())?;
        self.gpu.copy_out(self.stream, &loaded.results_out, 4 * constants.start, from)?;
        let mut at = results.bytes();
        for (index, &memory) in loaded.bound.outputs.iter().enumerate() {
            let Some(memory) = memory else { continue };
            let bytes = 4 * self.output_floats(index, inputs);
            self.gpu.copy_out(self.stream, &loaded.results_out, at, memory.part(0, bytes)?)?;
            at += memory.bytes();
        }
        for (plan, &memory) in self.plans.iter().zip(&loaded.bound.row_grads) {
            let bytes = 4 * inputs.tables[plan.table].values.len();
            self.gpu.copy_out(self.stream, &loaded.results_out, at, memory.part(0, bytes)?)?;
            at += memory.bytes();
        }
        self.gpu.synchronize(self.stream)?;
        self.results.resize(results.bytes() / 4, 0.0);
        let to = &mut self.results[constants.clone()];
        Ok(loaded.results_out.read(4 * constants.start, to)?)
    }

    /// Returns the number of floats of a result.
    fn output_floats(&self, index: usize, inputs: &Inputs<'_>) -> usize {
        let shape = self.program.lowered.graph.shape(self.program.lowered.outputs[index]);
        inputs.span(shape.rows, &(0..inputs.rows)).len() * shape.cols
    }

    pub(super) fn read_outputs(&mut self, inputs: &Inputs<'_>, params: &Params) -> Result<()> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let mut at = self.fixed.results.bytes();
        let mut outputs = std::mem::take(&mut self.outputs);
        for (index, out) in outputs.iter_mut().enumerate() {
            let id = self.program.lowered.outputs[index];
            out.clear();
            if let Some(memory) = loaded.bound.outputs[index] {
                out.resize(self.output_floats(index, inputs), 0.0);
                loaded.results_out.read(at, out)?;
                at += memory.bytes();
            } else if let Some(value) = self.constant(id) {
                out.extend_from_slice(value);
            } else if let Some(value) = self.param_value(id, params) {
                out.extend_from_slice(value);
            }
        }
        self.outputs = outputs;
        Ok(())
    }

    /// Returns the floats of a node that is a parameter or a view of one.
    fn param_value<'a>(&self, id: NodeId, params: &'a Params) -> Option<&'a [f32]> {
        let graph = &self.program.lowered.graph;
        let len = graph.shape(id).const_len()?;
        let (mut id, mut start) = (id, 0);
        loop {
            match graph.node(id).op {
                Op::Param { param } => return params.value(param).get(start..start + len),
                Op::Slice { start: of_view, .. } => start += of_view,
                _ => return None,
            }
            id = graph.node(id).inputs[0];
        }
    }

    pub(super) fn read_row_grads(
        &self,
        inputs: &Inputs<'_>,
        row_grads: &mut [&mut [f32]],
    ) -> Result<()> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let outputs = loaded.bound.outputs.iter().flatten().map(|of| of.bytes());
        let at = self.fixed.results.bytes() + outputs.sum::<usize>();
        for (table, out) in row_grads.iter_mut().enumerate() {
            let Some(index) = self.plans.iter().position(|plan| plan.table == table) else {
                out.fill(0.0);
                continue;
            };
            debug_assert_eq!(out.len(), inputs.tables[table].values.len());
            let before = &loaded.bound.row_grads[..index];
            let offset = before.iter().map(|of| of.bytes()).sum::<usize>();
            loaded.results_out.read(at + offset, out)?;
        }
        Ok(())
    }
}

impl Drop for GpuExecutor {
    fn drop(&mut self) {
        // An error cannot be returned from here. The device reports it again at its next use.
        let _ = self.gpu.synchronize(self.stream);
        if let Some(loaded) = self.loaded.take() {
            let _ = loaded.free(&*self.gpu);
        }
        let _ = self.drop_kept();
        let _ = self.gpu.free(self.fixed.memory);
    }
}
