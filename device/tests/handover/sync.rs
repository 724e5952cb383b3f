//! A replacement for `src/sync.rs` with primitives whose schedule a test controls.

pub(crate) use shuttle::hint::spin_loop;
pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) mod atomic {
    //! The atomic variables that threads share.
    pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod thread {
    //! Threads, and functions that wait for them.
    use std::cell::Cell;
    use std::io;
    use std::num::NonZeroUsize;

    pub(crate) use shuttle::thread::{Builder, JoinHandle, Thread, ThreadId, current, park};

    thread_local! {
        /// The number of cores of the machine in a scenario.
        pub(crate) static CORES: Cell<NonZeroUsize> = const { Cell::new(NonZeroUsize::MIN) };
    }

    /// Returns the number of cores of the scenario. In a pool with more threads than cores, threads
    /// sleep at once. Otherwise, they spin first.
    pub(crate) fn available_parallelism() -> io::Result<NonZeroUsize> {
        Ok(CORES.get())
    }
}

/// A clock whose waits are always already over. Schedules must not depend on time.
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
