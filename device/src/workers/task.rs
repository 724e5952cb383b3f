//! Background tasks: closures that own their data and run once, on the first thread that claims
//! them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::pool::Shared;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A handle to a background task. [`Task::join`] waits for its end. If the handle is dropped, a
/// task that has not begun is cancelled. A task that has begun runs to its end, and its result is
/// dropped.
#[must_use = "dropping a task cancels it if it has not begun"]
pub struct Task<T: Send + 'static> {
    cell: Arc<Cell<T>>,
    shared: Arc<Shared>,
}

/// The interface by which the queue of the pool runs a task.
pub(super) trait Job: Send + Sync {
    /// Runs the task unless another thread has begun it. This method does not unwind.
    fn run(&self);
}

/// Begins a task that has no handle.
pub(super) fn begin_detached(shared: &Arc<Shared>, work: impl FnOnce() + Send + 'static) {
    let cell = Cell { state: Mutex::new(State::Waiting(Box::new(work))), done: Condvar::new() };
    if !shared.runs_tasks() {
        return cell.run();
    }
    shared.publish_task(Arc::new(cell));
}

/// The shared state of a task.
struct Cell<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

enum State<T> {
    Waiting(Box<dyn FnOnce() -> T + Send>),
    Running,
    Done(Result<T, Box<dyn Any + Send>>),
    /// The result was taken, or the task was cancelled.
    Gone,
}

impl<T> Cell<T> {
    /// Locks the state. No closure of a caller runs under this lock.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the closure of the task and sets the state to `then`. Returns `None` if another thread
    /// has begun the task.
    fn claim(&self, then: State<T>) -> Option<Box<dyn FnOnce() -> T + Send>> {
        let mut state = self.lock();
        if !matches!(*state, State::Waiting(_)) {
            return None;
        }
        match std::mem::replace(&mut *state, then) {
            State::Waiting(work) => Some(work),
            _ => None,
        }
    }
}

impl<T: Send> Job for Cell<T> {
    fn run(&self) {
        if let Some(work) = self.claim(State::Running) {
            let outcome = catch_unwind(AssertUnwindSafe(work));
            *self.lock() = State::Done(outcome);
            self.done.notify_all();
        }
    }
}

impl<T: Send + 'static> Task<T> {
    pub(super) fn begin(shared: &Arc<Shared>, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let cell = Arc::new(Cell {
            state: Mutex::new(State::Waiting(Box::new(work))),
            done: Condvar::new(),
        });
        // No thread of an empty pool would look into the queue.
        if shared.runs_tasks() {
            shared.publish_task(cell.clone());
        }
        Self { cell, shared: shared.clone() }
    }

    /// Returns whether the task has ended and its result is available.
    pub fn is_done(&self) -> bool {
        matches!(*self.cell.lock(), State::Done(_))
    }

    /// Returns the result. If no thread has begun the task, runs it on this thread. Otherwise,
    /// waits for its end.
    ///
    /// # Panics
    ///
    /// Continues the panic of the task.
    pub fn join(self) -> T {
        if let Some(work) = self.cell.claim(State::Gone) {
            self.leave_queue();
            return work();
        }
        let mut state = self.cell.lock();
        loop {
            match std::mem::replace(&mut *state, State::Gone) {
                State::Done(Ok(result)) => return result,
                State::Done(Err(panic)) => {
                    drop(state);
                    resume_unwind(panic)
                }
                unfinished => *state = unfinished,
            }
            state = self.cell.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Cancels the task if it has not begun. Otherwise, waits for its end and drops the result. No
    /// part of the task runs after this call.
    pub fn cancel(self) {
        if self.cell.claim(State::Gone).is_some() {
            return self.leave_queue();
        }
        let mut state = self.cell.lock();
        while matches!(*state, State::Running) {
            state = self.cell.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Removes the task from the queue, so that the queue of a pool without workers does not grow.
    fn leave_queue(&self) {
        let cell = Arc::as_ptr(&self.cell).cast::<()>();
        self.shared.lock().jobs.retain(|job| Arc::as_ptr(job).cast::<()>() != cell);
    }
}

impl<T: Send + 'static> Drop for Task<T> {
    fn drop(&mut self) {
        if self.cell.claim(State::Gone).is_some() {
            self.leave_queue();
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Task<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Task").field("done", &self.is_done()).finish_non_exhaustive()
    }
}
