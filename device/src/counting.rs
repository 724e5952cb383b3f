//! An allocator that counts allocations, for tests of code that must not allocate.
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
use std::sync::atomic::{AtomicU64, Ordering};

/// The allocator of the system, with a count of the allocations.
#[derive(Debug, Default)]
pub struct CountingAllocator {
    count: AtomicU64,
}

impl CountingAllocator {
    /// Creates an allocator whose count is zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { count: AtomicU64::new(0) }
    }

    /// Returns the number of allocations so far, on all threads. A reallocation counts as one.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with unchanged arguments, and its result is
// returned unchanged. The added count allocates nothing and cannot unwind.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add();
        // SAFETY: the caller's promises are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add();
        // SAFETY: as above; `place` came from the system's allocator, like all memory of this one.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}
