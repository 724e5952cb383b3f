//! The pool of the buffers that requests use for scoring. Requests share the buffers, and the
//! memory of a burst of requests is released soon after the burst.
//!
//! The *size* of a request is the number of its rows and ids, and its need for memory is
//! proportional to its size. Buffers grow to the largest request that they have served. The pool
//! keeps the size of the largest recent request, as a maximum that halves every [`HALF_LIFE`].
//! Buffers are released if they have served a request of more than [`KEPT_FACTOR`] times this size.
//! Buffers that were not used for [`IDLE_TIME`] are dropped. One set of buffers is always kept,
//! because planning the program of a model takes longer than scoring a small request.
//!
//! # Concurrency
//! One mutex guards the list of buffers. A request takes it two or three times, and never once per
//! key. Memory is freed after the mutex has been released.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zillion_feature::{Batch, PlanScratch};

use crate::scorer::Scorer;

/// The time in which the recorded size of the largest recent request halves.
const HALF_LIFE: Duration = Duration::from_secs(3);
/// The time without use after which buffers are dropped.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// The ratio of the largest size of buffers that are kept to the size of the largest recent
/// request.
const KEPT_FACTOR: usize = 4;
/// The smallest value of the size of the largest recent request. Buffers of this size are so small
/// that smaller ones would save no memory.
const SMALL: usize = 4096;

/// The buffers that one thread needs to score.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) scorer: Scorer,
    pub(crate) plan: PlanScratch,
    /// The rows of requests that are scored together.
    pub(crate) joined: Batch,
    /// The size of the largest request since the buffers were last released.
    largest: usize,
}

/// The pool of the buffers that no thread is using at the moment.
#[derive(Debug, Default)]
pub(crate) struct ScratchPool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The buffers, each with the time of its last use. The buffers that were used most recently
    /// come last.
    idle: Vec<(Scratch, Instant)>,
    recent: Recent,
}

/// The size of the largest recent request: a maximum that halves every [`HALF_LIFE`].
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The size, and the time at which it was computed. `None` before the first request.
    largest: Option<(f64, Instant)>,
}

/// Returns the size of a request: the sum of the numbers of its rows and of its ids. An id that all
/// rows share counts once for each row, because some programs copy it to all rows.
pub(crate) fn request_size(batch: &Batch) -> usize {
    let ids = batch.sparse.iter().enumerate().map(|(at, column)| {
        let copies = if batch.shared.has_sparse(at) { batch.rows } else { 1 };
        column.keys.len().saturating_mul(copies)
    });
    ids.fold(batch.rows, usize::saturating_add)
}

impl Scratch {
    pub(crate) fn new(scorer: Scorer) -> Self {
        Self { scorer, plan: PlanScratch::default(), joined: Batch::default(), largest: 0 }
    }

    fn release(&mut self) {
        self.scorer.release();
        self.plan = PlanScratch::default();
        self.joined = Batch::default();
        self.largest = 0;
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.scorer.buffer_bytes() + self.plan.bytes()
    }
}

impl ScratchPool {
    /// Takes the buffers that were used most recently, because they are most likely in the
    /// processor's caches. Returns `None` if the pool is empty.
    pub(crate) fn take(&self) -> Option<Scratch> {
        self.lock().idle.pop().map(|(scratch, _)| scratch)
    }

    /// Puts the buffers `scratch` back after a request of size `size`, and releases the memory that
    /// recent requests did not need.
    pub(crate) fn put(&self, mut scratch: Scratch, size: usize, now: Instant) {
        scratch.largest = scratch.largest.max(size);
        let mut state = self.lock();
        state.recent.add(size, now);
        let limit = state.recent.limit(now);
        if scratch.largest > limit {
            drop(state);
            scratch.release();
            state = self.lock();
        }
        state.idle.push((scratch, now));
        let surplus = state.take_surplus(limit, now);
        drop(state);
        drop(surplus);
    }

    /// Releases the memory that recent requests did not need. A server calls this function while it
    /// gets no requests.
    pub(crate) fn release_idle(&self, now: Instant) {
        let mut state = self.lock();
        let limit = state.recent.limit(now);
        let surplus = state.take_surplus(limit, now);
        let last = state.idle.pop_if(|(scratch, _)| scratch.largest > limit);
        drop(state);
        drop(surplus);
        if let Some((mut scratch, used)) = last {
            scratch.release();
            // Buffers that were returned in the meantime have a later time of use.
            self.lock().idle.insert(0, (scratch, used));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Removes from the list the buffers that are too large or were not used for [`IDLE_TIME`], and
    /// returns them. The buffers that were used most recently always stay in the list.
    fn take_surplus(&mut self, limit: usize, now: Instant) -> Vec<(Scratch, Instant)> {
        let Some(others) = self.idle.len().checked_sub(1) else { return Vec::new() };
        let is_surplus = |(scratch, used): &mut (Scratch, Instant)| {
            scratch.largest > limit || now.saturating_duration_since(*used) > IDLE_TIME
        };
        self.idle.extract_if(..others, is_surplus).collect()
    }
}

impl Recent {
    /// Returns the size of the largest recent request at the time `now`, or 0 before the first
    /// request.
    fn decay(&self, now: Instant) -> f64 {
        let Some((size, then)) = self.largest else { return 0.0 };
        let passed = now.saturating_duration_since(then);
        size * 0.5f64.powf(passed.div_duration_f64(HALF_LIFE))
    }

    /// Records a request of this size.
    pub(crate) fn add(&mut self, size: usize, now: Instant) {
        self.largest = Some((self.decay(now).max(size as f64), now));
    }

    /// Returns the size above which buffers are released.
    pub(crate) fn limit(&self, now: Instant) -> usize {
        KEPT_FACTOR * SMALL.max(self.decay(now) as usize)
    }
}

#[cfg(test)]
mod tests;
