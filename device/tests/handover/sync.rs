//! `src/sync.rs` over primitives whose schedule a test decides.

pub(crate) use shuttle::hint::spin_loop;
pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) mod atomic {
    //! The words that threads share.
    pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod thread {
    //! The threads, and waiting for them.
    use std::cell::Cell;
    use std::io;
    use std::num::NonZeroUsize;

    pub(crate) use shuttle::thread::{Builder, JoinHandle, Thread, ThreadId, current, park};

    thread_local! {
        /// The number of cores of a scenario, which runs on one thread of the test.
        pub(crate) static CORES: Cell<NonZeroUsize> = const { Cell::new(NonZeroUsize::MIN) };
    }

    /// Returns the cores of the scenario: pools of more threads sleep at once, others spin first.
    pub(crate) fn available_parallelism() -> io::Result<NonZeroUsize> {
        Ok(CORES.get())
    }
}

/// A clock that has always advanced enough for every wait: schedules must not depend on time.
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
