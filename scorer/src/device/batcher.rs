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
//!
//! A thread takes the executors only while it holds a turn of the device, and gives the turn up
//! before it waits for a batch. If the memory of the device is exhausted, the work is done again
//! after the executors of this model and the idle ones of others have been dropped. The last trial
//! is alone on the device, so no other model can hold memory for batches.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::engine::{DeviceScores, DeviceVersion};
use super::executors::Executors;
use super::merged::Prepared;
use super::{ScoringDevice, Turn};
use crate::error::{Error, Result};
use crate::late::{LateCheck, check_time};

/// The largest number of rows of a batch of several requests.
const MOST_ROWS: usize = 16_384;
/// The largest number of values of a batch of several requests.
const MOST_VALUES: usize = 4 << 20;

/// The requests that wait for the executors of a model.
#[derive(Debug)]
pub(crate) struct Batcher {
    device: Arc<ScoringDevice>,
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The executors in the hands of one thread, with its turn of the device.
struct Held<'a> {
    device: &'a ScoringDevice,
    executors: Executors,
    turn: Option<Turn<'a>>,
}

impl Held<'_> {
    /// Does work that needs memory of the device. If there is not enough, memory is freed, and the
    /// work is done again.
    fn with_room<T>(&mut self, work: impl Fn(&mut Executors) -> Result<T>) -> Result<T> {
        let is_exhausted = |done: &Result<T>| done.as_ref().is_err_and(Error::is_out_of_memory);
        let mut done = work(&mut self.executors);
        if is_exhausted(&done) {
            self.executors.clear();
            self.device.drop_idle_executors();
            done = work(&mut self.executors);
        }
        if is_exhausted(&done) {
            self.executors.clear();
            // A thread that waits for the device must not hold a turn.
            self.turn = None;
            self.turn = Some(self.device.turn_alone());
            done = work(&mut self.executors);
        }
        if is_exhausted(&done) {
            self.executors.clear();
        }
        done
    }
}

/// A batch that runs. When it is dropped, its requests have results, and the executors are free.
struct Running<'a> {
    batcher: &'a Batcher,
    jobs: Vec<Job>,
    /// The turn ends after the executors have been given back.
    held: Held<'a>,
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
        let executors = std::mem::take(&mut self.held.executors);
        // Operations of a batch that panicked may be on their streams. Dropping waits for them.
        let executors = if self.is_whole { executors } else { Executors::default() };
        lock(&self.batcher.state).executors = Some(executors);
        self.batcher.ended.notify_all();
    }
}

impl Batcher {
    /// Creates the batcher of a model on a device.
    pub(super) fn new(device: Arc<ScoringDevice>) -> Self {
        let state = State { waiting: VecDeque::new(), executors: Some(Executors::default()) };
        Self { device, state: Mutex::new(state), ended: Condvar::new() }
    }

    /// Makes one step towards the executors: waits for the end of a batch, begins a turn of the
    /// device, or takes the executors if the turn has begun. The list may change in each step.
    fn approach<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        turn: &mut Option<Turn<'a>>,
    ) -> (MutexGuard<'a, State>, Option<Held<'a>>) {
        if state.executors.is_none() {
            *turn = None;
            let state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            return (state, None);
        }
        if turn.is_none() {
            drop(state);
            *turn = Some(self.device.turn());
            return (lock(&self.state), None);
        }
        let (device, turn) = (&*self.device, turn.take());
        let held = state.executors.take().map(|executors| Held { device, executors, turn });
        (state, held)
    }

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
        let mut turn = None;
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
            let (own, held) = self.approach(state, &mut turn);
            state = own;
            if let Some(held) = held {
                let jobs = take_batch(&mut state.waiting);
                drop(state);
                // The requests of a batch that panicked have their answers, and this request may be
                // in another batch.
                let _ = catch_unwind(AssertUnwindSafe(|| self.run(jobs, held)));
                state = lock(&self.state);
            }
        }
    }

    /// Does work with the executors, while no batch runs. If the memory of the device is exhausted,
    /// the work is done again with more.
    pub(super) fn alone<T>(&self, work: impl Fn(&mut Executors) -> Result<T>) -> Result<T> {
        let (mut state, mut turn) = (lock(&self.state), None);
        let held = loop {
            match self.approach(state, &mut turn) {
                (own, None) => state = own,
                (own, Some(held)) => {
                    drop(own);
                    break held;
                }
            }
        };
        let mut running = Running { batcher: self, jobs: Vec::new(), held, is_whole: false };
        let done = running.held.with_room(work);
        running.is_whole = true;
        done
    }

    /// Drops the executors if no batch runs.
    pub(super) fn drop_idle(&self) {
        let idle = lock(&self.state).executors.as_mut().map(std::mem::take);
        // Memory is freed without the lock.
        drop(idle);
    }

    /// Drops the executors that recent batches did not need, if no batch runs.
    pub(super) fn drop_surplus(&self, now: Instant) {
        let surplus = lock(&self.state).executors.as_mut().map(|own| own.take_surplus(now));
        drop(surplus);
    }

    /// Runs a batch. If it fails as a whole, each of its requests is tried alone, because one of
    /// them may be the cause.
    fn run(&self, jobs: Vec<Job>, held: Held<'_>) {
        let mut running = Running { batcher: self, jobs, held, is_whole: false };
        let Running { jobs, held, .. } = &mut running;
        if let Some(first) = jobs.first() {
            let engine = first.version.engine();
            let requests: Vec<&Prepared> = jobs.iter().map(|job| &job.request).collect();
            match held.with_room(|own| engine.run(own, &first.version, &requests)) {
                Ok(scores) => {
                    for (job, scores) in jobs.iter().zip(scores) {
                        *lock(&job.slot) = Some(Ok(scores));
                    }
                }
                Err(error) if jobs.len() == 1 => *lock(&first.slot) = Some(Err(error)),
                Err(_) => {
                    for job in &*jobs {
                        let alone =
                            held.with_room(|own| engine.run(own, &job.version, &[&job.request]));
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
