//! Anonymous pages from the operating system: zeroed, aligned, given back on drop.

use std::io;
use std::ptr::NonNull;

use super::CHUNK_BYTES;
use crate::error::DeviceError;

/// A private mapping of `bytes` bytes. A mapping of whole chunks is aligned to one, so that it can be huge
/// pages.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, as the memory of a `Box` does; it offers only its
// address and size.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` allows no access to the memory by itself.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` zeroed bytes: a power of two from a page of 4 KiB to a chunk, or a number of chunks.
    pub(crate) fn new(bytes: usize) -> Result<Self, DeviceError> {
        debug_assert!(bytes.is_power_of_two() || bytes.is_multiple_of(CHUNK_BYTES));
        if bytes < CHUNK_BYTES {
            return Ok(Self { start: map(bytes)?, bytes });
        }
        // With a chunk more it surely holds aligned ones; what lies around them is given back at once.
        let whole = map(bytes + CHUNK_BYTES)?;
        let before = whole.as_ptr().align_offset(CHUNK_BYTES);
        debug_assert!(before <= CHUNK_BYTES);
        // SAFETY: `before <= CHUNK_BYTES`, so the chunks [before, before + bytes) and both rests lie inside of
        // the mapping of bytes + CHUNK_BYTES, on page borders, and nobody uses the rests.
        let start = unsafe {
            let start = whole.add(before);
            unmap(whole, before);
            unmap(start.add(bytes), CHUNK_BYTES - before);
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
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> usize {
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
