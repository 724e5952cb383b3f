//! Scoring whose rows are on the device: the parameters lie there too, and the caller fills the
//! rows of a batch.
//!
//! An executor has one place for parameters, whose addresses its launches contain. The parameters
//! of several models of one graph lie beside it ([`DeviceParams`]), and a batch copies its own
//! there if the batch before had others. So a change of the model is one copy within the device.

use std::sync::{Arc, Weak};

use zillion_device::gpu::{Gpu, Memory, Stream};

use crate::error::Result;
use crate::gpu::device_params::DeviceParams;
use crate::gpu::executor::GpuExecutor;
use crate::inputs::Inputs;
use crate::ops::StepSeed;
use crate::params::Params;

impl GpuExecutor {
    /// Copies parameters to memory of their own on the device, for [`GpuExecutor::score`] of any
    /// executor of the same graph on the same device. Waits.
    ///
    /// # Errors
    /// Returns an error if the parameters do not fit the graph, or an error of the GPU.
    pub fn copy_params(&self, params: &Params) -> Result<DeviceParams> {
        self.program.lowered.check_params(params)?;
        let bytes = self.fixed.params_bytes;
        let memory = self.gpu.allocate(bytes.max(1))?;
        let copy = DeviceParams::new(self.gpu.clone(), memory);
        for (&at, (_, values)) in self.fixed.params.iter().zip(params.iter()) {
            if !values.is_empty() {
                let to = memory.part(at, size_of_val(values))?;
                self.gpu.upload(self.stream, to, bytemuck::cast_slice(values))?;
            }
        }
        Ok(copy)
    }

    /// Runs an inference program on a batch whose rows are on the device. The tables of `inputs`
    /// have no values (see [`Inputs::for_device_scoring`]). `fill` enqueues the fill of the unique
    /// rows of each table on the stream, one row after the other at the stride of the inputs; a
    /// table that no node reads has no memory. `fill` may wait. `host` are the values of `params`.
    ///
    /// # Errors
    /// Returns an error if the inputs do not fit the program, an error of `fill`, or an error of
    /// the GPU.
    pub fn score(
        &mut self,
        inputs: &Inputs<'_>,
        params: &Arc<DeviceParams>,
        host: &Params,
        fill: impl FnOnce(&dyn Gpu, Stream, &[Option<Memory>]) -> Result<()>,
    ) -> Result<()> {
        self.program.lowered.check_inputs_on_device(inputs)?;
        self.program.lowered.check_params(host)?;
        let scored = self.score_checked(inputs, params, host, fill);
        if scored.is_err() {
            // Copies that have not run still read the pinned memory.
            let _ = self.gpu.synchronize(self.stream);
            self.scored_params = Weak::new();
        }
        scored
    }

    fn score_checked(
        &mut self,
        inputs: &Inputs<'_>,
        params: &Arc<DeviceParams>,
        host: &Params,
        fill: impl FnOnce(&dyn Gpu, Stream, &[Option<Memory>]) -> Result<()>,
    ) -> Result<()> {
        self.load(inputs)?;
        let Some(loaded) = &mut self.loaded else { return Ok(()) };
        loaded.allocate_host(&*self.gpu)?;
        let to = loaded.batch;
        if let Some((host, places)) = loaded.host_mut() {
            let of = (&self.program.lowered, &self.sources, &self.plans[..]);
            self.batch.write(&mut host.batch_in, places, of, inputs, StepSeed::default())?;
            let to = to.part(0, places.bytes_without_rows)?;
            self.gpu.copy_in(self.stream, to, &host.batch_in, 0)?;
        }
        // The weak reference keeps the place of the value, so that no other value gets its address.
        if !Weak::ptr_eq(&self.scored_params, &Arc::downgrade(params)) {
            let to = self.fixed.memory.part(0, self.fixed.params_bytes)?;
            let from = params.memory().part(0, self.fixed.params_bytes)?;
            self.gpu.copy(self.stream, to, from)?;
            self.scored_params = Arc::downgrade(params);
        }
        if let Some(loaded) = &self.loaded {
            fill(&*self.gpu, self.stream, &loaded.rows)?;
        }
        self.launch()?;
        self.download(inputs, true)?;
        self.read_outputs(inputs, host)
    }
}
