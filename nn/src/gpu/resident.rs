//! Parameters that stay on the device between steps, with the state of their optimizer.
//!
//! # Invariants
//! * From [`GpuExecutor::keep_params`] on, the device has the newest parameters and states. Those
//!   of the host are old until [`GpuExecutor::settle_params`] copies them.
//! * The pinned memory of an update is written again only after the wait of the next step.
//! * The norm, the rules and the order of additions are those of [`DenseOptimizer`], so the results
//!   have its bits.
//! * A step for which the host does not wait is counted in the optimizer by
//!   [`GpuExecutor::settle_params`]. Until then, [`Resident`] counts it.

use zillion_device::gpu::kernels::{
    ChooseRules, DENSE_SQUARES, DENSE_UPDATE, DensePiece, DenseRule, DenseUpdate, Geometry,
    LAMB_SQUARES, LAMB_WEIGHTS, OrderedSums,
};
use zillion_device::gpu::{Kernel, Memory, Param, Pinned, Stream};

use crate::error::{Error, Result};
use crate::gpu::arena::Arena;
use crate::gpu::executor::GpuExecutor;
use crate::gpu::results::{RESULTS, Record, StepScalars};
use crate::graph::shape::ParamId;
use crate::inputs::Inputs;
use crate::ops::StepSeed;
use crate::optim::{DEVICE_BLOCK, DenseOptimizer};
use crate::params::Params;

/// The number of bytes in front of the choices of rules, which hold the number of skipped steps
/// that the host knows.
const KNOWN_BYTES: usize = 16;

/// The state of the optimizer on the device.
#[derive(Debug)]
pub(crate) struct Resident {
    memory: Memory,
    /// The memory of both states of each parameter; empty for a state that the rule does not have.
    states: Vec<[Memory; 2]>,
    rules: Memory,
    /// The [`Record`], and its fields.
    pub(crate) record: Memory,
    pub(crate) dense_sq_norm: Memory,
    pub(crate) rows_sq_norm: Memory,
    pub(crate) scale: Memory,
    pub(crate) skip: Memory,
    pub(crate) loss: Memory,
    pub(crate) skips: Memory,
    /// The number of skipped steps that the host knows, then the rules of a step for each number of
    /// further skipped steps.
    pub(crate) choices: Memory,
    /// The index of the first piece, and the number of pieces.
    starts: Memory,
    sums: Memory,
    /// The parameters of all launches.
    update: DenseUpdate,
    is_lamb: bool,
    uses_step_numbers: bool,
    /// The rules, then the factor of the gradients.
    update_in: Pinned,
    /// The squared norm of each piece, in the order of pieces.
    sums_out: Pinned,
    /// The number of steps that changed the parameters and that the optimizer has not counted.
    uncounted: u64,
    /// The number of skipped steps whose results were read.
    known_skips: u32,
    /// The rules of a step on their way to pinned memory.
    buffer: Vec<DenseRule>,
}

impl Resident {
    /// Counts a step whose results were read.
    pub(crate) fn count(&mut self, is_skipped: bool) {
        if is_skipped {
            self.known_skips = self.known_skips.wrapping_add(1);
        } else {
            self.uncounted += 1;
        }
    }

    /// Returns the number of bytes of the rules of a step for which the host does not wait.
    pub(crate) fn rules_bytes(&self) -> usize {
        self.choices.bytes()
    }

    /// Writes the rules of the next step for each number of the steps in flight that may be
    /// skipped. Returns the number of bytes.
    pub(crate) fn write_rules(
        &mut self,
        to: &mut Pinned,
        at: usize,
        optimizer: &DenseOptimizer,
        in_flight: u64,
        step: StepScalars,
    ) -> Result<usize> {
        let number = optimizer.steps() + self.uncounted + in_flight + 1;
        let most = if self.uses_step_numbers { in_flight } else { 0 };
        self.buffer.clear();
        for skipped in 0..=most {
            optimizer.add_device_rules(number - skipped, step.rate_scale, &mut self.buffer);
        }
        to.write(at, &[self.known_skips])?;
        to.write(at + KNOWN_BYTES, &self.buffer)?;
        Ok(KNOWN_BYTES + size_of_val(self.buffer.as_slice()))
    }

    /// Returns the launch that chooses the rules of a step.
    pub(crate) fn choose(&self) -> ChooseRules {
        let n = self.states.len();
        ChooseRules {
            choices: self.choices.address() + KNOWN_BYTES as u64,
            rules: self.rules.address(),
            skips: self.skips.address(),
            known: self.choices.address(),
            n: n as u32,
            most: ((self.choices.bytes() - KNOWN_BYTES) / (n * size_of::<DenseRule>()).max(1))
                .max(1) as u32,
        }
    }

    /// Returns the launch that adds the squared norms of all pieces.
    pub(crate) fn sum_of_squares(&self) -> OrderedSums {
        OrderedSums {
            input: self.sums.address(),
            out: self.dense_sq_norm.address(),
            starts: self.starts.address(),
            n: 1,
            unused: 0,
        }
    }
}

/// The places of the state of an optimizer in its memory, in bytes.
struct Places {
    lens: Vec<[usize; 2]>,
    states: Vec<[usize; 2]>,
    /// The number of pieces.
    count: usize,
    pieces: usize,
    rules: usize,
    record: usize,
    choices: usize,
    choices_bytes: usize,
    starts: usize,
    sums: usize,
    bytes: usize,
}

impl Places {
    fn new(params: &Params, optimizer: &DenseOptimizer) -> Self {
        let mut arena = Arena::new(0);
        let mut take = |bytes: usize| arena.take(bytes) as usize;
        let lens: Vec<[usize; 2]> =
            optimizer.states().map(|(_, first, second)| [first.len(), second.len()]).collect();
        let states = lens.iter().map(|lens| lens.map(|len| take(4 * len))).collect();
        let trained =
            optimizer.states().zip(params.iter()).filter(|((trainable, ..), _)| *trainable);
        let count = trained.map(|(_, (_, values))| values.len().div_ceil(DEVICE_BLOCK)).sum();
        let rules_bytes = lens.len() * size_of::<DenseRule>();
        let most = if optimizer.uses_step_numbers() { RESULTS } else { 1 };
        let choices_bytes = KNOWN_BYTES + most * rules_bytes;
        Self {
            pieces: take(count * size_of::<DensePiece>()),
            rules: take(rules_bytes),
            record: take(size_of::<Record>()),
            choices: take(choices_bytes),
            starts: take(8),
            sums: take(2 * count * 8),
            bytes: arena.bytes(),
            lens,
            states,
            count,
            choices_bytes,
        }
    }
}

impl GpuExecutor {
    /// Copies the parameters and the state of their optimizer to the device, where they stay. From
    /// then on, [`GpuExecutor::train_kept`] computes gradients and [`GpuExecutor::optimize`]
    /// updates the parameters.
    ///
    /// # Errors
    /// Returns an error if a trained parameter has no gradient, or an error of the GPU.
    pub fn keep_params(&mut self, params: &Params, optimizer: &DenseOptimizer) -> Result<()> {
        self.drop_kept()?;
        let places = Places::new(params, optimizer);
        let memory = self.gpu.allocate(places.bytes.max(1))?;
        match self.make_resident(params, optimizer, &places, memory) {
            Ok(resident) => self.resident = Some(resident),
            Err(error) => {
                self.gpu.free(memory)?;
                return Err(error);
            }
        }
        self.upload_params(params)?;
        Ok(self.gpu.synchronize(self.stream)?)
    }

    /// Copies the state of an optimizer to its memory, and makes the launches of updates.
    fn make_resident(
        &self,
        params: &Params,
        optimizer: &DenseOptimizer,
        places: &Places,
        memory: Memory,
    ) -> Result<Resident> {
        let part = |at: usize, bytes: usize| Ok::<_, Error>(memory.part(at, bytes)?);
        let mut states = Vec::new();
        for ([first, second], [first_len, second_len]) in places.states.iter().zip(&places.lens) {
            states.push([part(*first, 4 * first_len)?, part(*second, 4 * second_len)?]);
        }
        let count = places.count;
        let rules_bytes = places.lens.len() * size_of::<DenseRule>();
        let record = part(places.record, size_of::<Record>())?;
        let rules = part(places.rules, rules_bytes)?;
        let sums = part(places.sums, 2 * count * 8)?;
        let starts = part(places.starts, 8)?;
        let pieces = self.pieces(params, optimizer, &states)?;
        let pieces_memory = part(places.pieces, count * size_of::<DensePiece>())?;
        let (gpu, stream) = (&*self.gpu, self.stream);
        gpu.upload(stream, pieces_memory, bytemuck::cast_slice(&pieces))?;
        gpu.upload(stream, starts, bytemuck::cast_slice(&[0, count as u32]))?;
        gpu.upload(stream, record, bytemuck::bytes_of(&Record::default()))?;
        for ((_, first, second), memories) in optimizer.states().zip(&states) {
            for (values, memory) in [first, second].into_iter().zip(memories) {
                if !values.is_empty() {
                    gpu.upload(stream, *memory, bytemuck::cast_slice(values))?;
                }
            }
        }
        let field = |offset: usize, bytes: usize| Ok::<_, Error>(record.part(offset, bytes)?);
        let scale = field(std::mem::offset_of!(Record, scale), 4)?;
        let update = DenseUpdate {
            pieces: pieces_memory.address(),
            rules: rules.address(),
            scale: scale.address(),
            sums: sums.address(),
            piece_count: count as u32,
            l2: optimizer.l2(),
            ..DenseUpdate::default()
        };
        Ok(Resident {
            memory,
            states,
            rules,
            record,
            dense_sq_norm: field(std::mem::offset_of!(Record, dense_sq_norm), 8)?,
            rows_sq_norm: field(std::mem::offset_of!(Record, rows_sq_norm), 8)?,
            scale,
            skip: field(std::mem::offset_of!(Record, skip), 4)?,
            loss: field(std::mem::offset_of!(Record, loss), 4)?,
            skips: field(std::mem::offset_of!(Record, skips), 4)?,
            choices: part(places.choices, places.choices_bytes)?,
            starts,
            sums,
            update,
            is_lamb: optimizer.is_lamb(),
            uses_step_numbers: optimizer.uses_step_numbers(),
            update_in: gpu.allocate_pinned(rules_bytes + 4)?,
            sums_out: gpu.allocate_pinned((8 * count).max(1))?,
            uncounted: 0,
            known_skips: 0,
            buffer: Vec::new(),
        })
    }

    /// Returns whether the parameters stay on the device.
    pub fn keeps_params(&self) -> bool {
        self.resident.is_some()
    }

    /// Returns the pieces of all trained parameters, in the order of parameters.
    fn pieces(
        &self,
        params: &Params,
        optimizer: &DenseOptimizer,
        states: &[[Memory; 2]],
    ) -> Result<Vec<DensePiece>> {
        let mut pieces = Vec::new();
        let trained = optimizer.states().zip(params.iter()).zip(states);
        for (index, (((trainable, ..), (spec, values)), states)) in (0..).zip(trained) {
            if !trainable {
                continue;
            }
            let weights = self.device_param(ParamId(index))?;
            let gradient = self.device_param_grad(ParamId(index)).ok_or_else(|| Error::Param {
                name: spec.name.clone(),
                reason: "it has no gradient; freeze it, or let the loss depend on it".to_owned(),
            })?;
            for begin in (0..values.len()).step_by(DEVICE_BLOCK) {
                let skip = 4 * begin as u64;
                let at = |memory: Memory| match memory.bytes() {
                    0 => 0,
                    _ => memory.address() + skip,
                };
                pieces.push(DensePiece {
                    weights: at(weights),
                    first: at(states[0]),
                    second: at(states[1]),
                    gradient: at(gradient),
                    n: DEVICE_BLOCK.min(values.len() - begin) as u32,
                    rule: index,
                });
            }
        }
        Ok(pieces)
    }

    /// Runs a training program with the parameters on the device, and fills the gradients of rows
    /// as [`GpuExecutor::train`] does. Returns the squared norm of the dense gradients, with the
    /// regulariser. The gradients of parameters stay on the device, and so do the running
    /// statistics. `params` gives the shapes of the parameters alone.
    ///
    /// # Errors
    /// Returns an error if the inputs do not fit the program, or an error of the GPU.
    pub fn train_kept(
        &mut self,
        inputs: &Inputs<'_>,
        params: &Params,
        seed: StepSeed,
        row_grads: &mut [&mut [f32]],
    ) -> Result<f64> {
        self.program.lowered.check_row_grads(inputs, row_grads)?;
        self.program.lowered.check(inputs, params)?;
        self.drain_steps()?;
        self.begin(inputs, seed)?;
        self.launch()?;
        self.move_statistics(self.stream)?;
        let count = self.enqueue_squares()?;
        self.download(inputs, false)?;
        self.read_outputs(inputs, params)?;
        self.read_row_grads(inputs, row_grads)?;
        let mut sums = vec![0.0f64; count];
        if let Some(resident) = &self.resident {
            resident.sums_out.read(0, &mut sums)?;
        }
        Ok(sums.iter().sum())
    }

    /// Enqueues the copies of the running statistics to their parameters.
    pub(super) fn move_statistics(&self, stream: Stream) -> Result<()> {
        for &(param, node) in &self.program.lowered.updates {
            if let Some((start, len)) = self.constant_range(node) {
                let from = self.fixed.results.part(4 * start, 4 * len)?;
                self.gpu.copy(stream, self.device_param(param)?, from)?;
            }
        }
        Ok(())
    }

    /// Updates the parameters on the device by the gradients of the last run, as
    /// [`DenseOptimizer::step`] does. Does not wait. The optimizer of the host counts the step.
    ///
    /// # Errors
    /// Returns an error if a factor is not finite, or an error of the GPU.
    pub fn optimize(
        &mut self,
        optimizer: &mut DenseOptimizer,
        rate_scale: f32,
        grad_scale: f32,
    ) -> Result<()> {
        self.drain_steps()?;
        let Some(resident) = &mut self.resident else { return Ok(()) };
        optimizer.count_device_steps(std::mem::take(&mut resident.uncounted));
        let rules = optimizer.begin_device_step(rate_scale, grad_scale)?;
        if resident.update.piece_count == 0 {
            return Ok(());
        }
        let scale_at = resident.rules.bytes();
        resident.update_in.write(0, &rules)?;
        resident.update_in.write(scale_at, &[grad_scale])?;
        self.gpu.copy_in(self.stream, resident.rules, &resident.update_in, 0)?;
        self.gpu.copy_in(self.stream, resident.scale, &resident.update_in, scale_at)?;
        match &self.resident {
            Some(resident) => self.launch_updates(self.stream, resident, 0),
            None => Ok(()),
        }
    }

    /// Copies the parameters and the state of their optimizer back to the host, after all steps.
    /// They stay on the device too. The optimizer counts the steps that changed the parameters.
    ///
    /// # Errors
    /// Returns an error of the GPU.
    pub fn settle_params(
        &mut self,
        params: &mut Params,
        optimizer: &mut DenseOptimizer,
    ) -> Result<()> {
        self.drain_steps()?;
        let Some(resident) = &mut self.resident else { return Ok(()) };
        optimizer.count_device_steps(std::mem::take(&mut resident.uncounted));
        let Some(resident) = &self.resident else { return Ok(()) };
        for (index, (_, values)) in (0..).zip(params.iter_mut()) {
            let memory = self.device_param(ParamId(index))?;
            if !values.is_empty() {
                self.gpu.download(self.stream, bytemuck::cast_slice_mut(values), memory)?;
            }
        }
        for ((first, second), memories) in optimizer.states_mut().zip(&resident.states) {
            for (values, memory) in [first, second].into_iter().zip(memories) {
                if !values.is_empty() {
                    self.gpu.download(self.stream, bytemuck::cast_slice_mut(values), *memory)?;
                }
            }
        }
        Ok(())
    }

    /// Enqueues the squared norms of all pieces and their copy to the host. Returns their number.
    fn enqueue_squares(&self) -> Result<usize> {
        let Some(resident) = &self.resident else { return Ok(0) };
        let count = resident.update.piece_count as usize;
        self.launch_squares(self.stream, resident)?;
        if count > 0 {
            let sums = resident.sums.part(0, 8 * count)?;
            self.gpu.copy_out(self.stream, &resident.sums_out, 0, sums)?;
        }
        Ok(count)
    }

    /// Enqueues the squared norms of all pieces.
    pub(super) fn launch_squares(&self, stream: Stream, resident: &Resident) -> Result<()> {
        if resident.update.piece_count == 0 {
            return Ok(());
        }
        self.launch_update(stream, &DENSE_SQUARES, resident.update.pieces(), &resident.update)
    }

    /// Enqueues the update of all parameters by the rules and the factor on the device. `skip` is
    /// the address of a number that is not zero if the step changes nothing, or 0.
    pub(super) fn launch_updates(
        &self,
        stream: Stream,
        resident: &Resident,
        skip: u64,
    ) -> Result<()> {
        let update = DenseUpdate { skip, ..resident.update };
        if update.piece_count == 0 {
            return Ok(());
        }
        self.launch_update(stream, &DENSE_UPDATE, update.elements(), &update)?;
        if resident.is_lamb {
            self.launch_update(stream, &LAMB_SQUARES, update.pieces(), &update)?;
            self.launch_update(stream, &LAMB_WEIGHTS, update.elements(), &update)?;
        }
        Ok(())
    }

    fn launch_update(
        &self,
        stream: Stream,
        kernel: &'static Kernel,
        geometry: Geometry,
        update: &DenseUpdate,
    ) -> Result<()> {
        let params = [Param::new(update)];
        let shapes = [("pieces", update.piece_count as usize)];
        Ok(self.gpu.launch(stream, &geometry.launch(kernel, &params, &shapes))?)
    }

    /// Frees the state on the device after all steps, if there is one. The next run takes the
    /// parameters of the host.
    ///
    /// # Errors
    /// Returns an error of the GPU.
    pub fn drop_kept(&mut self) -> Result<()> {
        self.drain_steps()?;
        let Some(resident) = self.resident.take() else { return Ok(()) };
        // A step of which an operation failed has no results, but its copies may still have to run.
        self.gpu.synchronize(self.stream)?;
        for loaded in [&mut self.loaded, &mut self.spare].into_iter().flatten() {
            loaded.step.forget(&*self.gpu, self.stream)?;
        }
        Ok(self.gpu.free(resident.memory)?)
    }
}
