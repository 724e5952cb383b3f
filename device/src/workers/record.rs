//! What the threads of a pool were busy with, for whoever draws a picture of it.
//!
//! # Concurrency
//! Off, a phase pays the load of a flag. On, each thread adds one entry a phase, a wait or a task under a lock,
//! behind the work that it describes.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Instant, Mutex, PoisonError};

/// What a thread of the pool was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Indices of a phase.
    Phase,
    /// A background task.
    Task,
    /// Waiting for other threads to end the indices of a phase that they have begun.
    Wait,
}

/// A stretch of a thread's time.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// What it was doing.
    pub activity: Activity,
    /// The thread.
    pub thread: ThreadId,
    /// The thread that started the phase; of tasks, the thread itself.
    pub starter: ThreadId,
    /// When it began.
    pub begin: Instant,
    /// When it ended.
    pub end: Instant,
}

/// Stretches since they were last taken.
#[derive(Debug)]
pub(super) struct Record {
    is_on: AtomicU64,
    stretches: Mutex<Vec<Stretch>>,
}

impl Record {
    pub(super) fn new() -> Self {
        Self { is_on: AtomicU64::new(0), stretches: Mutex::new(Vec::new()) }
    }

    /// Relaxed: nothing is handed over by the flag, and a stretch more or less at the edge is no matter.
    pub(super) fn set(&self, on: bool) {
        self.is_on.store(u64::from(on), Ordering::Relaxed);
    }

    /// The beginning of a stretch, where they are recorded.
    pub(super) fn begin(&self) -> Option<Instant> {
        (self.is_on.load(Ordering::Relaxed) != 0).then(Instant::now)
    }

    /// The end of a stretch of this thread.
    pub(super) fn end(
        &self,
        begun: Option<Instant>,
        activity: Activity,
        starter: Option<ThreadId>,
    ) {
        let Some(begin) = begun else { return };
        let end = Instant::now();
        let thread = thread::current().id();
        let starter = starter.unwrap_or(thread);
        let stretch = Stretch { activity, thread, starter, begin, end };
        self.stretches.lock().unwrap_or_else(PoisonError::into_inner).push(stretch);
    }

    pub(super) fn take(&self) -> Vec<Stretch> {
        std::mem::take(&mut *self.stretches.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
