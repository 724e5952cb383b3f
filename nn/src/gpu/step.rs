//! Whole steps on the device, for which the host does not wait.
//!
//! The rows of tables, the dense parameters and the state of their optimizer stay on the device. A
//! step is a copy of the batch and of its rules, one replay of a graph, and the copies of its
//! results. The copy from the host is on a stream of its own, so it runs beside the steps before.
//! The graph is:
//!
//! ```text
//! pull of rows, forward and backward pass, squared norms, the factor of clipping,
//! choice of the rules, update of dense parameters, update of rows
//! ```
//!
//! # Skipped steps
//! A step whose norm is not finite changes neither parameters nor rows, and the optimizer does not
//! count it. The corrections of Adam depend on this count, which the host knows only when it has
//! read the results. So the host sends the rules for each number of steps in flight that may be
//! skipped, with the number of skipped steps that it knows. The device counts skipped steps too,
//! and takes the rules of the difference. Running statistics move in a skipped step, as on the CPU.

use std::sync::Arc;

use zillion_device::gpu::kernels::{CHOOSE_RULES, CLIP, Clip, Geometry, ORDERED_SUMS};
use zillion_device::gpu::{Kernel, Memory, Param, Stream};

use crate::error::{Error, Result};
use crate::gpu::batch::BatchPlaces;
use crate::gpu::device_rows::DeviceRows;
use crate::gpu::executor::GpuExecutor;
use crate::gpu::loaded::{Loaded, enqueue};
use crate::gpu::results::{RESULTS, Record, StepKey, StepResults, StepScalars, Ticket};
use crate::gpu::staging::StagedBatch;
use crate::inputs::Inputs;
use crate::optim::{DenseOptimizer, check_factors};
use crate::params::Params;

/// The moment in a step at which a result is copied.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    /// Before the update, for a result that is a parameter.
    Begin,
    /// After the launches that compute the result.
    End,
}

impl GpuExecutor {
    /// Enqueues a whole training step, whose rows are on the device, and returns without waiting.
    /// `params` and `optimizer` are copied to the device by the first step, and stay there until
    /// [`GpuExecutor::settle_params`]. The tables of `inputs` have no values (see
    /// [`Inputs::with_device_rows`]).
    ///
    /// The host waits only if it is too many steps ahead of the device, or if memory must be
    /// allocated for a larger batch. Results are kept until [`GpuExecutor::finish_step`] takes
    /// them.
    ///
    /// # Errors
    /// Returns an error if the inputs do not fit the program, if a factor is not finite, or an
    /// error of the GPU.
    pub fn enqueue_step(
        &mut self,
        inputs: &Inputs<'_>,
        params: &Params,
        optimizer: &DenseOptimizer,
        rows: &dyn DeviceRows,
        step: StepScalars,
    ) -> Result<Ticket> {
        self.enqueue_staged_step(None, inputs, params, optimizer, rows, step)
    }

    /// Enqueues a step as [`GpuExecutor::enqueue_step`] does. `staged` is the batch of `inputs`, if
    /// another thread has written it ([`GpuExecutor::stager`]). A staged batch that does not fit
    /// the present capacity is written again.
    ///
    /// # Errors
    /// Returns the errors of [`GpuExecutor::enqueue_step`].
    pub fn enqueue_staged_step(
        &mut self,
        staged: Option<StagedBatch>,
        inputs: &Inputs<'_>,
        params: &Params,
        optimizer: &DenseOptimizer,
        rows: &dyn DeviceRows,
        step: StepScalars,
    ) -> Result<Ticket> {
        self.program.lowered.check_params(params)?;
        if self.program.lowered.loss.is_none() {
            let reason = "an inference program cannot train; plan the graph with `Program::train`";
            return Err(Error::Input { input: "the program".into(), reason: reason.into() });
        }
        check_factors(step.rate_scale, 1.0)?;
        if self.resident.is_none() {
            self.keep_params(params, optimizer)?;
        }
        while self.read_step(false)? {}
        let staged = staged.filter(|staged| self.load_staged(staged, inputs));
        if staged.is_none() {
            self.program.lowered.check_inputs_on_device(inputs)?;
            self.load(inputs)?;
        }
        self.fit_ring()?;
        if self.is_full() && !self.read_step(false)? {
            self.ring.stalls += 1;
            self.read_step(true)?;
        }
        self.staged_steps += u64::from(staged.is_some());
        self.upload_step(staged, inputs, optimizer, step)?;
        self.download_step(Moment::Begin)?;
        self.run_step(rows, step.clip_norm)?;
        self.download_step(Moment::End)?;
        let ticket = self.ring.next_ticket();
        self.ring.take();
        Ok(ticket)
    }

    /// Returns the results of the oldest step whose results were not returned. Returns `None` if
    /// there is no such step. Returns `None` too if the step has not ended, unless `wait` is true.
    /// [`GpuExecutor::output`] then returns the requested results of this step.
    ///
    /// # Errors
    /// Returns an error of the GPU.
    pub fn finish_step(&mut self, wait: bool) -> Result<Option<StepResults>> {
        if self.ring.finished.is_empty() {
            self.read_step(wait)?;
        }
        let Some((results, outputs)) = self.ring.finished.pop_front() else { return Ok(None) };
        self.ring.give_back(std::mem::replace(&mut self.outputs, outputs));
        Ok(Some(results))
    }

    /// Waits for all steps. [`GpuExecutor::finish_step`] still returns their results.
    ///
    /// # Errors
    /// Returns an error of the GPU.
    pub fn drain_steps(&mut self) -> Result<()> {
        while self.read_step(true)? {}
        Ok(())
    }

    /// Returns whether the next step must wait until the results of an earlier one can be read.
    pub fn is_full(&self) -> bool {
        self.ring.in_flight() == RESULTS
    }

    /// Returns the number of steps whose results were not returned by
    /// [`GpuExecutor::finish_step`].
    pub fn unread_steps(&self) -> usize {
        self.ring.in_flight() + self.ring.finished.len()
    }

    /// Returns the number of times that the host waited because it was too many steps ahead of the
    /// device.
    pub fn stalls(&self) -> u64 {
        self.ring.stalls
    }

    /// Reads the results of the oldest step that was not read, and counts the step. Returns whether
    /// there was one that had ended.
    fn read_step(&mut self, wait: bool) -> Result<bool> {
        let Some(results) = self.ring.read(&*self.gpu, wait)? else { return Ok(false) };
        if let Some(resident) = &mut self.resident {
            resident.count(results.is_skipped);
        }
        Ok(true)
    }

    /// Returns whether a staged batch can be copied as it is: it is the batch of the inputs, and it
    /// was written for a layout of the executor, which then has the launches of this layout.
    fn load_staged(&mut self, staged: &StagedBatch, inputs: &Inputs<'_>) -> bool {
        let Some(resident) = &self.resident else { return false };
        let needed = rules_at(&staged.layout.places) + resident.rules_bytes();
        let bytes = self.ring.batch_bytes();
        if bytes < needed || staged.bytes() < bytes || !staged.is_of(inputs) {
            return false;
        }
        let is_for = |of: &Option<Loaded>| {
            of.as_ref().is_some_and(|loaded| Arc::ptr_eq(&loaded.layout, &staged.layout))
        };
        if is_for(&self.spare) {
            std::mem::swap(&mut self.loaded, &mut self.spare);
        }
        is_for(&self.loaded)
    }

    /// Makes the slots of the ring and the blocks of staged batches large enough.
    fn fit_ring(&mut self) -> Result<()> {
        let (Some(loaded), Some(resident)) = (&self.loaded, &self.resident) else { return Ok(()) };
        let batch = rules_at(&loaded.layout.places) + resident.rules_bytes();
        let of_output = |(index, memory): (usize, &Option<Memory>)| match memory {
            Some(memory) => memory.bytes(),
            None => 4 * self.output_floats(index, &Inputs::default()),
        };
        let outputs = loaded.bound.outputs.iter().enumerate().map(of_output);
        let results = size_of::<Record>() + outputs.sum::<usize>();
        if !self.ring.fits(batch, results) {
            self.drain_steps()?;
            self.ring.fit(&*self.gpu, batch, results)?;
        }
        match &mut self.staging {
            Some(staging) => staging.fit(&*self.gpu, self.ring.batch_bytes()),
            None => Ok(()),
        }
    }

    /// Enqueues the copies of the batch and of the rules of its step.
    fn upload_step(
        &mut self,
        staged: Option<StagedBatch>,
        inputs: &Inputs<'_>,
        optimizer: &DenseOptimizer,
        step: StepScalars,
    ) -> Result<()> {
        let in_flight = self.ring.in_flight() as u64;
        let outputs = 0..self.program.lowered.outputs.len();
        let lens = outputs.map(|index| self.output_floats(index, inputs)).collect();
        let (Some(loaded), Some(resident)) = (&self.loaded, &mut self.resident) else {
            return Ok(());
        };
        let (gpu, stream) = (&*self.gpu, self.stream);
        let (copies, slot, result) = self.ring.next(gpu)?;
        result.lens = lens;
        let places = &loaded.layout.places;
        if let Some(staged) = staged {
            staged.hand_over(&mut slot.pinned, inputs, step.seed)?;
        } else {
            let of = (&self.program.lowered, &self.sources, &self.plans[..]);
            self.batch.write(&mut slot.pinned, places, of, inputs, step.seed)?;
        }
        let at = rules_at(places);
        let rules = resident.write_rules(&mut slot.pinned, at, optimizer, in_flight, step)?;
        // The copy from the host runs while the device computes the steps before.
        gpu.wait(copies, slot.taken)?;
        gpu.copy_in(copies, slot.staging.part(0, at + rules)?, &slot.pinned, 0)?;
        gpu.record(slot.copied, copies)?;
        gpu.wait(stream, slot.copied)?;
        let batch = loaded.batch.part(0, places.bytes_without_rows)?;
        gpu.copy(stream, batch, slot.staging.part(0, batch.bytes())?)?;
        gpu.copy(stream, resident.choices, slot.staging.part(at, rules)?)?;
        Ok(gpu.record(slot.taken, stream)?)
    }

    /// Enqueues the copies of the results that can be copied at this moment.
    fn download_step(&mut self, moment: Moment) -> Result<()> {
        let (Some(loaded), Some(resident)) = (&self.loaded, &self.resident) else { return Ok(()) };
        let (gpu, stream) = (&*self.gpu, self.stream);
        let slot = self.ring.next_results();
        let mut at = size_of::<Record>();
        for (index, &len) in slot.lens.iter().enumerate() {
            let id = self.program.lowered.outputs[index];
            let (from, of) = if let Some(memory) = loaded.bound.outputs[index] {
                (memory.part(0, 4 * len)?, Moment::End)
            } else if let Some((start, len)) = self.constant_range(id) {
                (self.fixed.results.part(4 * start, 4 * len)?, Moment::End)
            } else if let Some((param, range)) = self.param_range(id) {
                let memory = self.device_param(param)?;
                (memory.part(4 * range.start, 4 * range.len())?, Moment::Begin)
            } else {
                (Memory::NULL, Moment::End)
            };
            if of == moment && from.bytes() > 0 {
                gpu.copy_out(stream, &slot.pinned, at, from)?;
            }
            at += 4 * len;
        }
        if moment == Moment::End {
            gpu.copy_out(stream, &slot.pinned, 0, resident.record)?;
            gpu.record(slot.event, stream)?;
        }
        Ok(())
    }

    /// Enqueues the launches of a step, as a graph from the second step of a capacity on.
    fn run_step(&mut self, rows: &dyn DeviceRows, clip_norm: Option<f64>) -> Result<()> {
        let key = StepKey { generation: rows.generation(), clip_norm: clip_norm.map(f64::to_bits) };
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        let mut graph = std::mem::take(&mut loaded.step);
        let work = || self.enqueue_all(rows, clip_norm);
        let ran = graph.run(&*self.gpu, self.stream, key, work);
        if let Some(loaded) = &mut self.loaded {
            loaded.step = graph;
        }
        ran
    }

    fn enqueue_all(&self, rows: &dyn DeviceRows, clip_norm: Option<f64>) -> Result<()> {
        let (Some(loaded), Some(resident)) = (&self.loaded, &self.resident) else { return Ok(()) };
        let (gpu, main, side) = (&*self.gpu, self.stream, self.side.stream);
        let gradients = &loaded.bound.table_grads;
        rows.pull(gpu, main, &loaded.rows)?;
        enqueue(gpu, main, &self.side, &loaded.bound.operations)?;
        // Dense parameters and rows do not depend on each other, but for the factor of clipping.
        self.side.fork(gpu)?;
        self.move_statistics(side)?;
        let choose = resident.choose();
        self.launch_one(side, &CHOOSE_RULES, Geometry::columns(choose.n), &choose)?;
        self.launch_squares(side, resident)?;
        let sum = resident.sum_of_squares();
        self.launch_one(side, &ORDERED_SUMS, Geometry::columns(1), &sum)?;
        if clip_norm.is_some() {
            rows.sq_norm(gpu, main, gradients, resident.rows_sq_norm)?;
        }
        self.side.join(gpu)?;
        let clip = Clip {
            dense: resident.dense_sq_norm.address(),
            rows: resident.rows_sq_norm.address(),
            scale: resident.scale.address(),
            skip: resident.skip.address(),
            skips: resident.skips.address(),
            most: clip_norm.unwrap_or(0.0),
            clips: clip_norm.is_some().into(),
            unused: 0,
        };
        self.launch_one(main, &CLIP, Geometry::line(1, 32), &clip)?;
        self.side.fork(gpu)?;
        self.launch_updates(side, resident, resident.skip.address())?;
        if let Some((start, len)) = self.program.lowered.loss.and_then(|id| self.constant_range(id))
        {
            let loss = self.fixed.results.part(4 * start, 4 * len)?;
            gpu.copy(side, resident.loss, loss)?;
        }
        rows.update(gpu, main, gradients, resident.scale, resident.skip)?;
        self.side.join(gpu)
    }

    fn launch_one<T: bytemuck::NoUninit>(
        &self,
        stream: Stream,
        kernel: &'static Kernel,
        geometry: Geometry,
        params: &T,
    ) -> Result<()> {
        let params = [Param::new(params)];
        Ok(self.gpu.launch(stream, &geometry.launch(kernel, &params, &[]))?)
    }
}

/// Returns the place of a step's rules in the pinned memory of its batch.
fn rules_at(places: &BatchPlaces) -> usize {
    places.bytes_without_rows.next_multiple_of(16)
}

#[cfg(test)]
impl GpuExecutor {
    /// Forgets which copies of batches, or of results, have not run, as a mistaken program would.
    pub(crate) fn forget_copies(&mut self, which: (bool, bool)) {
        self.ring.forget_copies(&*self.gpu, which);
    }
}
