//! The memory that rows leave free on their device.
//!
//! Rows come to the device before the executor has memory for a batch, and tables grow while a run
//! trains. So memory that rows may need later is taken only if the batches do not miss it, and the
//! rows stay on the host if even those that are there would take too much.

use zillion_device::gpu::GpuError;

use crate::error::{Error, Result};
use crate::resident::device::ResidentOptions;

/// A part of `1 / PART` of the memory of a device is for all that is not rows: the executor with
/// its parameters and batches.
const PART: u64 = 10;
/// A part of `1 / FREE_PART` of the memory stays free, even if the executor has more than its part.
const FREE_PART: u64 = 32;

/// Returns the bytes that must stay free on a device on which rows take `own` bytes.
pub(super) fn kept_free(options: &ResidentOptions, own: u64) -> u64 {
    let memory = usable_bytes(options);
    let others = options.gpu.counters().live_bytes.saturating_sub(own);
    (memory / PART).saturating_sub(others).max(memory / FREE_PART)
}

/// Returns the bytes of the device's memory that this process may use.
pub(super) fn usable_bytes(options: &ResidentOptions) -> u64 {
    let memory = options.gpu.info().memory_bytes;
    options.memory.map_or(memory, |most| most.min(memory))
}

/// Returns the bytes of the device's memory that are free for this process.
pub(super) fn free_bytes(options: &ResidentOptions) -> Result<u64, GpuError> {
    let free = options.gpu.free_bytes()?;
    let left = |most: u64| most.saturating_sub(options.gpu.counters().live_bytes);
    Ok(options.memory.map_or(free, |most| left(most).min(free)))
}

/// Returns whether an error says that the memory of the device, or pinned memory of the host, is
/// too small.
pub(super) fn is_about_memory(error: &Error) -> bool {
    matches!(
        error,
        Error::Mismatch { .. }
            | Error::Gpu(GpuError::OutOfMemory { .. } | GpuError::PinnedMemory { .. })
    )
}

/// Calls `make` with the given parts of room, of which the largest comes first, until there is
/// memory for one. Returns the error of the last one if there is none.
pub(super) fn with_most_room<T>(
    parts: &[Option<usize>],
    mut make: impl FnMut(Option<usize>) -> Result<T>,
) -> Result<T> {
    let Some((last, others)) = parts.split_last() else {
        return Err(Error::misuse("no part of room was given; give one"));
    };
    for part in others {
        match make(*part) {
            Err(error) if is_about_memory(&error) => {}
            made => return made,
        }
    }
    make(*last)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use zillion_device::gpu::Gpu;
    use zillion_device::gpu::emulated::{Emulated, EmulatedOptions};

    use super::*;

    fn options_of(memory_bytes: u64, memory: Option<u64>) -> ResidentOptions {
        let options = EmulatedOptions { memory_bytes, ..EmulatedOptions::seeded(1) };
        let gpu: Arc<dyn Gpu> = Arc::new(Emulated::new(options));
        let stream = gpu.create_stream().unwrap();
        ResidentOptions { memory, ..ResidentOptions::new(gpu, stream) }
    }

    #[test]
    fn what_others_have_taken_is_not_kept_for_them_again() {
        // A part of the device is like a small device.
        for options in [options_of(32_000, None), options_of(1 << 20, Some(32_000))] {
            let gpu = &options.gpu;
            assert_eq!(kept_free(&options, 0), 3_200);
            gpu.allocate(700).unwrap();
            assert_eq!(kept_free(&options, 0), 2_500);
            gpu.allocate(10_000).unwrap();
            assert_eq!(kept_free(&options, 10_000), 2_500);
            gpu.allocate(9_000).unwrap();
            assert_eq!(kept_free(&options, 10_000), 1_000);
            assert_eq!(free_bytes(&options).unwrap(), 32_000 - 19_700);
        }
    }

    #[test]
    fn less_room_is_tried_only_if_memory_is_short() {
        let mut tried = Vec::new();
        let mut make = |most: usize, part: Option<usize>| {
            tried.push(part);
            match part.map_or(0, |part| 80 / part) {
                room if room <= most => Ok(room),
                room => Err(Error::Gpu(GpuError::OutOfMemory { bytes: room, free: 0 })),
            }
        };
        let parts = [Some(4), Some(8), None];
        assert_eq!(with_most_room(&parts, |part| make(10, part)).unwrap(), 10);
        assert_eq!(with_most_room(&parts[..2], |part| make(9, part)).ok(), None);
        assert_eq!(tried, [Some(4), Some(8), Some(4), Some(8)]);
        let failed = with_most_room::<()>(&parts, |_| Err(Error::misuse("no")));
        assert!(failed.is_err_and(|error| !is_about_memory(&error)));
    }
}
