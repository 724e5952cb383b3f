//! Small requests that one network thread has read at about the same time, and that are scored in
//! one pass over the model.
//!
//! A pass over one row takes as long as one over four rows, because all weights are read for it. So
//! a request that was read waits until its thread has done all other work that was ready: other
//! requests of the same turn of the event loop are read meanwhile. The first request that goes on
//! scores all of them. There is no timer: a request that comes alone goes on at once.
//!
//! # Invariants
//! A request gets the same bits as if it had been scored alone. One that fails together with others
//! is scored alone, so that only its own fault is told to its client.
//!
//! # Concurrency
//! Each network thread has a value of its own, so nobody waits for the mutex. It is not held while
//! rows are scored or while a request waits. A request whose client leaves is taken out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zillion_feature::Batch;
use zillion_scorer::{LateCheck, RowScores, Servable};

/// The largest number of rows of a pass, and of a request that is scored with others.
pub(crate) const MOST_ROWS: usize = 64;

/// A version that scores the rows of several requests in one pass.
pub(crate) trait ScoreJoined {
    /// Computes the scores of each request, with the bits of the request alone.
    ///
    /// # Errors
    /// Returns an error if `is_late` returned `true`, or if a request cannot be scored.
    fn score_joined(
        &self,
        batches: &[&Batch],
        is_late: LateCheck<'_>,
    ) -> zillion_scorer::Result<Vec<RowScores>>;
}

impl ScoreJoined for Servable {
    fn score_joined(
        &self,
        batches: &[&Batch],
        is_late: LateCheck<'_>,
    ) -> zillion_scorer::Result<Vec<RowScores>> {
        self.score_joined(batches, Some(is_late))
    }
}

/// The rows of a request, ready to be scored.
#[derive(Debug)]
pub(crate) struct ReadRows<S = Servable> {
    pub(crate) servable: Arc<S>,
    /// The rows, which have no shared column.
    pub(crate) batch: Batch,
    /// The time by which the answer must be there.
    pub(crate) deadline: Instant,
}

/// The outcome of a request in a pass.
#[derive(Debug)]
pub(crate) struct Joined {
    /// The scores of the request. `None` if the work panicked.
    pub(crate) scores: Option<zillion_scorer::Result<RowScores>>,
    /// The request's share of the time of the pass, by its rows.
    pub(crate) took: Duration,
    /// Whether the pass had other requests too.
    pub(crate) has_others: bool,
    /// Whether the request is the first one of its pass, in which the pass is counted.
    pub(crate) is_first: bool,
}

/// The requests of one network thread that wait for their pass.
#[derive(Debug)]
pub(crate) struct Gathering<S = Servable> {
    state: Mutex<State<S>>,
}

#[derive(Debug)]
struct State<S> {
    waiting: Vec<(u64, ReadRows<S>)>,
    done: Vec<(u64, Joined)>,
    next_id: u64,
}

impl<S> Default for Gathering<S> {
    fn default() -> Self {
        let state = State { waiting: Vec::new(), done: Vec::new(), next_id: 0 };
        Self { state: Mutex::new(state) }
    }
}

/// The place of a request, which is taken out when the value is dropped.
struct Place<'a, S> {
    gathering: &'a Gathering<S>,
    id: u64,
}

impl<S> Drop for Place<'_, S> {
    fn drop(&mut self) {
        let mut state = self.gathering.lock();
        let at = state.waiting.iter().position(|(id, _)| *id == self.id);
        let left = at.map(|at| state.waiting.remove(at));
        state.done.retain(|(id, _)| *id != self.id);
        drop(state);
        drop(left);
    }
}

impl<S: ScoreJoined> Gathering<S> {
    /// Scores the rows of a request, together with those of other requests that are ready.
    pub(crate) async fn score(&self, rows: ReadRows<S>) -> Joined {
        let place = self.enter(rows);
        // The task goes on after all tasks that are ready, and after a look at the connections.
        tokio::task::yield_now().await;
        if let Some(joined) = place.take() {
            return joined;
        }
        let waiting = std::mem::take(&mut self.lock().waiting);
        let done = score_all(waiting);
        self.lock().done.extend(done);
        let lost =
            Joined { scores: None, took: Duration::ZERO, has_others: false, is_first: false };
        place.take().unwrap_or(lost)
    }

    fn enter(&self, rows: ReadRows<S>) -> Place<'_, S> {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.push((id, rows));
        Place { gathering: self, id }
    }
}

impl<S> Gathering<S> {
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Place<'_, S> {
    /// Takes the outcome of the request, if its pass is done.
    fn take(&self) -> Option<Joined> {
        let mut state = self.gathering.lock();
        let at = state.done.iter().position(|(id, _)| *id == self.id)?;
        Some(state.done.swap_remove(at).1)
    }
}

/// Scores all requests, those of a version in as few passes as [`MOST_ROWS`] allows.
fn score_all<S: ScoreJoined>(mut waiting: Vec<(u64, ReadRows<S>)>) -> Vec<(u64, Joined)> {
    waiting.sort_by_key(|(id, rows)| (Arc::as_ptr(&rows.servable).addr(), *id));
    let mut done = Vec::with_capacity(waiting.len());
    let now = Instant::now();
    let late = waiting.extract_if(.., |(_, read)| now >= read.deadline);
    done.extend(late.map(|(id, _)| {
        let scores = Some(Err(zillion_scorer::Error::Late));
        (id, Joined { scores, took: Duration::ZERO, has_others: false, is_first: true })
    }));
    for of_version in waiting.chunk_by(|(_, a), (_, b)| Arc::ptr_eq(&a.servable, &b.servable)) {
        let mut rest = of_version;
        while !rest.is_empty() {
            let (pass, later) = rest.split_at(count_of_pass(rest));
            rest = later;
            score_pass(pass, &mut done);
        }
    }
    done
}

/// Returns the number of the first requests that fit into one pass, which is at least 1.
fn count_of_pass<S>(waiting: &[(u64, ReadRows<S>)]) -> usize {
    let mut rows = 0;
    let fits = waiting.iter().take_while(|(_, read)| {
        rows += read.batch.rows;
        rows <= MOST_ROWS
    });
    fits.count().max(1)
}

/// Scores requests of one version in one pass. If that fails, each of them is scored alone.
fn score_pass<S: ScoreJoined>(pass: &[(u64, ReadRows<S>)], done: &mut Vec<(u64, Joined)>) {
    let began = Instant::now();
    let batches: Vec<&Batch> = pass.iter().map(|(_, read)| &read.batch).collect();
    let last = pass.iter().map(|(_, read)| read.deadline).max();
    let is_late = || last.is_none_or(|last| Instant::now() >= last);
    let Some((_, first)) = pass.first() else { return };
    let scores = score(&*first.servable, &batches, &is_late);
    let Some(Ok(scores)) = scores else {
        match pass {
            [(id, _)] => {
                let scores = scores.map(|scores| scores.map(|_| RowScores::default()));
                let took = began.elapsed();
                done.push((*id, Joined { scores, took, has_others: false, is_first: true }));
            }
            _ => pass.chunks(1).for_each(|alone| score_pass(alone, done)),
        }
        return;
    };
    let rows: usize = batches.iter().map(|batch| batch.rows).sum();
    let took = began.elapsed();
    for (at, ((id, read), scores)) in pass.iter().zip(scores).enumerate() {
        let share = took.mul_f64(read.batch.rows as f64 / rows.max(1) as f64);
        let (has_others, is_first) = (pass.len() > 1, at == 0);
        done.push((*id, Joined { scores: Some(Ok(scores)), took: share, has_others, is_first }));
    }
}

/// Scores requests of a version, and returns `None` if the work panicked: the panic of one request
/// must not end the thread of all others.
fn score<S: ScoreJoined>(
    servable: &S,
    batches: &[&Batch],
    is_late: LateCheck<'_>,
) -> Option<zillion_scorer::Result<Vec<RowScores>>> {
    catch_unwind(AssertUnwindSafe(|| servable.score_joined(batches, is_late))).ok()
}

#[cfg(test)]
mod tests;
