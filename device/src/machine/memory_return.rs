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

/// Limits the freed memory that the allocator keeps, for the rest of the process. Blocks of at
/// least `bytes` bytes are separate mappings, which are returned to the system when they are freed.
/// Freed memory at the end of an arena is returned as soon as it exceeds `bytes`. Without a limit,
/// glibc raises both thresholds up to 64 MiB after the first large block, and
/// [`return_free_memory`] does not reach the ends of the arenas of threads. Call the function
/// before the process starts threads. With other allocators, the function does nothing.
pub fn limit_kept_memory(bytes: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: `mallopt` takes two numbers and no pointer, and changes settings of the allocator
        // under its lock (mallopt(3)). A setting that is refused leaves the old one.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, bytes);
            libc::mallopt(libc::M_TRIM_THRESHOLD, bytes);
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = bytes;
}
