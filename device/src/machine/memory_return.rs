//! The return of freed memory to the system.

/// Returns memory that was freed to the system, as far as the allocator keeps it.
///
/// The allocator of glibc keeps freed memory of its arenas for later, so that a burst of large
/// requests would stay resident for ever. A call locks each arena for a moment, so that it belongs
/// between requests and not into one. Other allocators are left alone.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: `malloc_trim` takes a number and no pointer, locks the arenas itself, and changes
        // no memory that is allocated (malloc_trim(3)). It may be called from any thread.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}
