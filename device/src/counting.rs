//! An allocator that counts allocations and bytes. It is for tests of code that must not allocate,
//! and of code whose memory must stay in proportion to its input.
//!
//! ```
//! use zillion_device::CountingAllocator;
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator::new();
//!
//! let before = ALLOCATOR.count();
//! let boxed = Box::new(17);
//! assert_eq!((*boxed, ALLOCATOR.count() - before), (17, 1));
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The allocator of the system, which also counts the allocations and their bytes.
#[derive(Debug)]
pub struct CountingAllocator {
    count: AtomicU64,
    /// The number of bytes that are allocated now.
    live: AtomicUsize,
    /// The largest value of `live` since the last reset.
    peak: AtomicUsize,
    /// The limit on `live`. An allocation that would exceed it fails.
    most: usize,
}

impl CountingAllocator {
    /// Creates an allocator whose counts are zero.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_limit(usize::MAX)
    }

    /// Creates an allocator whose allocations fail if more than `most` bytes would be allocated at
    /// the same time. So a test of hostile input ends with an error before it uses up the memory of
    /// the machine.
    #[must_use]
    pub const fn with_limit(most: usize) -> Self {
        let (live, peak) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { count: AtomicU64::new(0), live, peak, most }
    }

    /// Returns the number of allocations so far, on all threads. A reallocation counts as one.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that are allocated now, by all threads.
    pub fn live_bytes(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Returns the largest number of bytes that were allocated at the same time since the last call
    /// of [`CountingAllocator::reset_peak`]. During a reallocation, the old bytes and the new bytes
    /// both count.
    pub fn peak_bytes(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Sets the peak to the number of bytes that are allocated now, and returns this number.
    pub fn reset_peak(&self) -> usize {
        let live = self.live_bytes();
        self.peak.store(live, Ordering::Relaxed);
        live
    }

    /// Adds an allocation of `bytes` bytes to the counts. If the limit forbids the allocation,
    /// returns `false` and leaves the count of bytes unchanged.
    fn take(&self, bytes: usize) -> bool {
        self.count.fetch_add(1, Ordering::Relaxed);
        let before = self.live.fetch_add(bytes, Ordering::Relaxed);
        let live = before.saturating_add(bytes);
        if live > self.most {
            self.release(bytes);
            return false;
        }
        self.peak.fetch_max(live, Ordering::Relaxed);
        true
    }

    fn release(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Calls `allocate` if the limit allows `bytes`. Returns null if the limit or the system
    /// refuses.
    fn allocate(&self, bytes: usize, allocate: impl FnOnce() -> *mut u8) -> *mut u8 {
        if !self.take(bytes) {
            return ptr::null_mut();
        }
        let place = allocate();
        if place.is_null() {
            self.release(bytes);
        }
        place
    }
}

impl Default for CountingAllocator {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: every call goes to the system's allocator with unchanged arguments, and its result is
// returned unchanged, or null is returned, which means that the allocation failed and left
// everything as it was. The counts allocate nothing and cannot unwind.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system's allocator requires.
        self.allocate(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.allocate(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; `place` came from the system's allocator, like all memory of this one.
        let new = self.allocate(size, || unsafe { System.realloc(place, layout, size) });
        if !new.is_null() {
            self.release(layout.size());
        }
        new
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) };
        self.release(layout.size());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_up_to_the_limit() {
        let counts = CountingAllocator::with_limit(100);
        let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
        // SAFETY: every layout has at least one byte, and each block is freed once with its own
        // layout.
        unsafe {
            let first = counts.alloc(layout(40));
            assert!(!first.is_null());
            assert!(counts.alloc(layout(61)).is_null(), "the limit holds");
            let grown = counts.realloc(first, layout(40), 50);
            assert!(!grown.is_null());
            assert_eq!((counts.live_bytes(), counts.peak_bytes()), (50, 90));
            assert!(counts.realloc(grown, layout(50), 60).is_null(), "both exist for a moment");
            assert_eq!((counts.reset_peak(), counts.peak_bytes()), (50, 50));
            counts.dealloc(grown, layout(50));
        }
        assert_eq!((counts.live_bytes(), counts.count()), (0, 4));
    }
}
