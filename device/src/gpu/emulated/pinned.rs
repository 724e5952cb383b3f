//! Pinned memory of the emulated device. A block knows its device, so that an access of the host to
//! bytes that a waiting copy uses is found.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::state::State;
use crate::gpu::error::GpuError;
use crate::gpu::memory::{Pinned, PinnedOwner};

/// A block of pinned memory.
#[derive(Debug)]
pub(super) struct Block {
    start: NonNull<u8>,
    layout: Layout,
    device: Weak<Mutex<State>>,
    /// The number of the block on its device.
    number: u64,
}

// SAFETY: the block belongs to no thread; what accesses it copies bytes.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl PinnedOwner for Block {
    fn number(&self) -> u64 {
        self.number
    }

    fn note_access(&self, offset: usize, bytes: usize, is_write: bool) {
        if let Some(device) = self.device.upgrade() {
            let mut state = device.lock().unwrap_or_else(PoisonError::into_inner);
            state.note_pinned_access(self.number, offset..offset + bytes, is_write);
        }
    }

    fn note_release(&self) {
        if let Some(device) = self.device.upgrade() {
            let mut state = device.lock().unwrap_or_else(PoisonError::into_inner);
            state.note_pinned_release(self.number);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with this layout, and its last user is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Allocates a block with this number.
pub(super) fn allocate(
    device: &Arc<Mutex<State>>,
    number: u64,
    bytes: usize,
) -> Result<Pinned, GpuError> {
    let fail = |problem: &str| GpuError::PinnedMemory { bytes, problem: problem.to_owned() };
    let layout = Layout::from_size_align(bytes.max(1), 4096).map_err(|_| fail("too large"))?;
    // SAFETY: the layout has at least one byte.
    let start = unsafe { alloc_zeroed(layout) };
    let start = NonNull::new(start).ok_or_else(|| fail("the system has no memory"))?;
    let owner = Arc::new(Block { start, layout, device: Arc::downgrade(device), number });
    // SAFETY: the block is initialised, and lives until the owner is dropped.
    Ok(unsafe { Pinned::from_raw(start, bytes, owner) })
}
