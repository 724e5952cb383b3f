//! Hints to the processor that a cache line will soon be needed. With hints, several random rows of
//! a table are loaded at the same time, so they are read at the full rate of the memory. A hint
//! never changes results. A hint beyond the end of a slice has no effect.

/// Prefetches the cache line of `values[index]` for a read.
#[inline(always)]
pub fn prefetch_read<T>(values: &[T], index: usize) {
    if let Some(value) = values.get(index) {
        prefetch_line_read(value);
    }
}

/// Prefetches the cache line of `values[index]` for a write.
#[inline(always)]
pub fn prefetch_write<T>(values: &[T], index: usize) {
    if let Some(value) = values.get(index) {
        prefetch_line_write(value);
    }
}

/// Prefetches the cache line at `address` for a read.
#[inline(always)]
pub(crate) fn prefetch_line_read<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address, mapped or not, has no effect that a program can see and
    // never faults; the instruction is part of SSE, which x86-64 always has.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM is a hint; it changes no register and no memory and never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Prefetches the cache line at `address` for a write.
#[inline(always)]
pub(crate) fn prefetch_line_write<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as for reading; a processor without PREFETCHW treats it as a no-op.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM is a hint; it changes no register and no memory and never faults.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_outside_of_the_slice_does_nothing() {
        let values = [1u64, 2, 3];
        for index in [0, 2, 3, usize::MAX] {
            prefetch_read(&values, index);
            prefetch_write(&values, index);
        }
        prefetch_read::<u8>(&[], 0);
    }
}
