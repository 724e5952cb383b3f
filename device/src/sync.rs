//! The primitives that pass work from thread to thread, in one module.
//!
//! The pool ([`crate::workers`]) and the readers ([`crate::direct_io`]) take their locks, atomics
//! and threads only from this module. So `device/tests/handover` can compile the same source with
//! primitives whose schedule a test controls. In this crate they are those of the standard library.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::time::Instant;

pub(crate) mod atomic {
    //! The words that threads share.
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod thread {
    //! The threads, and waiting for them.
    pub(crate) use std::thread::{
        Builder, JoinHandle, Thread, ThreadId, available_parallelism, current, park,
    };
}
