//! The watch of a run, which can stop the run before its last tile.

use std::sync::atomic::{AtomicBool, Ordering};

/// A check whether a run should continue. The threads of a pass make it before each tile.
pub(super) struct Watch<'a> {
    is_late: Option<&'a (dyn Fn() -> bool + Sync)>,
    stopped: AtomicBool,
}

impl<'a> Watch<'a> {
    /// Creates a watch that stops a run if `is_late` returns `true`. Without a function, the run is
    /// never stopped.
    pub(super) fn new(is_late: Option<&'a (dyn Fn() -> bool + Sync)>) -> Self {
        Self { is_late, stopped: AtomicBool::new(false) }
    }

    /// Returns whether the run should stop. After the first `true`, the result is `true` on all
    /// threads.
    #[inline]
    pub(super) fn stops(&self) -> bool {
        let Some(is_late) = self.is_late else { return false };
        // The flag guards no other data. All threads of the pass have ended before the last read.
        if !self.stopped.load(Ordering::Relaxed) && is_late() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// Returns whether [`Watch::stops`] has returned `true` before.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
