//! Pinned memory by the driver.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result;

use super::context::Context;
use super::errors::describe;
use crate::gpu::error::GpuError;
use crate::gpu::memory::{Pinned, PinnedOwner};

/// A block of the driver's pinned memory.
#[derive(Debug)]
struct Block {
    start: NonNull<u8>,
    context: Arc<Context>,
}

// SAFETY: the block belongs to no thread, and only `drop` uses the address.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl PinnedOwner for Block {
    fn number(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    fn note_access(&self, _offset: usize, _bytes: usize, _is_write: bool) {}

    fn note_release(&self) {}
}

impl Drop for Block {
    fn drop(&mut self) {
        // Nothing can be done about an error here: the block is then left to the end of the
        // process.
        if self.context.bind().is_ok() && result::ctx::synchronize().is_ok() {
            // SAFETY: the driver returned the address, no operation uses the block any more
            // because the context has been waited for, and the block is freed once.
            let _ = unsafe { result::free_host(self.start.as_ptr().cast::<c_void>()) };
        }
    }
}

/// Allocates a block. Its flags are zero: memory of the write-combining kind is slow to read.
pub(super) fn allocate(context: &Arc<Context>, bytes: usize) -> Result<Pinned, GpuError> {
    let fail = |problem| GpuError::PinnedMemory { bytes, problem };
    let length = bytes.max(1);
    // SAFETY: the context is current. The block is freed by its owner.
    let start = unsafe { result::malloc_host(length, 0) }.map_err(|error| fail(describe(error)))?;
    let Some(start) = NonNull::new(start.cast::<u8>()) else {
        return Err(fail("the driver returned no address".into()));
    };
    // SAFETY: the block has `length` bytes, and nothing else points to it.
    unsafe { start.as_ptr().write_bytes(0, length) };
    let owner = Arc::new(Block { start, context: Arc::clone(context) });
    // SAFETY: the block is initialised, and lives until the owner is dropped.
    Ok(unsafe { Pinned::from_raw(start, bytes, owner) })
}
