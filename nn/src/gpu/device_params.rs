//! Dense parameters that lie on a device beside its executors.

use std::sync::Arc;

use zillion_device::gpu::{Gpu, Memory};

/// Dense parameters on a device, in the layout of the executors of one graph. The memory is freed
/// when the value is dropped.
#[derive(Debug)]
pub struct DeviceParams {
    gpu: Arc<dyn Gpu>,
    memory: Memory,
}

impl DeviceParams {
    /// Takes over memory of a device, which holds the parameters.
    pub(super) fn new(gpu: Arc<dyn Gpu>, memory: Memory) -> Self {
        Self { gpu, memory }
    }

    pub(super) fn memory(&self) -> Memory {
        self.memory
    }

    /// Returns the number of bytes on the device.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl Drop for DeviceParams {
    fn drop(&mut self) {
        // An error cannot be returned from here. The device reports it again at its next use.
        let _ = self.gpu.free(self.memory);
    }
}
