//! The watch over the mapped files of a loaded version: files that lose pages end the version and
//! not the process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zillion_device::mmap;
use zillion_rows::layer::LayerSource;

/// The state of the mapped files of one version. A check costs two reads of memory unless a fault
/// has occurred somewhere in the process since the last check.
#[derive(Debug)]
pub(crate) struct DamageWatch {
    /// The number of faults of the process at the last search.
    seen: AtomicU64,
    is_damaged: AtomicBool,
}

impl DamageWatch {
    /// Creates the watch of a version. The first check searches the rows in any case.
    pub(crate) fn new() -> Self {
        Self { seen: AtomicU64::new(u64::MAX), is_damaged: AtomicBool::new(false) }
    }

    /// Returns whether a file of the rows has lost pages. Reads that ended before the call are
    /// covered.
    pub(crate) fn is_damaged(&self, rows: &LayerSource) -> bool {
        let faults = mmap::faults();
        if faults != self.seen.load(Ordering::Acquire) {
            if rows.overlaps(&mmap::faulted_ranges()) {
                self.is_damaged.store(true, Ordering::Release);
            }
            self.seen.store(faults, Ordering::Release);
        }
        self.is_damaged.load(Ordering::Acquire)
    }
}
