//! The measurement of the time until the server first answers with a new version. While the
//! benchmark waits for a version, a separate thread sends requests to the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use serde::Serialize;
use zillion_registry::VersionId;

use crate::load::answers::named_version;
use crate::load::target::Target;
use crate::server::Asker;

/// The pause between two requests of this thread. The pause is the resolution of the measurement.
const PAUSE: Duration = Duration::from_millis(5);

/// The times from moves of the pointer to the first answers with the new versions.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Freshness {
    /// The number of moves after which the server answered with the new version.
    seen: usize,
    /// The number of moves whose version the server never answered with, because the next move came
    /// too early.
    overtaken: usize,
    /// The median time from a move to the first answer with its version. If a later move came
    /// before this answer, the time to the first answer with a later version counts.
    median_seconds: f64,
    max_seconds: f64,
}

/// A thread that sends requests to the server, with the results so far.
pub(crate) struct Watch {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// The moves whose versions the server has not answered with yet, in the order of the moves.
    awaited: Vec<(VersionId, Instant)>,
    seconds: Vec<f64>,
    overtaken: usize,
    failures: u64,
}

impl Watch {
    /// Starts a thread that sends `body`, a request of one row, to `target`.
    pub(crate) fn start(target: Target, body: Bytes) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let asker = Asker::new(&format!("http://{}", target.address))?;
        let (states, stopped) = (state.clone(), stop.clone());
        let watch = move || {
            let next = || {
                loop {
                    std::thread::sleep(PAUSE);
                    if stopped.load(Ordering::Relaxed) {
                        return None;
                    }
                    if !lock(&states).awaited.is_empty() {
                        return Some(body.clone());
                    }
                }
            };
            asker.post_each(&target, next, |answer| {
                let version = answer.ok().filter(|(status, _)| *status == 200);
                let version = version.and_then(|(_, answer)| named_version(&answer)?.parse().ok());
                lock(&states).record_answer(version);
            });
        };
        let thread = std::thread::Builder::new().name("zillion-bench-watch".to_owned());
        Ok(Self { state, stop, thread: Some(thread.spawn(watch)?) })
    }

    /// Records that the pointer has been moved to `version` just now.
    pub(crate) fn record_move(&self, version: VersionId) {
        lock(&self.state).awaited.push((version, Instant::now()));
    }

    /// Waits until the server has answered with the versions of all moves. Returns the time from
    /// the last move to the answer with its version, in seconds.
    pub(crate) fn settle(&self, patience: Duration) -> Result<f64> {
        let began = Instant::now();
        loop {
            let state = lock(&self.state);
            match state.awaited.last() {
                None => return Ok(state.seconds.last().copied().unwrap_or_default()),
                Some((version, _)) if began.elapsed() > patience => {
                    bail!("the server does not answer with version {version} after {patience:?}")
                }
                Some(_) => drop(state),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the figures of all moves so far, and the number of requests without an answer.
    pub(crate) fn freshness(&self) -> (Freshness, u64) {
        let state = lock(&self.state);
        let mut seconds = state.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        let freshness = Freshness {
            seen: seconds.len() - state.overtaken,
            overtaken: state.overtaken,
            median_seconds: seconds.get(seconds.len() / 2).copied().unwrap_or_default(),
            max_seconds: seconds.last().copied().unwrap_or_default(),
        };
        (freshness, state.failures)
    }

    /// Stops the thread and waits until it has ended.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(anyhow::anyhow!("the thread that watches the server panicked")),
            _ => Ok(()),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl State {
    fn record_answer(&mut self, version: Option<VersionId>) {
        let Some(version) = version else {
            self.failures += 1;
            return;
        };
        // The latest move to this version counts, because an earlier move to the same version was
        // overtaken.
        let Some(at) = self.awaited.iter().rposition(|(awaited, _)| *awaited == version) else {
            return;
        };
        self.overtaken += at;
        self.seconds.extend(self.awaited.drain(..=at).map(|(_, moved)| round(moved.elapsed())));
    }
}

fn round(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_ends_with_the_first_answer_of_its_version_or_a_later_one() {
        let mut state = State::default();
        for version in [1, 2, 3, 2, 4] {
            state.awaited.push((VersionId(version), Instant::now()));
        }
        state.record_answer(Some(VersionId(9)));
        assert_eq!((state.awaited.len(), state.seconds.len()), (5, 0));
        state.record_answer(Some(VersionId(2)));
        assert_eq!((state.awaited.len(), state.seconds.len(), state.overtaken), (1, 4, 3));
        state.record_answer(None);
        state.record_answer(Some(VersionId(4)));
        assert_eq!((state.awaited.len(), state.overtaken, state.failures), (0, 3, 1));
    }
}
