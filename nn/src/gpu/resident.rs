//! Parameters that stay on the device between steps, with the state of their optimizer.
//!
//! # Invariants
//! * From [`GpuExecutor::keep_params`] on, the device has the newest parameters and states. Those
//!   of the host are old until [`GpuExecutor::settle_params`] copies them.
//! * The pinned memory of an update is written again only after the wait of the next step.
//! * The norm, the rules and the order of additions are those of [`DenseOptimizer`], so the results
//!   have its bits.

use zillion_device::gpu::kernels::{
    DENSE_SQUARES, DENSE_UPDATE, DensePiece, DenseRule, DenseUpdate, Geometry, LAMB_SQUARES,
    LAMB_WEIGHTS,
};
use zillion_device::gpu::{Kernel, Memory, Param, Pinned};

use crate::error::{Error, Result};
use crate::gpu::arena::Arena;
use crate::gpu::executor::GpuExecutor;
use crate::graph::shape::ParamId;
use crate::inputs::Inputs;
use crate::ops::StepSeed;
use crate::optim::{DEVICE_BLOCK, DenseOptimizer};
use crate::params::Params;

/// The state of the optimizer on the device.
#[derive(Debug)]
pub(crate) struct Resident {
    memory: Memory,
    /// The memory of both states of each parameter; empty for a state that the rule does not have.
    states: Vec<[Memory; 2]>,
    rules: Memory,
    scale: Memory,
    sums: Memory,
    /// The parameters of all launches.
    update: DenseUpdate,
    is_lamb: bool,
    /// The rules, then the factor of the gradients.
    update_in: Pinned,
    /// The squared norm of each piece, in the order of pieces.
    sums_out: Pinned,
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
        let mut arena = Arena::new(0);
        let lens: Vec<[usize; 2]> =
            optimizer.states().map(|(_, first, second)| [first.len(), second.len()]).collect();
        let places: Vec<[usize; 2]> =
            lens.iter().map(|lens| lens.map(|len| arena.take(4 * len) as usize)).collect();
        let count: usize = optimizer
            .states()
            .zip(params.iter())
            .filter(|((trainable, ..), _)| *trainable)
            .map(|(_, (_, values))| values.len().div_ceil(DEVICE_BLOCK))
            .sum();
        let pieces_at = arena.take(count * size_of::<DensePiece>()) as usize;
        let rules_bytes = lens.len() * size_of::<DenseRule>();
        let rules_at = arena.take(rules_bytes) as usize;
        let scale_at = arena.take(4) as usize;
        let sums_at = arena.take(2 * count * 8) as usize;
        let memory = self.gpu.allocate(arena.bytes().max(1))?;
        let part = |at: usize, bytes: usize| Ok::<_, Error>(memory.part(at, bytes)?);
        let made = (|| {
            let mut states = Vec::new();
            for ([first, second], [first_len, second_len]) in places.iter().zip(&lens) {
                states.push([part(*first, 4 * first_len)?, part(*second, 4 * second_len)?]);
            }
            let (rules, scale) = (part(rules_at, rules_bytes)?, part(scale_at, 4)?);
            let sums = part(sums_at, 2 * count * 8)?;
            let pieces = self.pieces(params, optimizer, &states)?;
            let pieces_memory = part(pieces_at, count * size_of::<DensePiece>())?;
            self.gpu.upload(self.stream, pieces_memory, bytemuck::cast_slice(&pieces))?;
            for ((_, first, second), memories) in optimizer.states().zip(&states) {
                for (values, memory) in [first, second].into_iter().zip(memories) {
                    if !values.is_empty() {
                        self.gpu.upload(self.stream, *memory, bytemuck::cast_slice(values))?;
                    }
                }
            }
            let update = DenseUpdate {
                pieces: pieces_memory.address(),
                rules: rules.address(),
                scale: scale.address(),
                sums: sums.address(),
                piece_count: count as u32,
                l2: optimizer.l2(),
                ..DenseUpdate::default()
            };
            let update_in = self.gpu.allocate_pinned(rules_bytes + 4)?;
            let sums_out = self.gpu.allocate_pinned((8 * count).max(1))?;
            let is_lamb = optimizer.is_lamb();
            Ok(Resident {
                memory,
                states,
                rules,
                scale,
                sums,
                update,
                is_lamb,
                update_in,
                sums_out,
            })
        })();
        match made {
            Ok(resident) => self.resident = Some(resident),
            Err(error) => {
                self.gpu.free(memory)?;
                return Err(error);
            }
        }
        self.upload_params(params)?;
        Ok(self.gpu.synchronize(self.stream)?)
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
        self.begin(inputs, seed)?;
        self.launch()?;
        for &(param, node) in &self.program.lowered.updates {
            if let Some((start, len)) = self.constant_range(node) {
                let from = self.fixed.results.part(4 * start, 4 * len)?;
                self.gpu.copy(self.stream, self.device_param(param)?, from)?;
            }
        }
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
        let Some(resident) = &mut self.resident else { return Ok(()) };
        let rules = optimizer.begin_device_step(rate_scale, grad_scale)?;
        if resident.update.piece_count == 0 {
            return Ok(());
        }
        let scale_at = resident.rules.bytes();
        resident.update_in.write(0, &rules)?;
        resident.update_in.write(scale_at, &[grad_scale])?;
        self.gpu.copy_in(self.stream, resident.rules, &resident.update_in, 0)?;
        self.gpu.copy_in(self.stream, resident.scale, &resident.update_in, scale_at)?;
        let Some(resident) = &self.resident else { return Ok(()) };
        let (pieces, elements) = (resident.update.pieces(), resident.update.elements());
        self.launch_update(resident, &DENSE_UPDATE, elements)?;
        if resident.is_lamb {
            self.launch_update(resident, &LAMB_SQUARES, pieces)?;
            self.launch_update(resident, &LAMB_WEIGHTS, elements)?;
        }
        Ok(())
    }

    /// Copies the parameters and the state of their optimizer back to the host. They stay on the
    /// device too.
    ///
    /// # Errors
    /// Returns an error of the GPU.
    pub fn settle_params(&self, params: &mut Params, optimizer: &mut DenseOptimizer) -> Result<()> {
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
        if count > 0 {
            self.launch_update(resident, &DENSE_SQUARES, resident.update.pieces())?;
            let sums = resident.sums.part(0, 8 * count)?;
            self.gpu.copy_out(self.stream, &resident.sums_out, 0, sums)?;
        }
        Ok(count)
    }

    fn launch_update(
        &self,
        resident: &Resident,
        kernel: &'static Kernel,
        geometry: Geometry,
    ) -> Result<()> {
        let params = [Param::new(&resident.update)];
        let shapes = [("pieces", resident.update.piece_count as usize)];
        Ok(self.gpu.launch(self.stream, &geometry.launch(kernel, &params, &shapes))?)
    }

    /// Frees the state on the device, if there is one. The next run takes the
    /// parameters of the host.
    pub fn drop_kept(&mut self) -> Result<()> {
        if let Some(resident) = self.resident.take() {
            self.gpu.free(resident.memory)?;
        }
        Ok(())
    }
}
