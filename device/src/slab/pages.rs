//! Anonymous pages from the operating system: zeroed, aligned, given back on drop.

use std::io;
use std::ptr::NonNull;

use super::CHUNK_BYTES;
use crate::error::DeviceError;

/// A private mapping of `bytes` bytes. A mapping of a whole chunk is aligned to its size, so that it can
/// be one huge page.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, as the memory of a `Box` does; it offers only its
// address and size.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` allows no access to the memory by itself.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` zeroed bytes: a power of two, at least a page of 4 KiB and at most a chunk.
    pub(super) fn new(bytes: usize) -> Result<Self, DeviceError> {
        debug_assert!(bytes.is_power_of_two() && bytes <= CHUNK_BYTES);
        if bytes < CHUNK_BYTES {
            return Ok(Self { start: map(bytes)?, bytes });
        }
        // Twice the size surely holds an aligned chunk; what lies around it is given back at once.
        let whole = map(2 * bytes)?;
        let before = whole.as_ptr().align_offset(bytes);
        debug_assert!(before <= bytes);
        // SAFETY: `before <= bytes`, so the chunk [before, before + bytes) and both rests lie inside of the
        // mapping of 2 * bytes, on page borders, and nobody uses the rests.
        let start = unsafe {
            let start = whole.add(before);
            unmap(whole, before);
            unmap(start.add(bytes), bytes - before);
            start
        };
        #[cfg(target_os = "linux")]
        // SAFETY: advice on pages that this function has just mapped; it does not change their content. A
        // kernel without huge pages refuses it, which costs speed only.
        unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Ok(Self { start, bytes })
    }

    /// The first byte.
    #[inline(always)]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the value is going.
        unsafe { unmap(self.start, self.bytes) }
    }
}

/// Maps zeroed pages anywhere.
fn map(bytes: usize) -> Result<NonNull<u8>, DeviceError> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other memory.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let refused = || DeviceError::OutOfMemory { bytes, source: io::Error::last_os_error() };
    if address == libc::MAP_FAILED {
        return Err(refused());
    }
    NonNull::new(address.cast()).ok_or_else(refused)
}

/// Gives pages back.
///
/// # Safety
///
/// `[start, start + bytes)` must be whole mapped pages that nobody uses any more.
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller says so. It fails only for a bad range, or where splitting a mapping
        // exceeds the kernel's limit of mappings; the pages then stay, which loses memory, not safety.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}
