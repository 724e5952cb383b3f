//! The recorded activities of the threads of a pool, for profiles.
//!
//! # Concurrency
//! While recording is off, a phase costs one load of a flag. While it is on, each thread adds one
//! entry per phase, wait or task under a lock, after the work that the entry describes.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::{self, ThreadId};
use crate::sync::{Instant, Mutex, PoisonError};

/// The activity of a thread of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The thread ran indices of a phase.
    Phase,
    /// The thread ran a background task.
    Task,
    /// The thread waited for indices that other threads were still running.
    Wait,
}

/// A period of a thread's time with one activity.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// The activity of the thread.
    pub activity: Activity,
    /// The thread of the stretch.
    pub thread: ThreadId,
    /// The thread that started the phase. For a task, the thread that ran the task.
    pub starter: ThreadId,
    /// The moment at which the stretch began.
    pub begin: Instant,
    /// The moment at which the stretch ended.
    pub end: Instant,
}

/// The stretches that were recorded and not yet taken.
#[derive(Debug)]
pub(super) struct Record {
    is_on: AtomicU64,
    stretches: Mutex<Vec<Stretch>>,
}

impl Record {
    pub(super) fn new() -> Self {
        Self { is_on: AtomicU64::new(0), stretches: Mutex::new(Vec::new()) }
    }

    /// Turns recording on or off. The store can be relaxed, because the flag passes no data. One
    /// missing or additional stretch at the time of the change does not matter.
    pub(super) fn set(&self, on: bool) {
        self.is_on.store(u64::from(on), Ordering::Relaxed);
    }

    /// Returns the present moment as the beginning of a stretch, or `None` if recording is off.
    pub(super) fn begin(&self) -> Option<Instant> {
        (self.is_on.load(Ordering::Relaxed) != 0).then(Instant::now)
    }

    /// Records a stretch of this thread, which ends now.
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
