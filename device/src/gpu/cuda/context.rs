//! The context of a device: the first thing that is made and the last that goes.

use std::ffi::c_int;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUresult};
use cudarc::driver::{DriverError, result};

use super::errors::describe;
use crate::gpu::error::GpuError;
use crate::gpu::libraries::{driver_library, require};

/// The primary context of a device.
#[derive(Debug)]
pub(super) struct Context {
    device: CUdevice,
    context: CUcontext,
}

// SAFETY: the driver allows every thread to make the context current and to use it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device with this number. The driver is checked first, because a call without a
    /// driver would end the program.
    pub(super) fn open(ordinal: usize) -> Result<Self, GpuError> {
        require(&driver_library())?;
        let fail =
            |problem: String| GpuError::Device { device: format!("cuda:{ordinal}"), problem };
        result::init().map_err(|error| {
            fail(match error.0 {
                CUresult::CUDA_ERROR_NO_DEVICE => {
                    "the driver sees no GPU; check that `nvidia-smi` lists one, and that \
                     CUDA_VISIBLE_DEVICES does not hide it"
                        .into()
                }
                CUresult::CUDA_ERROR_STUB_LIBRARY => {
                    "libcuda is a stub of the toolkit without a driver behind it; install the \
                     driver, or remove the folder of stubs from the path of libraries"
                        .into()
                }
                _ => format!("the driver does not start ({})", describe(error)),
            })
        })?;
        let count = result::device::get_count().map_err(|error| fail(describe(error)))?;
        let number = c_int::try_from(ordinal).ok().filter(|number| *number < count);
        let Some(number) = number else {
            return Err(fail(format!(
                "this machine has {count} of them; name cuda:0 to cuda:{}",
                count - 1
            )));
        };
        let device = result::device::get(number).map_err(|error| fail(describe(error)))?;
        // SAFETY: the device is one of the driver's, and the context is released once, in `drop`.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(|error| fail(describe(error)))?;
        let context = Self { device, context };
        context.bind().map_err(|error| fail(describe(error)))?;
        Ok(context)
    }

    /// Makes the context current on this thread.
    pub(super) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context lives as long as this value.
        unsafe { result::ctx::set_current(self.context) }
    }

    pub(super) fn name(&self) -> String {
        result::device::get_name(self.device).unwrap_or_else(describe)
    }

    pub(super) fn attribute(&self, which: CUdevice_attribute) -> i32 {
        // SAFETY: the device is one of the driver's.
        unsafe { result::device::get_attribute(self.device, which) }.unwrap_or_default()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        // SAFETY: the device is one of the driver's.
        unsafe { result::device::total_mem(self.device) }.unwrap_or_default() as u64
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained once. A failure cannot be acted on.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
