//! The buffers of scoring: requests reuse them, and a burst does not keep its memory.
//!
//! A request needs memory in proportion to its *size*, the number of its rows and values. Buffers
//! grow to the largest request that they have served. So the pool remembers the size of the largest
//! recent request, as a maximum that halves every [`HALF_LIFE`]. Buffers that have served a request
//! of more than [`KEPT_FACTOR`] times this size are released, and buffers that no thread has needed
//! for [`IDLE_TIME`] are dropped. One set of buffers always stays, because planning the program of
//! a model takes longer than a small request.
//!
//! # Concurrency
//! One mutex guards the list. A request takes it twice, and never for each key. Memory is given
//! back after the lock was released.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zillion_feature::{Batch, PlanScratch};

use crate::scorer::Scorer;

/// The time in which the size of the largest recent request halves.
const HALF_LIFE: Duration = Duration::from_secs(3);
/// The time after which buffers that no thread has needed are dropped.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// The factor between the size of the largest recent request and the largest size of buffers.
const KEPT_FACTOR: usize = 4;
/// The size up to which all requests count alike, because their buffers are small.
const SMALL: usize = 4096;

/// The buffers that one thread needs to score.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) scorer: Scorer,
    pub(crate) plan: PlanScratch,
    /// The size of the largest request since the buffers were empty.
    largest: usize,
}

/// The buffers that no thread uses now.
#[derive(Debug, Default)]
pub(crate) struct ScratchPool {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The buffers with the time of their last use, in the order of these times.
    idle: Vec<(Scratch, Instant)>,
    recent: Recent,
}

/// The size of the largest recent request: a maximum that halves every [`HALF_LIFE`].
#[derive(Debug, Default)]
struct Recent {
    /// The size, and the time for which it is right.
    largest: Option<(f64, Instant)>,
}

/// Returns the size of a request: the number of its rows and of its ids.
pub(crate) fn request_size(batch: &Batch) -> usize {
    batch.rows + batch.sparse.iter().map(|column| column.keys.len()).sum::<usize>()
}

impl Scratch {
    pub(crate) fn new(scorer: Scorer) -> Self {
        Self { scorer, plan: PlanScratch::default(), largest: 0 }
    }

    fn release(&mut self) {
        self.scorer.release();
        self.plan = PlanScratch::default();
        self.largest = 0;
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.scorer.buffer_bytes() + self.plan.bytes()
    }
}

impl ScratchPool {
    /// Takes the buffers that were used last, which are most likely in the caches.
    pub(crate) fn take(&self) -> Option<Scratch> {
        self.lock().idle.pop().map(|(scratch, _)| scratch)
    }

    /// Puts buffers back after a request of this size, and gives back the memory that recent
    /// requests did not need.
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

    /// Gives back the memory that recent requests did not need, for a server that gets no requests
    /// any more.
    pub(crate) fn release_idle(&self, now: Instant) {
        let mut state = self.lock();
        let limit = state.recent.limit(now);
        let surplus = state.take_surplus(limit, now);
        let last = state.idle.pop_if(|(scratch, _)| scratch.largest > limit);
        drop(state);
        drop(surplus);
        if let Some((mut scratch, used)) = last {
            scratch.release();
            // Buffers that came meanwhile were used later.
            self.lock().idle.insert(0, (scratch, used));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the buffers that are too large or were not used for some time, except for the last
    /// ones.
    fn take_surplus(&mut self, limit: usize, now: Instant) -> Vec<(Scratch, Instant)> {
        let Some(others) = self.idle.len().checked_sub(1) else { return Vec::new() };
        let is_surplus = |(scratch, used): &mut (Scratch, Instant)| {
            scratch.largest > limit || now.saturating_duration_since(*used) > IDLE_TIME
        };
        self.idle.extract_if(..others, is_surplus).collect()
    }
}

impl Recent {
    /// Returns the size at a later time.
    fn decay(&self, now: Instant) -> f64 {
        let Some((size, then)) = self.largest else { return 0.0 };
        let passed = now.saturating_duration_since(then);
        size * 0.5f64.powf(passed.div_duration_f64(HALF_LIFE))
    }

    fn add(&mut self, size: usize, now: Instant) {
        self.largest = Some((self.decay(now).max(size as f64), now));
    }

    /// Returns the largest size that buffers may have.
    fn limit(&self, now: Instant) -> usize {
        KEPT_FACTOR * SMALL.max(self.decay(now) as usize)
    }
}

#[cfg(test)]
mod tests;
