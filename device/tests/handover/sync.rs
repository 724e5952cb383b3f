//! `src/sync.rs` over primitives whose schedule a test decides.

pub(crate) use shuttle::hint::spin_loop;
pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) mod atomic {
    //! Words that threads share.
    pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod thread {
    //! Threads, and waiting for them.
    use std::io;
    use std::num::NonZeroUsize;

    pub(crate) use shuttle::thread::{Builder, JoinHandle, Thread, current, park};

    /// Pools of two threads watch before they sleep, larger ones sleep at once: both ways are gone.
    pub(crate) fn available_parallelism() -> io::Result<NonZeroUsize> {
        Ok(NonZeroUsize::MIN.saturating_add(1))
    }
}

/// A clock by which every wait has lasted long enough when it is looked at: schedules must not depend on time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instant;

impl Instant {
    pub(crate) fn now() -> Self {
        Self
    }

    pub(crate) fn elapsed(&self) -> std::time::Duration {
        std::time::Duration::MAX
    }
}
