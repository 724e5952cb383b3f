//! The batches of a model: what came while a batch ran goes together, and nothing waits for a
//! timer.
//!
//! A thread puts its request into the list. If no batch runs, it takes the executors, runs the
//! oldest requests of one version as one batch, and gives the results to their threads. Otherwise
//! it waits until a batch has ended, and then finds its result, or runs the next batch. So a
//! request alone runs at once, and under load batches grow with the time that a batch takes.
//!
//! # Concurrency
//! One mutex guards the list. A request takes it a few times, and no work is done under it. A batch
//! has one version: requests of another version, or with lists in other columns, wait for the next
//! batch. A panic in a batch fails the requests of the batch, and the next batch makes executors
//! anew.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::engine::{DeviceScores, DeviceVersion, Executors};
use super::merged::Prepared;
use crate::error::{Error, Result};
use crate::scorer::{LateCheck, check_time};

/// The largest number of rows of a batch of several requests.
const MOST_ROWS: usize = 16_384;
/// The largest number of values of a batch of several requests.
const MOST_VALUES: usize = 4 << 20;

/// The requests that wait for the executors of a model.
#[derive(Debug)]
pub(crate) struct Batcher {
    state: Mutex<State>,
    /// The signal that a batch has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Job>,
    /// The executors; `None` while a batch runs.
    executors: Option<Executors>,
}

/// The place of a result.
type Slot = Arc<Mutex<Option<Result<DeviceScores>>>>;

#[derive(Debug)]
struct Job {
    version: Arc<DeviceVersion>,
    request: Prepared,
    slot: Slot,
}

impl Default for Batcher {
    fn default() -> Self {
        let state = State { waiting: VecDeque::new(), executors: Some(Executors::default()) };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A batch that runs. When it is dropped, its requests have results, and the executors are free.
struct Running<'a> {
    batcher: &'a Batcher,
    jobs: Vec<Job>,
    executors: Executors,
    /// Whether the work has ended without a panic.
    is_whole: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        for job in &self.jobs {
            lock(&job.slot).get_or_insert_with(|| {
                Err(Error::Refused(
                    "the batch of the request panicked on the device; send the request again, and \
                     report this defect"
                        .to_owned(),
                ))
            });
        }
        let executors = std::mem::take(&mut self.executors);
        // Operations of a batch that panicked may be on their streams. Dropping waits for them.
        let executors = if self.is_whole { executors } else { Executors::default() };
        lock(&self.batcher.state).executors = Some(executors);
        self.batcher.ended.notify_all();
    }
}

impl Batcher {
    /// Scores a request. Returns [`Error::Late`] if it was late before its batch began.
    pub(super) fn score(
        &self,
        version: &Arc<DeviceVersion>,
        request: Prepared,
        is_late: Option<LateCheck<'_>>,
    ) -> Result<DeviceScores> {
        check_time(is_late)?;
        let slot = Slot::default();
        let job = Job { version: version.clone(), request, slot: slot.clone() };
        let mut state = lock(&self.state);
        state.waiting.push_back(job);
        loop {
            if let Some(result) = lock(&slot).take() {
                return result;
            }
            if let Err(late) = check_time(is_late)
                && let Some(at) = state.waiting.iter().position(|job| Arc::ptr_eq(&job.slot, &slot))
            {
                let withdrawn = state.waiting.remove(at);
                drop(state);
                // A version that nothing else uses is freed here, without the lock.
                drop(withdrawn);
                return Err(late);
            }
            match state.executors.take() {
                Some(executors) => {
                    let jobs = take_batch(&mut state.waiting);
                    drop(state);
                    // The requests of a batch that panicked have their answers, and this request
                    // may be in another batch.
                    let _ = catch_unwind(AssertUnwindSafe(|| self.run(jobs, executors)));
                    state = lock(&self.state);
                }
                None => state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Does work with the executors, while no batch runs.
    pub(super) fn alone<T>(&self, work: impl FnOnce(&mut Executors) -> T) -> T {
        let mut state = lock(&self.state);
        let executors = loop {
            match state.executors.take() {
                Some(executors) => break executors,
                None => state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        let mut running = Running { batcher: self, jobs: Vec::new(), executors, is_whole: false };
        let done = work(&mut running.executors);
        running.is_whole = true;
        done
    }

    /// Runs a batch. If it fails as a whole, each of its requests is tried alone, because one of
    /// them may be the cause.
    fn run(&self, jobs: Vec<Job>, executors: Executors) {
        let mut running = Running { batcher: self, jobs, executors, is_whole: false };
        let Running { jobs, executors, .. } = &mut running;
        if let Some(first) = jobs.first() {
            let engine = first.version.engine();
            let requests: Vec<&Prepared> = jobs.iter().map(|job| &job.request).collect();
            match engine.run(executors, &first.version, &requests) {
                Ok(scores) => {
                    for (job, scores) in jobs.iter().zip(scores) {
                        *lock(&job.slot) = Some(Ok(scores));
                    }
                }
                Err(error) if jobs.len() == 1 => *lock(&first.slot) = Some(Err(error)),
                Err(_) => {
                    for job in &*jobs {
                        let alone = engine.run(executors, &job.version, &[&job.request]);
                        let scores = alone.map(|mut of| of.pop().unwrap_or_default());
                        *lock(&job.slot) = Some(scores);
                    }
                }
            }
        }
        running.is_whole = true;
    }
}

/// Takes the oldest request, and those behind it that can be in one batch with it.
fn take_batch(waiting: &mut VecDeque<Job>) -> Vec<Job> {
    let Some(first) = waiting.pop_front() else { return Vec::new() };
    if first.version.engine().couples_rows() {
        return vec![first];
    }
    let (mut rows, mut values) = (first.request.rows, first.request.values());
    let mut jobs = vec![first];
    let mut at = 0;
    while let Some(next) = waiting.get(at) {
        let (more_rows, more_values) = (next.request.rows, next.request.values());
        let is_same = Arc::ptr_eq(&next.version, &jobs[0].version)
            && next.request.has_form_of(&jobs[0].request)
            && rows + more_rows <= MOST_ROWS
            && values + more_values <= MOST_VALUES;
        if is_same {
            (rows, values) = (rows + more_rows, values + more_values);
            jobs.extend(waiting.remove(at));
        } else {
            at += 1;
        }
    }
    jobs
}
