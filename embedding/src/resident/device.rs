//! The device on which rows live, and memory of it.

use std::sync::Arc;

use zillion_device::gpu::{Event, Gpu, GpuError, Kernel, Memory, Param, Stream};

use zillion_device::gpu::kernels::Geometry;

use crate::resident::room::free_bytes;

/// The device on which rows live, and what its steps need.
#[derive(Clone, Debug)]
pub struct ResidentOptions {
    /// The device that holds the rows.
    pub gpu: Arc<dyn Gpu>,
    /// The stream on which all work on rows is enqueued. It is the stream of the executor.
    pub stream: Stream,
    /// Whether steps clip gradients, so that the norm of the gradients is needed.
    pub clips: bool,
    /// The largest number of bytes of the device's memory that this process may use; `None`: all
    /// that is free.
    pub memory: Option<u64>,
    /// The number of rows of each table that a cache on the device holds, beside all rows of the
    /// tables with whole-table rules; `None`: all rows if they fit, else as many as fit.
    pub cache_rows: Option<usize>,
}

impl ResidentOptions {
    /// Returns options for steps that do not clip, with all memory of the device.
    pub fn new(gpu: Arc<dyn Gpu>, stream: Stream) -> Self {
        Self { gpu, stream, clips: false, memory: None, cache_rows: None }
    }
}

/// Memory of the device, which is freed when it is dropped.
#[derive(Debug)]
pub(super) struct Owned {
    gpu: Arc<dyn Gpu>,
    stream: Stream,
    memory: Memory,
}

impl Owned {
    /// Allocates memory. At least one byte is allocated, so that there is always an address.
    pub(super) fn new(options: &ResidentOptions, bytes: usize) -> Result<Self, GpuError> {
        let ResidentOptions { gpu, stream, .. } = options;
        let bytes = bytes.max(1);
        let free = free_bytes(options)?;
        if bytes as u64 > free {
            return Err(GpuError::OutOfMemory { bytes, free });
        }
        let memory = gpu.allocate(bytes)?;
        Ok(Self { gpu: Arc::clone(gpu), stream: *stream, memory })
    }

    /// Allocates memory and fills it. Waits for the device.
    pub(super) fn with<T: bytemuck::NoUninit>(
        options: &ResidentOptions,
        values: &[T],
    ) -> Result<Self, GpuError> {
        let owned = Self::new(options, size_of_val(values))?;
        if !values.is_empty() {
            options.gpu.upload(options.stream, owned.memory, bytemuck::cast_slice(values))?;
        }
        Ok(owned)
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory
    }

    pub(super) fn address(&self) -> u64 {
        self.memory.address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // An error cannot be returned from here. The device reports it again at its next use.
        let _ = self.gpu.synchronize(self.stream);
        let _ = self.gpu.free(self.memory);
    }
}

/// An event of the device, which is freed when it is dropped.
#[derive(Debug)]
pub(super) struct OwnedEvent {
    gpu: Arc<dyn Gpu>,
    stream: Stream,
    event: Event,
}

impl OwnedEvent {
    /// Creates an event that is recorded on the stream of the options.
    pub(super) fn new(options: &ResidentOptions) -> Result<Self, GpuError> {
        let ResidentOptions { gpu, stream, .. } = options;
        Ok(Self { gpu: Arc::clone(gpu), stream: *stream, event: gpu.create_event(false)? })
    }

    /// Returns the handle of the event.
    pub(super) fn handle(&self) -> Event {
        self.event
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        // An error cannot be returned from here. The device reports it again at its next use.
        let _ = self.gpu.synchronize(self.stream);
        let _ = self.gpu.free_event(self.event);
    }
}

/// A stream of the device, which is freed when it is dropped.
#[derive(Debug)]
pub(super) struct OwnedStream {
    gpu: Arc<dyn Gpu>,
    stream: Stream,
}

impl OwnedStream {
    /// Creates a stream beside the one of the options.
    pub(super) fn new(options: &ResidentOptions) -> Result<Self, GpuError> {
        Ok(Self { gpu: Arc::clone(&options.gpu), stream: options.gpu.create_stream()? })
    }

    /// Returns the handle of the stream.
    pub(super) fn handle(&self) -> Stream {
        self.stream
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // An error cannot be returned from here. The device reports it again at its next use.
        let _ = self.gpu.free_stream(self.stream);
    }
}

/// Enqueues a kernel with its parameters.
pub(super) fn launch<T: bytemuck::NoUninit>(
    gpu: &dyn Gpu,
    stream: Stream,
    kernel: &'static Kernel,
    (geometry, parameters): (Geometry, &T),
    rows: u32,
) -> Result<(), GpuError> {
    let params = [Param::new(parameters)];
    gpu.launch(stream, &geometry.launch(kernel, &params, &[("rows", rows as usize)]))
}
