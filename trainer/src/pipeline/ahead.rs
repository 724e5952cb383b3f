//! The batches that are prepared ahead of the steps which need them.
//!
//! One task at a time decodes, because batches come from one stream in the order of the data. A
//! decoded batch gets a task of its own for its lookup plan, and for its copy in pinned memory if a
//! GPU trains on it. Both depend on the batch alone, so the pool prepares several batches at the
//! same time.
//!
//! # Invariants
//! The queue holds the batches in the order of the data, whatever the order in which their plans
//! are done. At most `limit` batches are decoded and not taken yet, with the batch that is being
//! decoded.
//!
//! # Concurrency
//! One mutex guards the queue. It is locked a few times for each batch. A task that has decoded a
//! batch starts the next task itself, so decoding does not wait for a step to end. If the queue is
//! full, the task leaves the stream in the state, and the step that takes a batch goes on. A thread
//! that needs a batch joins the task that makes it, so a pool of one thread needs no other thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use zillion_device::{Task, Workers};
use zillion_feature::{Batch, Cursor, LookupPlan, PlanScratch, Schema};
use zillion_nn::StagedBatch;
use zillion_ps::TrainerPlace;
use zillion_reader::BatchStream;

use super::{AheadOptions, Ending, PlanStager, Planned, PreparationTimes, Work};
use crate::error::Result;

/// The batches of a stream that are prepared ahead.
pub(super) struct Ahead {
    shared: Arc<Shared>,
}

/// The state that the tasks share with the thread that takes the batches.
struct Shared {
    workers: Arc<Workers>,
    schema: Arc<Schema>,
    /// The trainer whose batches are planned.
    place: TrainerPlace,
    /// The largest number of batches that are decoded and not taken yet.
    limit: usize,
    stager: Option<PlanStager>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The decoded batches, in the order of the data.
    queue: VecDeque<Slot>,
    /// The task that decodes the next batch; `None` if the queue is full or the stream has ended.
    decoding: Option<Task<()>>,
    /// The stream, if no task decodes because the queue is full.
    parked: Option<Source>,
    ending: Option<Ending>,
    /// The scratch memory of plans that no task uses.
    scratches: Vec<PlanScratch>,
    /// Whether nobody takes the batches any more.
    is_closed: bool,
}

/// The stream of batches, which one task at a time reads.
struct Source {
    batches: BatchStream,
    /// The number of batches so far.
    batches_read: usize,
}

/// A batch in the queue.
enum Slot {
    /// A batch whose plan is being made.
    Planning(Task<Prepared>),
    /// A batch of another trainer, which needs no plan.
    Ready(Box<Prepared>),
    /// The error that ended the stream.
    Failed(zillion_reader::ReaderError),
}

/// A planned batch, with the times of its preparation.
pub(super) struct Prepared {
    pub(super) planned: Planned,
    pub(super) times: PreparationTimes,
}

/// A batch that is decoded and has no plan yet.
struct Decoded {
    batch: Batch,
    cursor: Cursor,
    rejected: Vec<u64>,
    work: Work,
}

impl Ahead {
    /// Begins to prepare the batches of a stream.
    pub(super) fn new(
        batches: BatchStream,
        schema: Arc<Schema>,
        AheadOptions { workers, place, ahead, stager }: AheadOptions,
    ) -> Self {
        let (limit, state) = (ahead.get(), Mutex::default());
        let shared = Arc::new(Shared { workers, schema, place, limit, stager, state });
        shared.decode_next(&mut shared.lock(), Source { batches, batches_read: 0 });
        Self { shared }
    }

    /// Returns the next batch of the stream, or `None` at its end and after an error.
    pub(super) fn next(&mut self) -> Result<Option<Prepared>> {
        loop {
            let mut state = self.shared.lock();
            if let Some(slot) = state.queue.pop_front() {
                if let Some(source) = state.parked.take() {
                    self.shared.decode_next(&mut state, source);
                }
                drop(state);
                return match slot {
                    Slot::Planning(task) => Ok(Some(task.join())),
                    Slot::Ready(prepared) => Ok(Some(*prepared)),
                    Slot::Failed(error) => Err(error.into()),
                };
            }
            let Some(task) = state.decoding.take() else { return Ok(None) };
            drop(state);
            task.join();
        }
    }

    /// Returns the counts at the end of the stream, or `None` before its end and after an error.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.shared.lock().ending.clone()
    }
}

#[cfg(test)]
impl Ahead {
    /// Returns the number of batches that are decoded and not taken.
    pub(super) fn decoded(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Waits until no task decodes, because the queue is full.
    pub(super) fn wait_until_full(&self) {
        while self.shared.lock().parked.is_none() {
            thread::yield_now();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        // The tasks hold the shared state, so they are cancelled outside of the lock.
        let left = (std::mem::take(&mut state.queue), state.decoding.take(), state.parked.take());
        drop(state);
        drop(left);
    }
}

impl Shared {
    /// Locks the state. No code that can panic runs under this lock, so a poisoned lock is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task that decodes the next batch.
    fn decode_next(self: &Arc<Self>, state: &mut State, source: Source) {
        let shared = self.clone();
        state.decoding = Some(self.workers.spawn(move || shared.decode(source)));
    }

    /// Decodes one batch, and puts it into the queue.
    fn decode(self: &Arc<Self>, mut source: Source) {
        let begin = Instant::now();
        let item = source.batches.next();
        let work = Work { thread: thread::current().id(), begin, end: Instant::now() };
        let (slot, is_last) = match item {
            None => (None, true),
            Some(Err(error)) => (Some(Slot::Failed(error)), true),
            Some(Ok((batch, cursor))) => {
                let is_own = source.batches_read % self.place.count == self.place.index;
                source.batches_read += 1;
                let rejected = source.batches.take_rejected();
                (Some(self.begin_plan(Decoded { batch, cursor, rejected, work }, is_own)), false)
            }
        };
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        if slot.is_none() {
            let rejected = source.batches.take_rejected();
            state.ending = Some(Ending { rows: source.batches.rows_read(), rejected });
        }
        state.queue.extend(slot);
        if is_last {
            state.decoding = None;
        } else if state.queue.len() < self.limit {
            self.decode_next(&mut state, source);
        } else {
            (state.decoding, state.parked) = (None, Some(source));
        }
    }

    /// Starts the task that makes the plan of a batch. A batch of another trainer gets an empty
    /// plan.
    fn begin_plan(self: &Arc<Self>, decoded: Decoded, is_own: bool) -> Slot {
        if !is_own {
            return Slot::Ready(Box::new(decoded.with_plan((LookupPlan::default(), None), None)));
        }
        let shared = self.clone();
        Slot::Planning(self.workers.spawn(move || {
            let begin = Instant::now();
            let mut scratch = shared.lock().scratches.pop().unwrap_or_default();
            let plan = LookupPlan::build(&decoded.batch, &shared.schema, &mut scratch);
            shared.lock().scratches.push(scratch);
            let staged = shared.stager.as_ref().and_then(|of| of.stage(&decoded.batch, &plan));
            let end = Instant::now();
            let work = Work { thread: thread::current().id(), begin, end };
            decoded.with_plan((plan, staged), Some(work))
        }))
    }
}

impl Decoded {
    fn with_plan(
        self,
        (plan, staged): (LookupPlan, Option<StagedBatch>),
        planning: Option<Work>,
    ) -> Prepared {
        let Self { batch, cursor, rejected, work } = self;
        Prepared {
            planned: Planned { staged, ..Planned::new(batch, Arc::new(plan), cursor, rejected) },
            times: PreparationTimes { decoding: work, planning },
        }
    }
}
