//! The pool: its threads, the state that they share, and the choice of the next work.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::phase::{self, Board, Phase, spin_until};
use super::record::{Activity, Record, Stretch};
use super::task::{self, Job, Task};
use crate::error::DeviceError;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self, JoinHandle, ThreadId};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The time for which a thread without work spins before it sleeps. Waking a sleeping thread takes
/// 5 to 50 us, about as long as the shortest phases. The gaps between phases inside a step are
/// shorter.
const SPIN: Duration = Duration::from_micros(50);

/// A pool of threads. It cannot be cloned: share it by reference or in an `Arc`. When the pool is
/// dropped, it waits for the running tasks. A task that has not begun stays with its [`Task`], and
/// runs when it is joined.
#[derive(Debug)]
pub struct Workers {
    pub(super) shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Creates a pool of `threads` threads. The caller of a phase counts as one of them, so the
    /// pool starts `threads - 1` named threads.
    pub fn new(threads: NonZeroUsize) -> Result<Self, DeviceError> {
        Self::start(threads, false)
    }

    /// Creates a pool like [`Workers::new`], and starts one more thread, which runs all background
    /// tasks. So tasks make progress also if the pool has one thread, and no phase waits for them.
    pub fn with_background(threads: NonZeroUsize) -> Result<Self, DeviceError> {
        Self::start(threads, true)
    }

    fn start(threads: NonZeroUsize, has_background: bool) -> Result<Self, DeviceError> {
        let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        // If threads share processors, a spinning thread keeps another thread from its work.
        let spin = if threads.get() <= cpus { SPIN } else { Duration::ZERO };
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            idle: AtomicUsize::new(0),
            queue: Mutex::new(Queue::default()),
            wake: Condvar::new(),
            background_wake: Condvar::new(),
            helpers: threads.get() - 1,
            has_background,
            spin,
            record: Record::new(),
        });
        let mut workers = Self { shared, handles: Vec::new() };
        for index in 1..threads.get() {
            let shared = workers.shared.clone();
            let handle = thread::Builder::new()
                .name(format!("zillion-worker-{index}"))
                .spawn(move || shared.work())
                .map_err(|source| DeviceError::Thread { index, source })?;
            workers.handles.push(handle);
        }
        if has_background {
            let shared = workers.shared.clone();
            let index = threads.get();
            let handle = thread::Builder::new()
                .name("zillion-background".to_owned())
                .spawn(move || shared.work_on_tasks())
                .map_err(|source| DeviceError::Thread { index, source })?;
            workers.handles.push(handle);
        }
        Ok(workers)
    }

    /// Returns the number of threads that work on a phase, including its caller.
    pub fn threads(&self) -> usize {
        self.shared.helpers + 1
    }

    /// Returns the number of threads that would begin a phase at this moment: its caller, and the
    /// threads of the pool without work. Another caller may take these threads first, so the
    /// number is a hint for the size of pieces and not a promise.
    pub fn free_threads(&self) -> usize {
        1 + self.shared.idle.load(Ordering::Relaxed)
    }

    /// Returns whether background tasks run without a thread that joins them.
    pub fn runs_tasks(&self) -> bool {
        self.shared.runs_tasks()
    }

    /// Runs `body(i)` for every `i` below `count`, on this thread and on free threads of the pool.
    /// Returns when all calls have ended. Any thread may run any index.
    ///
    /// # Panics
    ///
    /// Continues the first panic of `body`, after the running indices have ended.
    pub fn for_each(&self, count: usize, body: impl Fn(usize) + Sync) {
        if count <= 1 || self.shared.helpers == 0 {
            for index in 0..count {
                body(index);
            }
            return;
        }
        phase::run(self.shared.as_ref(), count, &body);
    }

    /// Turns the recording of the threads' activities on or off. Recording does not change the
    /// activities.
    pub fn record(&self, on: bool) {
        self.shared.record.set(on);
    }

    /// Returns the stretches that were recorded since the last call, and removes them from the
    /// record.
    pub fn take_record(&self) -> Vec<Stretch> {
        self.shared.record.take()
    }

    /// Returns the ids and the names of the pool's own threads. The callers of phases are not
    /// included.
    pub fn names(&self) -> impl Iterator<Item = (ThreadId, String)> {
        let threads = self.handles.iter().map(JoinHandle::thread);
        threads.map(|thread| (thread.id(), thread.name().unwrap_or("zillion-worker").to_owned()))
    }

    /// Starts the background task `work`. It runs on a worker thread that has no phase. If a thread
    /// joins the task before it has begun, the task runs on the joining thread.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        Task::begin(&self.shared, work)
    }

    /// Starts the background task `work` without a handle, so no thread can wait for it or cancel
    /// it. In a pool without threads of its own, the task runs at once, on the calling thread.
    pub fn spawn_detached(&self, work: impl FnOnce() + Send + 'static) {
        task::begin_detached(&self.shared, work);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        {
            let mut queue = self.shared.lock();
            queue.closing = true;
            queue.jobs.clear();
            self.shared.epoch.fetch_add(1, Ordering::Release);
        }
        self.shared.wake.notify_all();
        self.shared.background_wake.notify_all();
        let here = thread::current().id();
        for handle in self.handles.drain(..) {
            // A task may own the last reference to its pool. Then this thread is a thread of the
            // pool, and it ends without being joined.
            if handle.thread().id() == here {
                continue;
            }
            // A worker catches the panics of its work. If a worker has died in spite of this, its
            // panic is ignored, because a panic while dropping would abort the process.
            let _ = handle.join();
        }
    }
}

/// The state that the threads share.
pub(super) struct Shared {
    /// The number of changes of the queue, which is written under the lock. A spinning thread reads
    /// this number, so it does not have to lock the queue.
    epoch: AtomicU64,
    /// The number of threads that look for work or sleep. It may be late by a moment.
    idle: AtomicUsize,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Wakes the thread for background tasks.
    background_wake: Condvar,
    /// The number of threads in addition to the caller of a phase.
    pub(super) helpers: usize,
    /// Whether a thread of its own runs all background tasks.
    has_background: bool,
    spin: Duration,
    record: Record,
}

/// The open phases and the waiting tasks.
#[derive(Default)]
pub(super) struct Queue {
    /// The open phases, oldest first. The caller of a phase removes it.
    phases: Vec<Arc<Phase>>,
    /// The background tasks, oldest first.
    pub(super) jobs: VecDeque<Arc<dyn Job>>,
    /// The number of threads that wait on `wake`.
    sleepers: usize,
    pub(super) closing: bool,
}

/// A unit of work for a worker.
enum Work {
    Phase(Arc<Phase>),
    Job(Arc<dyn Job>),
    Stop,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("helpers", &self.helpers).finish_non_exhaustive()
    }
}

impl Board for Shared {
    fn open(&self, phase: &Arc<Phase>, wanted: usize) {
        self.publish(wanted, |queue| queue.phases.push(phase.clone()));
    }

    fn close(&self, phase: &Arc<Phase>) {
        self.lock().phases.retain(|open| !Arc::ptr_eq(open, phase));
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn spin(&self) -> Duration {
        self.spin
    }
}

impl Shared {
    /// Locks the queue. No code that can panic runs under this lock, so a poisoned lock is ignored.
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the main loop of a worker thread.
    fn work(&self) {
        loop {
            // The number is read before the search for work. So a change after the search is
            // noticed.
            let seen = self.epoch.load(Ordering::Acquire);
            match self.next_work() {
                Some(Work::Phase(phase)) => phase.help_recorded(&self.record),
                Some(Work::Job(job)) => self.run_task(job),
                Some(Work::Stop) => return,
                None => self.wait_for_work(seen),
            }
        }
    }

    /// Runs the main loop of the thread for background tasks.
    fn work_on_tasks(&self) {
        let mut queue = self.lock();
        while !queue.closing {
            match queue.jobs.pop_front() {
                Some(job) => {
                    drop(queue);
                    self.run_task(job);
                    queue = self.lock();
                }
                None => {
                    let waited = self.background_wake.wait(queue);
                    queue = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn run_task(&self, job: Arc<dyn Job>) {
        let begun = self.record.begin();
        // If a task has no handle any more, its result is dropped here, and this may panic.
        let end = catch_unwind(AssertUnwindSafe(|| {
            job.run();
            drop(job);
        }));
        std::mem::forget(end);
        self.record.end(begun, Activity::Task, None);
    }

    /// Returns whether a thread of the pool runs background tasks.
    pub(super) fn runs_tasks(&self) -> bool {
        self.helpers > 0 || self.has_background
    }

    /// Adds a background task to the queue. Does nothing if the pool is being dropped.
    pub(super) fn publish_task(&self, job: Arc<dyn Job>) {
        let add = |queue: &mut Queue| {
            if !queue.closing {
                queue.jobs.push_back(job);
            }
        };
        if !self.has_background {
            return self.publish(1, add);
        }
        add(&mut self.lock());
        self.background_wake.notify_one();
    }

    /// Returns the most urgent work, or `None` if there is no work. A phase comes before a
    /// background task.
    fn next_work(&self) -> Option<Work> {
        let mut queue = self.lock();
        if let Some(phase) = queue.phases.iter().find(|phase| phase.has_unclaimed()) {
            return Some(Work::Phase(phase.clone()));
        }
        if queue.closing {
            return Some(Work::Stop);
        }
        if self.has_background {
            return None;
        }
        queue.jobs.pop_front().map(Work::Job)
    }

    /// Waits until the number of changes of the queue differs from `seen`. The thread spins for a
    /// short time and then sleeps.
    fn wait_for_work(&self, seen: u64) {
        self.idle.fetch_add(1, Ordering::Relaxed);
        self.wait_for_change(seen);
        self.idle.fetch_sub(1, Ordering::Relaxed);
    }

    fn wait_for_change(&self, seen: u64) {
        if spin_until(self.spin, || self.epoch.load(Ordering::Acquire) != seen) {
            return;
        }
        let mut queue = self.lock();
        queue.sleepers += 1;
        while self.epoch.load(Ordering::Relaxed) == seen {
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.sleepers -= 1;
    }

    /// Changes the queue. Then wakes at most `wanted` sleeping threads and notifies all spinning
    /// threads.
    pub(super) fn publish(&self, wanted: usize, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.lock();
        change(&mut queue);
        self.epoch.fetch_add(1, Ordering::Release);
        let waking = queue.sleepers.min(wanted);
        drop(queue);
        for _ in 0..waking {
            self.wake.notify_one();
        }
    }
}
