//! An allocator that counts, for tests of code that promises to allocate nothing.
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

/// The system's allocator, with a count of what it was asked for.
#[derive(Debug, Default)]
pub struct CountingAllocator {
    count: AtomicU64,
}

impl CountingAllocator {
    /// One that has counted nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { count: AtomicU64::new(0) }
    }

    /// Allocations so far, on all threads; growing counts as one.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the arguments that came, and its answer goes back;
// what is added, a count, allocates nothing and cannot unwind.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add();
        // SAFETY: the caller's promises are the ones that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add();
        // SAFETY: as above; `place` came from the system's allocator, as all of this one's do.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}
