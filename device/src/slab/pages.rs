//! Anonymous pages of the operating system. They are zeroed and aligned, and are returned when they
//! are dropped.

use std::io;
use std::ptr::NonNull;

use super::{CHUNK_BYTES, reserve};
use crate::error::DeviceError;
#[cfg(target_os = "linux")]
use crate::machine::{huge, numa};

/// The smallest number of bytes that the kernel maps.
const PAGE_BYTES: usize = 4 << 10;

/// A private mapping of `bytes` bytes. A mapping of whole chunks is aligned to a chunk, so that it
/// can consist of huge pages. They are reserved huge pages if the machine has any left, otherwise
/// transparent huge pages.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, as the memory of a `Box` does; it offers only
// its address and size.
unsafe impl Send for Pages {}
// SAFETY: as above; `&Pages` allows no access to the memory by itself.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` zeroed bytes. Below the size of a chunk, these are whole pages of 4 KiB.
    /// Otherwise, they are whole chunks.
    pub(crate) fn zeroed(bytes: usize) -> Result<Self, DeviceError> {
        if bytes == CHUNK_BYTES
            && let Some(chunk) = reserve::take()
        {
            return Ok(chunk);
        }
        Self::new(bytes, None)
    }

    /// Maps zeroed bytes. They are in the memory of `node` if it is given and has room.
    fn new(bytes: usize, node: Option<usize>) -> Result<Self, DeviceError> {
        debug_assert!(bytes.is_multiple_of(if bytes < CHUNK_BYTES {
            PAGE_BYTES
        } else {
            CHUNK_BYTES
        }));
        if bytes < CHUNK_BYTES {
            return Ok(Self { start: map(bytes, 0)?, bytes });
        }
        #[cfg(target_os = "linux")]
        if huge::has_reserved_pages()
            && let Some(pages) = Self::reserved(bytes, node)
        {
            return Ok(pages);
        }
        // A mapping with one more chunk surely contains aligned ones; the rest is returned at once.
        let whole = map(bytes + CHUNK_BYTES, 0)?;
        let before = whole.as_ptr().align_offset(CHUNK_BYTES);
        debug_assert!(before <= CHUNK_BYTES);
        // SAFETY: `before <= CHUNK_BYTES`, so the chunks [before, before + bytes) and both rests
        // lie inside the mapping of bytes + CHUNK_BYTES, on page borders, and nothing uses the
        // rests.
        let start = unsafe {
            let start = whole.add(before);
            unmap(whole, before);
            unmap(start.add(bytes), CHUNK_BYTES - before);
            start
        };
        let pages = Self { start, bytes };
        #[cfg(target_os = "linux")]
        {
            pages.prefer(node);
            // A kernel without huge pages refuses the advice, which costs only speed.
            pages.advise(libc::MADV_HUGEPAGE);
        }
        Ok(pages)
    }

    /// Maps some of the machine's reserved huge pages, populated and aligned to their size. Returns
    /// `None` if none are left. The caller then maps other pages.
    ///
    /// A mapping alone does not guarantee the memory: if a control group limits such pages without
    /// reserving them, the first access to a page above the limit ends the process. So the pages
    /// are populated here, where a refusal is an error.
    #[cfg(target_os = "linux")]
    fn reserved(bytes: usize, node: Option<usize>) -> Option<Self> {
        let start = map(bytes, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB).ok()?;
        let pages = Self { start, bytes };
        pages.prefer(node);
        // Linux before 5.14 lacks this advice: reserved pages are not used there.
        let is_there = pages.advise(libc::MADV_POPULATE_WRITE);
        if !is_there {
            huge::stop_using_reserved_pages();
        }
        is_there.then_some(pages)
    }

    /// Extends the mapping to `bytes` bytes, which must be less than a chunk. No bytes are copied,
    /// but the address may change.
    #[cfg(target_os = "linux")]
    pub(super) fn extend(&mut self, bytes: usize) -> Result<(), DeviceError> {
        assert!(self.bytes < bytes && bytes < CHUNK_BYTES, "small pages grow by other small pages");
        // SAFETY: the old range is this value's own mapping, made by one call and never split (it
        // is smaller than a chunk). `&mut self` guarantees that nothing else uses it. If the kernel
        // refuses, it stays as it was.
        let address = unsafe {
            libc::mremap(self.start.as_ptr().cast(), self.bytes, bytes, libc::MREMAP_MAYMOVE)
        };
        self.start = check_mapping(address, bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Maps zeroed bytes and touches every page. They are in the memory of `node` if it has room.
    pub(super) fn touched(bytes: usize, node: usize) -> Result<Self, DeviceError> {
        let pages = Self::new(bytes, Some(node))?;
        // With MADV_POPULATE_WRITE, the kernel would lock all mappings of the process for the whole
        // time, and an allocator that needs to grow would wait. A page fault locks only one
        // mapping.
        for offset in (0..bytes).step_by(PAGE_BYTES) {
            // SAFETY: the byte is inside this value's own mapping, which no other code knows yet.
            unsafe { pages.start.add(offset).write_volatile(0) };
        }
        Ok(pages)
    }

    /// Gives the kernel an advice that does not change the contents of the pages. Returns whether
    /// the kernel accepted it.
    #[cfg(target_os = "linux")]
    fn advise(&self, advice: libc::c_int) -> bool {
        debug_assert!([libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE].contains(&advice));
        // SAFETY: the range is this value's own mapping, and both kinds of advice leave its content
        // as it is.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) == 0 }
    }

    /// Asks for memory of a node. The kernel uses another node if this node has no room.
    #[cfg(target_os = "linux")]
    fn prefer(&self, node: Option<usize>) {
        let Some(node) = node else { return };
        if !numa::has_many_nodes() || node >= u64::BITS as usize {
            return;
        }
        let nodes: u64 = 1 << node;
        // SAFETY: the policy is for pages of this value alone and changes neither content nor
        // address. The kernel reads one word of the mask, which has as many bits as it is told.
        unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.bytes,
                libc::MPOL_PREFERRED,
                &raw const nodes,
                u64::BITS as libc::c_ulong,
                0,
            );
        }
    }

    /// Returns the address of the first byte of the mapping.
    #[inline(always)]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the size of the mapping in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the value is being dropped.
        unsafe { unmap(self.start, self.bytes) }
    }
}

/// Maps zeroed pages at any address, with `flags` in addition to the flags of all mappings.
fn map(bytes: usize, flags: libc::c_int) -> Result<NonNull<u8>, DeviceError> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other
    // memory.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    check_mapping(address, bytes)
}

/// Converts the kernel's answer to a mapping of `bytes` bytes into the address of the mapping or an
/// error.
fn check_mapping(address: *mut libc::c_void, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
    let refused = || DeviceError::OutOfMemory { bytes, source: io::Error::last_os_error() };
    if address == libc::MAP_FAILED {
        return Err(refused());
    }
    NonNull::new(address.cast()).ok_or_else(refused)
}

/// Returns pages to the operating system.
///
/// # Safety
///
/// The range `[start, start + bytes)` must consist of whole mapped pages that no code uses any
/// more.
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the caller promises it. The call fails only for a bad range, or where splitting a
        // mapping exceeds the kernel's limit of mappings. The pages then stay, which loses memory,
        // not safety.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
    }
}
