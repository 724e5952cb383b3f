//! Anonymous pages from the operating system: zeroed, aligned, given back on drop.

use std::io;
use std::ptr::NonNull;

use super::{CHUNK_BYTES, reserve};
use crate::error::DeviceError;
#[cfg(target_os = "linux")]
use crate::machine::{huge, numa};

/// The least that the kernel maps.
const PAGE_BYTES: usize = 4 << 10;

/// A private mapping of `bytes` bytes. A mapping of whole chunks is aligned to one, so that it can be huge
/// pages: those that the machine has set aside, as long as there are any, else what the kernel makes of others.
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
    /// `bytes` zeroed bytes: a number of pages of 4 KiB below a chunk, or a number of chunks.
    pub(crate) fn zeroed(bytes: usize) -> Result<Self, DeviceError> {
        if bytes == CHUNK_BYTES
            && let Some(chunk) = reserve::take()
        {
            return Ok(chunk);
        }
        Self::new(bytes, None)
    }

    /// Maps them, of a node's memory where it has room.
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
        if huge::are_set_aside()
            && let Some(pages) = Self::set_aside(bytes, node)
        {
            return Ok(pages);
        }
        // With a chunk more it surely holds aligned ones; what lies around them is given back at once.
        let whole = map(bytes + CHUNK_BYTES, 0)?;
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
        let pages = Self { start, bytes };
        #[cfg(target_os = "linux")]
        {
            pages.prefer(node);
            // A kernel without huge pages refuses it, which costs speed only.
            pages.advise(libc::MADV_HUGEPAGE);
        }
        Ok(pages)
    }

    /// Some of the pages that the machine has set aside, in memory; aligned by their size. `None` may be left, and then
    /// there are others.
    ///
    /// A mapping alone is no promise: where a control group limits such pages without reserving them, the first touch of
    /// one too many ends the process. So they are asked for here, where a refusal is an answer.
    #[cfg(target_os = "linux")]
    fn set_aside(bytes: usize, node: Option<usize>) -> Option<Self> {
        let start = map(bytes, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB).ok()?;
        let pages = Self { start, bytes };
        pages.prefer(node);
        // Linux before 5.14 cannot say it: those pages are left alone there.
        let is_there = pages.advise(libc::MADV_POPULATE_WRITE);
        if !is_there {
            huge::use_no_more();
        }
        is_there.then_some(pages)
    }

    /// More bytes, fewer than a chunk's, the first of which are those that are there: nothing is copied, only the address
    /// changes.
    #[cfg(target_os = "linux")]
    pub(super) fn extend(&mut self, bytes: usize) -> Result<(), DeviceError> {
        assert!(self.bytes < bytes && bytes < CHUNK_BYTES, "small pages grow by other small pages");
        // SAFETY: the old range is this value's own mapping, made by one call and never split (it is smaller than a
        // chunk), and `&mut self` says that nobody uses it; where the kernel refuses, it stays as it was.
        let address = unsafe {
            libc::mremap(self.start.as_ptr().cast(), self.bytes, bytes, libc::MREMAP_MAYMOVE)
        };
        self.start = mapped(address, bytes)?;
        self.bytes = bytes;
        Ok(())
    }

    /// The same with every page in memory, of this node where it has room.
    pub(super) fn touched(bytes: usize, node: usize) -> Result<Self, DeviceError> {
        let pages = Self::new(bytes, Some(node))?;
        // Asking the kernel for it (MADV_POPULATE_WRITE) would hold its lock on all mappings of the process meanwhile, and
        // an allocator that wants to grow would wait; a fault holds that of the one mapping.
        for offset in (0..bytes).step_by(PAGE_BYTES) {
            // SAFETY: the byte is inside of this value's own mapping, which nobody else knows yet.
            unsafe { pages.start.add(offset).write_volatile(0) };
        }
        Ok(pages)
    }

    /// Gives the kernel an advice that does not change what the pages hold; whether it took it.
    #[cfg(target_os = "linux")]
    fn advise(&self, advice: libc::c_int) -> bool {
        debug_assert!([libc::MADV_HUGEPAGE, libc::MADV_POPULATE_WRITE].contains(&advice));
        // SAFETY: the range is this value's own mapping, and both kinds of advice leave its content as it is.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) == 0 }
    }

    /// Asks for memory of a node; another is used where it has none.
    #[cfg(target_os = "linux")]
    fn prefer(&self, node: Option<usize>) {
        let Some(node) = node else { return };
        if !numa::has_many_nodes() || node >= u64::BITS as usize {
            return;
        }
        let nodes: u64 = 1 << node;
        // SAFETY: a policy for pages that are this value's own and change neither content nor address; the kernel reads
        // one word of the mask, which has as many bits as it is told.
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

/// Maps zeroed pages anywhere, with more flags than all have.
fn map(bytes: usize, flags: libc::c_int) -> Result<NonNull<u8>, DeviceError> {
    // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other memory.
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
    mapped(address, bytes)
}

/// What the operating system answers when it was asked to map `bytes` bytes.
fn mapped(address: *mut libc::c_void, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
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
