//! The beats of the network threads, by which a watchdog notices a thread that is stuck.
//!
//! # Concurrency
//! Each thread writes its own time, and any thread reads all of them.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The interval between two beats of a thread.
const INTERVAL: Duration = Duration::from_millis(100);

/// The beats of all network threads.
#[derive(Debug)]
pub struct Beats {
    began: Instant,
    /// The time of the last beat of each thread, in milliseconds after the beginning.
    threads: Mutex<Vec<Weak<AtomicU64>>>,
}

/// The beat of one thread, which ends when the value is dropped.
#[derive(Debug)]
pub(super) struct Beat {
    began: Instant,
    last_ms: Arc<AtomicU64>,
}

impl Default for Beats {
    fn default() -> Self {
        Self { began: Instant::now(), threads: Mutex::default() }
    }
}

impl Beats {
    /// Adds a thread, which beats now.
    pub(super) fn register(&self) -> Beat {
        let beat = Beat { began: self.began, last_ms: Arc::default() };
        beat.record();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(Arc::downgrade(&beat.last_ms));
        beat
    }

    /// Returns the time since the last beat of the thread that beat least recently, or zero if
    /// there is no thread.
    pub fn oldest(&self) -> Duration {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = threads.iter().filter_map(Weak::upgrade);
        let last = threads.map(|last_ms| last_ms.load(Ordering::Relaxed)).min();
        let last = last.map(Duration::from_millis);
        last.map_or(Duration::ZERO, |last| self.began.elapsed().saturating_sub(last))
    }
}

impl Beat {
    fn record(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(now, Ordering::Relaxed);
    }

    /// Beats for as long as the thread runs its tasks.
    pub(super) async fn repeat(&self) -> Infallible {
        let mut interval = tokio::time::interval(INTERVAL);
        loop {
            interval.tick().await;
            self.record();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_thread_is_noticed() {
        let beats = Beats::default();
        assert_eq!(beats.oldest(), Duration::ZERO);
        let stuck = beats.register();
        std::thread::sleep(Duration::from_millis(10));
        let alive = beats.register();
        assert!(beats.oldest() >= Duration::from_millis(9));
        stuck.record();
        assert!(alive.last_ms.load(Ordering::Relaxed) <= stuck.last_ms.load(Ordering::Relaxed));
        // A thread that has ended is no stuck one.
        drop(stuck);
        drop(alive);
        assert_eq!(beats.oldest(), Duration::ZERO);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let beat = beats.register();
        beat.last_ms.store(0, Ordering::Relaxed);
        let twice = async {
            tokio::select! {
                never = beat.repeat() => match never {},
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        };
        runtime.block_on(twice);
        assert!(beat.last_ms.load(Ordering::Relaxed) >= 9);
    }
}
