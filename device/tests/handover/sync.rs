//! `src/sync.rs` over primitives whose schedule a test decides.

pub(crate) use shuttle::hint::spin_loop;
pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub(crate) mod atomic {
    //! Words that threads share.
    pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod thread {
    //! Threads, and waiting for them.
    use std::cell::Cell;
    use std::io;
    use std::num::NonZeroUsize;

    pub(crate) use shuttle::thread::{Builder, JoinHandle, Thread, ThreadId, current, park};

    thread_local! {
        /// What the machine of a scenario has, all of which runs on one thread of the test.
        pub(crate) static CORES: Cell<NonZeroUsize> = const { Cell::new(NonZeroUsize::MIN) };
    }

    /// Pools of more threads than cores sleep at once, others watch first.
    pub(crate) fn available_parallelism() -> io::Result<NonZeroUsize> {
        Ok(CORES.get())
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
