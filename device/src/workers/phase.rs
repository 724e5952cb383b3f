//! A phase: a borrowed closure, a counter from which threads claim indices, and a count of the
//! finished indices.
//!
//! This file contains the only lifetime that the pool erases, and the argument that this is sound.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use super::record::{Activity, Record};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::thread::{self, Thread};
use crate::sync::{Arc, Instant, Mutex, PoisonError, spin_loop};

/// A counter that has its own cache lines. It has two lines, because processors fetch lines in
/// pairs.
#[repr(align(128))]
struct OwnLines(AtomicUsize);

/// A phase in progress. The helping threads hold it in an `Arc`, so they can always read its
/// counters. Only `body` borrows from the caller.
pub(super) struct Phase {
    /// The next index to claim. If it is `count` or more, no index is left.
    next: OwnLines,
    /// The number of indices that have ended or were dropped after a panic.
    finished: OwnLines,
    count: usize,
    body: Body,
    /// The payload of the first panic of an index.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// The thread to wake when the last index has finished.
    caller: Thread,
}

/// The caller's closure without its type and lifetime.
struct Body {
    closure: *const (),
    call: unsafe fn(*const (), usize),
}

// SAFETY: `closure` points to an `F: Sync` (see `run`), so several threads may call it through a
// shared reference, and `Body` offers nothing else.
unsafe impl Send for Body {}
// SAFETY: as above.
unsafe impl Sync for Body {}

/// The place where threads of the pool find open phases. The methods must not unwind.
pub(super) trait Board {
    /// Publishes a phase to at most `wanted` sleeping threads and to all spinning threads.
    fn open(&self, phase: &Arc<Phase>, wanted: usize);

    /// Removes a phase, so that no other thread begins to help.
    fn close(&self, phase: &Arc<Phase>);

    /// Returns the record of the activities of the threads.
    fn record(&self) -> &Record;

    /// Returns the time for which a waiting thread spins before it sleeps.
    fn spin(&self) -> Duration;
}

/// Runs `body` for all indices below `count`, with the help of the threads that use `board`.
pub(super) fn run<F: Fn(usize) + Sync>(board: &impl Board, count: usize, body: &F) {
    /// Calls the closure for one index.
    ///
    /// # Safety
    ///
    /// `closure` must point to a live `F`.
    unsafe fn call<F: Fn(usize)>(closure: *const (), index: usize) {
        // SAFETY: the caller of `call` promises it.
        let closure = unsafe { &*closure.cast::<F>() };
        closure(index);
    }

    // The numbers above `count` are for claims that find no index. Each thread makes one such claim
    // each time it looks.
    assert!(count <= usize::MAX / 2, "a phase of more than half of all indices");
    let phase = Arc::new(Phase {
        next: OwnLines(AtomicUsize::new(0)),
        finished: OwnLines(AtomicUsize::new(0)),
        count,
        body: Body { closure: std::ptr::from_ref(body).cast(), call: call::<F> },
        panic: Mutex::new(None),
        caller: thread::current(),
    });
    board.open(&phase, count - 1);
    phase.help_recorded(board.record());
    board.close(&phase);

    if !phase.is_finished() {
        let begun = board.record().begin();
        if !spin_until(board.spin(), || phase.is_finished()) {
            while !phase.is_finished() {
                thread::park();
            }
        }
        board.record().end(begun, Activity::Wait, None);
    }
    let panic = phase.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

impl Phase {
    /// Returns whether a thread that begins to help may still find an index to run.
    pub(super) fn has_unclaimed(&self) -> bool {
        self.next.0.load(Ordering::Relaxed) < self.count
    }

    /// Returns whether all indices have finished. The load is acquire, so a thread that sees the
    /// end also sees the writes of all indices.
    fn is_finished(&self) -> bool {
        self.finished.0.load(Ordering::Acquire) == self.count
    }

    /// Runs [`Phase::help`] and records it if recording is on.
    pub(super) fn help_recorded(&self, record: &Record) {
        let begun = record.begin();
        self.help();
        record.end(begun, Activity::Phase, Some(self.caller.id()));
    }

    /// Claims indices and runs them until none is left. This method does not unwind.
    pub(super) fn help(&self) {
        let mut finished = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let index = self.next.0.fetch_add(1, Ordering::Relaxed);
                if index >= self.count {
                    break;
                }
                // The index is counted before it runs: a task that panics has ended too.
                finished += 1;
                // SAFETY: `closure` must be alive. `run` holds the borrow of it until
                // `is_finished`, that is, until `finished == count`; nothing in between can unwind
                // (`help` catches, and the lock, the list and parking do not panic). `finished`
                // only grows by indices that were claimed and have ended, or that no thread can
                // claim any more, each index once, because `fetch_add` gives each out once. The
                // index here was claimed and is not yet added to `self.finished` (that happens
                // after this loop), so the sum is below `count` now, and `run` has not returned.
                // `call` is the instance for the type behind `closure`: the two were stored
                // together.
                unsafe { (self.body.call)(self.body.closure, index) };
            }
        }));
        if let Err(panic) = outcome {
            // The indices that have not begun are dropped. Claims after the swap find nothing.
            let begun = self.next.0.swap(self.count, Ordering::Relaxed).min(self.count);
            finished += self.count - begun;
            let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            if first.is_none() {
                *first = Some(panic);
            } else {
                // Dropping the payload could panic again, and nothing may unwind here.
                std::mem::forget(panic);
            }
        }
        // Release: publishes the writes of the tasks, together with the acquire of `is_finished`.
        // The read-modify-writes of several threads form one release sequence.
        if finished > 0
            && self.finished.0.fetch_add(finished, Ordering::Release) + finished == self.count
        {
            self.caller.unpark();
        }
    }
}

/// Polls `done` for at most `limit` and returns its last result.
pub(super) fn spin_until(limit: Duration, done: impl Fn() -> bool) -> bool {
    if done() {
        return true;
    }
    if limit.is_zero() {
        return false;
    }
    let start = Instant::now();
    loop {
        // Reading the clock costs as much as twenty pauses, so it is read only now and then.
        for _ in 0..32 {
            if done() {
                return true;
            }
            spin_loop();
        }
        if start.elapsed() > limit {
            return done();
        }
    }
}
