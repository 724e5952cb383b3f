//! The place of the rows of a run: the GPU that computes its graph, or the host.
//!
//! The rows of the tables, the dense parameters and both optimizers stay on the GPU, if nothing on
//! the host needs the rows or their gradients in each step, if the tables have no rule that is the
//! host's alone, and if the rows fit. Otherwise the rows stay on the host, and the step copies
//! those of its batch. If the rows do not fit, or if the tables evict rows, the GPU has a cache of
//! them, and the batches of a window are announced to it. The place changes no byte of the result,
//! so it is not a setting.

use zillion_embedding::ResidentTables;

use super::Run;
use super::engine::HostEngine;
use super::epoch::EpochBatches;
use super::gpu_engine::GpuEngine;
use super::graph_executor::GraphExecutor;
use super::model::Model;
use crate::error::{Error, Result};
use crate::job::{DeviceChoice, Memory};
use crate::observer::Observer;
use crate::profile::Stage;

impl Run {
    /// Moves the rows of a prepared run to the GPU, if it has one and they can stay there. Tells
    /// the observer which device was chosen, and where the rows are.
    pub(super) fn place_rows(&mut self, observer: &mut dyn Observer) -> Result<()> {
        let Self { job, client, model, .. } = self;
        let Model { executor, device, rows_on_host, .. } = model;
        let GraphExecutor::Gpu(executor) = executor else { return Ok(()) };
        let clips = job.train.clip_norm.is_some();
        let reason = match rows_on_host {
            Some(reason) => Some((*reason).to_owned()),
            None => {
                let memory = job.run.device_memory.map(Memory::bytes);
                client.make_resident(executor.gpu(), executor.stream(), clips, memory)?
            }
        };
        self.counts.gpu.has_rows = reason.is_none();
        match reason {
            Some(reason) => {
                self.engine = Box::new(HostEngine);
                observer.note(&format!("{device}, rows on the host, because {reason}"));
            }
            None => {
                let strides = client.layouts().iter().map(|layout| layout.stride).collect();
                self.engine = Box::new(GpuEngine::new(strides));
                match client.resident().and_then(ResidentTables::cache_reason) {
                    None => observer.note(&format!("{device}, rows on the device")),
                    Some(reason) => {
                        self.counts.gpu.has_cache = true;
                        observer.note(&format!(
                            "{device}, rows on the device in a cache, because {reason}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Announces the batches of the window to the cache of rows on the GPU, if there is one. Tells
    /// the observer if the last step has replaced the rows by a cache, because they did not fit any
    /// more.
    pub(super) fn fill_window(
        &mut self,
        batches: &mut EpochBatches,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let Some(reason) = self.client.resident().and_then(ResidentTables::cache_reason) else {
            return Ok(());
        };
        if !std::mem::replace(&mut self.counts.gpu.has_cache, true) {
            let step = self.position.step;
            observer.note(&format!(
                "rows on the device in a cache from step {step} on, because {reason}"
            ));
        }
        // Before the first step, the cache has no memory and learns nothing.
        if self.client.resident().is_none_or(|of| of.cache_figures().is_none_or(|f| f.slots == 0)) {
            return Ok(());
        }
        let ahead = self.job.run.ahead(self.options.workers.threads()).get();
        while batches.window.len() < ahead {
            match self.read_batch(batches) {
                Ok(Some(planned)) => batches.window.push_back(Ok(planned)),
                Ok(None) => break,
                Err(error) => {
                    // The steps of the batches before come first.
                    batches.window.push_back(Err(error));
                    break;
                }
            }
        }
        self.stage(Stage::Pull, |run| {
            while let Some(Ok(planned)) = batches.window.get(batches.told) {
                run.client.announce_rows(&planned.plan)?;
                batches.told += 1;
            }
            while let Some(Ok(planned)) = batches.window.get(batches.announced) {
                if !run.client.prefetch_rows(&planned.plan)? {
                    break;
                }
                batches.announced += 1;
            }
            Ok(())
        })
    }

    /// Moves the rows from the GPU to the host between two steps, because a step has no room for
    /// its rows. The results of all earlier steps have been observed. The GPU still computes the
    /// graph.
    pub(super) fn move_rows_to_host(
        &mut self,
        reason: &str,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        if let Some(figures) = self.gpu_figures() {
            // The figures of a cache stay in the report.
            self.counts.gpu = figures;
        }
        self.client.leave_gpu()?;
        // The steps with rows on the host keep the dense parameters on the GPU by themselves.
        self.model.settle()?;
        self.model.leave_gpu()?;
        self.model.executor.gpu_mut()?.stop_staging();
        self.engine = Box::new(HostEngine);
        // A push of the host has no counts.
        self.buffers.grads.tables.iter_mut().for_each(|rows| rows.counts = None);
        (self.counts.gpu.has_rows, self.counts.gpu.has_cache) = (false, false);
        let step = self.position.step + 1;
        observer.note(&format!("rows on the host from step {step} on, because {reason}"));
        Ok(())
    }

    /// Adds the checkpoint to resume from to an error of the GPU. Rows that were on a GPU which has
    /// failed are lost, and those of the host are older. Returns another error as it is.
    pub(super) fn name_checkpoint(&self, error: Error) -> Error {
        if !error.is_of_gpu() {
            return error;
        }
        let dir = &self.output.dir;
        let elsewhere = "on this device or on another one (`run.device`)";
        let remedy = match dir.newest() {
            Ok(Some(newest)) => format!(
                "the newest checkpoint is {}, of step {}: resume the run from there, {elsewhere}",
                newest.path().display(),
                newest.manifest.step
            ),
            Ok(None) => format!("there is no checkpoint yet, so begin the run again, {elsewhere}"),
            Err(refused) => format!("the newest checkpoint cannot be read: {refused}"),
        };
        let device = match self.job.run.device {
            DeviceChoice::Auto => DeviceChoice::Cuda(0),
            device => device,
        };
        Error::StoppedByGpu {
            step: self.position.step + 1,
            device: device.to_string(),
            cause: Box::new(error),
            remedy,
        }
    }
}
