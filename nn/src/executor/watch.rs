//! The end of a run before its last tile.

use std::sync::atomic::{AtomicBool, Ordering};

/// A check whether a run is still wanted, which the threads of a pass make before each tile.
pub(super) struct Watch<'a> {
    is_late: Option<&'a (dyn Fn() -> bool + Sync)>,
    stopped: AtomicBool,
}

impl<'a> Watch<'a> {
    /// Creates a watch that stops a run when `is_late` returns `true`, or never without it.
    pub(super) fn new(is_late: Option<&'a (dyn Fn() -> bool + Sync)>) -> Self {
        Self { is_late, stopped: AtomicBool::new(false) }
    }

    /// Returns whether the run ends here. After the first `true`, all threads get `true`.
    #[inline]
    pub(super) fn stops(&self) -> bool {
        let Some(is_late) = self.is_late else { return false };
        // The flag guards no other data: the threads of a pass are joined before it is read last.
        if !self.stopped.load(Ordering::Relaxed) && is_late() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.stopped.load(Ordering::Relaxed)
    }

    /// Returns whether [`Watch::stops`] has returned `true`.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}
