//! The return of freed memory to the system.

/// Returns the freed memory that the allocator keeps to the operating system.
///
/// The allocator of glibc keeps freed memory for later allocations. So after a burst of large
/// requests, the resident memory would never decrease. A call of this function locks each arena of
/// the allocator for a moment, so call it between requests and not during one. With other
/// allocators, the function does nothing.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `malloc_trim` takes a number and no pointer, locks the arenas itself, and changes
        // no memory that is allocated (malloc_trim(3)). It may be called from any thread.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}
