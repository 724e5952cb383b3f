//! Faults of mapped files: reads of pages that a file does not have any more.
//!
//! A process that reads such a page gets the signal SIGBUS and ends, unless it handles the signal.
//! Files lose pages when another program truncates them, and when a disk or a network file system
//! fails. [`survive_faults`] installs a handler that puts zeros in the place of the lost pages, so
//! that the reader goes on, and marks the mapping. The owner of the mapping looks at the mark with
//! [`faulted_ranges`] before it believes what it has read.
//!
//! # Concurrency
//! The handler runs between any two instructions of a thread, so it may use neither locks nor the
//! allocator. It searches a static table of all mappings that consists of atomic numbers.
//! [`Registration`] writes the table. The search takes a time that is proportional to the number of
//! mappings, and runs once for each fault.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The largest number of mappings that are watched. Linux allows 65,530 mappings in a process by
/// default (`vm.max_map_count`). A mapping above this number is not watched.
const MAX_WATCHED: usize = 1 << 17;

/// The address range of one mapping. A slot whose start is 0 is free.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    is_faulted: AtomicBool,
}

static SLOTS: [Slot; MAX_WATCHED] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_faulted: AtomicBool::new(false),
    }
}; MAX_WATCHED];

/// The number of slots at the start of [`SLOTS`] that have ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The slots below [`USED`] that are free now.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
/// The number of faults since the start of the process.
static FAULTS: AtomicU64 = AtomicU64::new(0);

/// The entry of one mapping in the table of watched mappings. Drop it before the mapping.
#[derive(Debug)]
pub(super) struct Registration {
    slot: Option<usize>,
}

impl Registration {
    /// Enters the address range of a mapping.
    pub(super) fn new(mapping: &[u8]) -> Self {
        let range = range_of(mapping);
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = free.pop().or_else(|| {
            let next = USED.load(Ordering::Relaxed);
            (next < MAX_WATCHED).then(|| {
                USED.store(next + 1, Ordering::Release);
                next
            })
        });
        if let Some(slot) = slot {
            SLOTS[slot].is_faulted.store(false, Ordering::Relaxed);
            SLOTS[slot].end.store(range.end, Ordering::Release);
            SLOTS[slot].start.store(range.start, Ordering::Release);
        }
        Self { slot }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            SLOTS[slot].start.store(0, Ordering::Release);
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        }
    }
}

/// Returns the number of faults of mapped files since the start of the process. A reader that finds
/// the same number before and after its reads has read no lost page.
pub fn faults() -> u64 {
    // The reads of the mapping come before the read of the number.
    fence(Ordering::Acquire);
    FAULTS.load(Ordering::Acquire)
}

/// Returns the address ranges of the mappings that have lost pages and still exist.
pub fn faulted_ranges() -> Vec<Range<usize>> {
    let used = USED.load(Ordering::Acquire);
    let faulted = SLOTS[..used].iter().filter_map(|slot| {
        let range = slot.range().filter(|_| slot.is_faulted.load(Ordering::Acquire))?;
        // A slot that was reused in the meantime belongs to another mapping.
        (slot.range().as_ref() == Some(&range)).then_some(range)
    });
    faulted.collect()
}

/// Returns whether some bytes lie in one of the address ranges.
pub fn overlaps(bytes: &[u8], ranges: &[Range<usize>]) -> bool {
    let own = range_of(bytes);
    ranges.iter().any(|range| own.start < range.end && range.start < own.end)
}

fn range_of(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr() as usize;
    start..start + bytes.len()
}

impl Slot {
    /// Returns the address range, or `None` if the slot is free. The second read of the start finds
    /// a slot that another thread has reused between the reads.
    fn range(&self) -> Option<Range<usize>> {
        let start = self.start.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Acquire);
        (start != 0 && self.start.load(Ordering::Acquire) == start).then_some(start..end)
    }
}

/// Installs the handler of SIGBUS for the rest of the process. Faults outside of mapped files go to
/// the handler that was installed before. More calls do nothing.
///
/// # Errors
/// Returns an error if the system refuses the handler.
#[cfg(target_os = "linux")]
pub fn survive_faults() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        handler::install().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))
    });
    installed.map_err(io::Error::from_raw_os_error)
}

/// Returns an error, because faults are handled on Linux only.
///
/// # Errors
/// Returns an error in every case.
#[cfg(not(target_os = "linux"))]
pub fn survive_faults() -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "faults of mapped files are handled on Linux"))
}

#[cfg(target_os = "linux")]
mod handler {
    //! The handler of SIGBUS.

    use std::cell::UnsafeCell;
    use std::mem::MaybeUninit;
    use std::ptr;

    use super::*;

    /// The action of SIGBUS before [`install`].
    struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

    // SAFETY: `install` is the only writer. It runs once, and it writes before the handler that
    // reads is installed.
    unsafe impl Sync for Previous {}

    static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn install() -> io::Result<()> {
        // SAFETY: `sysconf` takes and returns numbers.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).map_err(io::Error::other)?;
        PAGE_BYTES.store(page, Ordering::Release);
        // SAFETY: both calls fill memory of this function or of `PREVIOUS`, which nobody reads yet.
        // The new action is complete: all its fields are zero (a valid value of each) or set here.
        // The handler has the signature that SA_SIGINFO asks for, and uses only atomic numbers,
        // `mmap` and `sigaction`, which are plain system calls.
        unsafe {
            if libc::sigaction(libc::SIGBUS, ptr::null(), PREVIOUS.0.get().cast()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            let handle: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                handle;
            action.sa_sigaction = handle as usize;
            // The stack of the thread may be the one that overflowed: SA_ONSTACK.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            if libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    extern "C" fn handle(
        _signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        // SAFETY: with SA_SIGINFO, the kernel passes a valid `info`, and a SIGBUS has an address.
        // `errno` belongs to this thread, and is restored for the interrupted code.
        let (address, errno, code) =
            unsafe { ((*info).si_addr() as usize, *libc::__errno_location(), (*info).si_code) };
        // A signal that a process has sent has a code of at most 0, and no address.
        let is_sent = code <= 0;
        if is_sent || !replace_lost_pages(address) {
            // SAFETY: `install` has filled `PREVIOUS` before it installed this handler, and both
            // calls may be made in a handler. The read that caused a fault is repeated after the
            // return and then reaches the action of before; a signal that was sent is sent again.
            unsafe {
                libc::sigaction(libc::SIGBUS, PREVIOUS.0.get().cast(), ptr::null_mut());
                if is_sent {
                    libc::raise(libc::SIGBUS);
                }
            }
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }

    /// Puts zeros in the place of the page at `address` and of all later pages of its mapping.
    /// Returns `false` if the address is in no mapped file, or if the system refuses.
    fn replace_lost_pages(address: usize) -> bool {
        let page_bytes = PAGE_BYTES.load(Ordering::Acquire);
        let used = USED.load(Ordering::Acquire);
        for slot in &SLOTS[..used] {
            let Some(range) = slot.range().filter(|range| range.contains(&address)) else {
                continue;
            };
            let page = address - address % page_bytes;
            // The mark comes before the zeros, so that no thread reads zeros without the mark.
            slot.is_faulted.store(true, Ordering::Release);
            FAULTS.fetch_add(1, Ordering::AcqRel);
            // SAFETY: the pages lie in a read-only mapping of this table. The mapping exists for
            // the whole call, because the thread that was interrupted is reading from it and a
            // `Registration` is dropped before its mapping. A private mapping of zeros in their
            // place is memory that may be read, and is unmapped with the rest of the range.
            // Readers hold `&[u8]` to pages that had no contents any more, and any byte is a valid
            // `u8`.
            let mapped = unsafe {
                libc::mmap(
                    page as *mut libc::c_void,
                    range.end - page,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            if mapped == libc::MAP_FAILED {
                return false;
            }
            return true;
        }
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::map;
    use super::*;

    #[test]
    fn a_truncated_file_reads_as_zeros_and_is_marked() {
        survive_faults().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let contents = vec![7u8; 64 << 10];
        let write = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, &contents).unwrap();
            (map(&path).unwrap(), path)
        };
        let ((cut, path), (whole, _)) = (write("cut"), write("whole"));
        let before = faults();
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert_eq!((cut[0], cut[40 << 10], whole[40 << 10]), (7, 0, 7));
        assert_eq!(faults(), before + 1);
        let ranges = faulted_ranges();
        assert!(overlaps(&cut, &ranges) && !overlaps(&whole, &ranges), "{ranges:?}");
        // The pages behind the first lost one have been replaced with it.
        assert_eq!((cut[60 << 10], faults()), (0, before + 1));
        drop(cut);
        assert!(faulted_ranges().is_empty());
    }

    use std::fs::File;

    #[test]
    fn slots_are_used_again() {
        let bytes = [0u8; 16];
        let first = Registration::new(&bytes).slot;
        // The registration above has been dropped.
        for _ in 0..1000 {
            drop(Registration::new(&bytes));
        }
        assert!(USED.load(Ordering::Relaxed) < 1000, "{first:?}");
    }
}
