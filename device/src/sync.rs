//! The synchronization primitives for passing work between threads.
//!
//! The pool ([`crate::workers`]) and the readers ([`crate::direct_io`]) use only the locks, atomics
//! and threads of this module. In this crate, the module contains the primitives of the standard
//! library. The test `device/tests/handover` compiles the same sources with other primitives, whose
//! schedule it controls.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::time::Instant;

pub(crate) mod atomic {
    //! The atomic variables that threads share.
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod thread {
    //! Threads, and functions that wait for them.
    pub(crate) use std::thread::{
        Builder, JoinHandle, Thread, ThreadId, available_parallelism, current, park,
    };
}
