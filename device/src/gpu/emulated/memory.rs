//! Memory of the emulated device.
//!
//! Each allocation has its own pages between pages that cannot be accessed, and ends close to the
//! upper ones: an access beyond the end is a fault at once, or changes the bytes behind the end,
//! which are checked. Fresh memory has the bytes 0xff: NaN as a float, and an impossible index as a
//! whole number. The pages of freed memory cannot be accessed any more, and stay reserved for a
//! while, so that a late access is a fault and not a silent change of other data.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

/// The bytes of fresh memory.
const POISON: u8 = 0xff;
/// The bytes between the end of an allocation and the page that cannot be accessed.
const CANARY: u8 = 0xa5;
/// The alignment that the driver guarantees.
const ALIGNMENT: usize = 256;
/// The number of freed allocations whose addresses are not used again.
const QUARANTINE: usize = 1024;

/// The pages of one allocation.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the pages belong to no thread, and are accessed only under the lock of the device.
unsafe impl Send for Pages {}

impl Pages {
    fn reserve(length: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("address 0"))?;
        Ok(Self { base, length })
    }

    fn protect(&self, offset: usize, length: usize, is_open: bool) -> io::Result<()> {
        let flags = if is_open { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let place = self.base.as_ptr().wrapping_add(offset).cast::<c_void>();
        // SAFETY: the callers name whole pages of this mapping. No reference points into them.
        match unsafe { libc::mprotect(place, length, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `reserve`, and nothing uses it any more.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[derive(Debug)]
struct Block {
    pages: Pages,
    bytes: usize,
    /// The number of the allocation, by which a new one at the same address is told from the old.
    number: u64,
}

/// All allocations of the device.
#[derive(Debug)]
pub(super) struct Store {
    live: BTreeMap<u64, Block>,
    freed: VecDeque<Pages>,
    next_number: u64,
    page: usize,
}

/// An allocation that an operation uses: its address and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) address: u64,
    number: u64,
}

impl Store {
    pub(super) fn new() -> Self {
        // SAFETY: the call only reads a constant of the system.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        Self { live: BTreeMap::new(), freed: VecDeque::new(), next_number: 0, page }
    }

    pub(super) fn allocate(&mut self, bytes: usize) -> io::Result<u64> {
        let room = bytes.max(1).next_multiple_of(ALIGNMENT);
        let length = room.next_multiple_of(self.page);
        let pages = Pages::reserve(length + 2 * self.page)?;
        pages.protect(self.page, length, true)?;
        let start = pages.base.as_ptr().wrapping_add(self.page + length - room);
        // SAFETY: `room` bytes from there to the closed page were opened above.
        unsafe {
            start.write_bytes(POISON, bytes);
            start.wrapping_add(bytes).write_bytes(CANARY, room - bytes);
        }
        let address = start as u64;
        let number = self.next_number;
        self.next_number += 1;
        self.live.insert(address, Block { pages, bytes, number });
        Ok(address)
    }

    /// Closes the pages of an allocation. Returns whether it was live and no byte behind it has
    /// changed.
    pub(super) fn free(&mut self, address: u64) -> Result<(), String> {
        let Some(block) = self.live.remove(&address) else {
            return Err(format!("memory at {address:#x} is not allocated"));
        };
        let outcome = self.check_block(address, &block);
        let length = block.pages.length;
        block.pages.protect(0, length, false).map_err(|error| error.to_string())?;
        // SAFETY: the mapping is ours and private; its bytes are not needed any more.
        unsafe {
            libc::madvise(block.pages.base.as_ptr().cast(), length, libc::MADV_DONTNEED);
        }
        self.freed.push_back(block.pages);
        if self.freed.len() > QUARANTINE {
            self.freed.pop_front();
        }
        outcome
    }

    fn check_block(&self, address: u64, block: &Block) -> Result<(), String> {
        let room = block.bytes.max(1).next_multiple_of(ALIGNMENT);
        let end = (address as *const u8).wrapping_add(block.bytes);
        for offset in 0..room - block.bytes {
            // SAFETY: the bytes up to the closed page were opened and written by `allocate`.
            let byte = unsafe { end.wrapping_add(offset).read() };
            if byte != CANARY {
                let bytes = block.bytes;
                return Err(format!(
                    "byte {offset} behind an allocation of {bytes} bytes was overwritten"
                ));
            }
        }
        Ok(())
    }

    /// Checks the bytes behind every allocation.
    pub(super) fn check(&self) -> Result<(), String> {
        self.live.iter().try_for_each(|(&address, block)| self.check_block(address, block))
    }

    /// Returns the allocation that has the byte at `address`.
    pub(super) fn find(&self, address: u64) -> Option<Use> {
        let (&start, block) = self.live.range(..=address).next_back()?;
        let is_inside = address - start < block.bytes.max(1) as u64;
        is_inside.then_some(Use { address: start, number: block.number })
    }

    /// Returns whether the allocation still lives.
    pub(super) fn is_live(&self, used: Use) -> bool {
        self.live.get(&used.address).is_some_and(|block| block.number == used.number)
    }
}
