//! What hands work from thread to thread, from one place.
//!
//! The pool ([`crate::workers`]) and the readers ([`crate::direct_io`]) take their locks, atomics and threads from here
//! and nowhere else, so that `device/tests/handover` can compile the same source over primitives whose schedule a test
//! decides. In this crate they are the standard library's.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::time::Instant;

pub(crate) mod atomic {
    //! Words that threads share.
    pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
}

pub(crate) mod thread {
    //! Threads, and waiting for them.
    pub(crate) use std::thread::{
        Builder, JoinHandle, Thread, ThreadId, available_parallelism, current, park,
    };
}
