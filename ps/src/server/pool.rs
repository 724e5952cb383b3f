//! The memory of the frames that have arrived and wait for the tables, of all connections together.
//!
//! A frame takes bytes of the pool as they arrive, and not when its header announces them. So a
//! client that announces much and sends nothing holds nothing.
//!
//! # Invariants
//! * The frames together take at most the limit of the pool and one frame more.
//! * The oldest frame that is arriving can always arrive: it may take bytes above the limit, if no
//!   other frame has done so. So frames that are all half here cannot wait for each other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The bytes of frames that all connections share.
#[derive(Debug)]
pub(super) struct Pool {
    limit: u64,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: u64,
    /// The number of the newest frame.
    newest: u64,
    /// The frames that are arriving, oldest first, each with whether it waits for bytes.
    arriving: BTreeMap<u64, bool>,
    /// The frame that has taken bytes above the limit; `None` if the frames are within it.
    above: Option<u64>,
}

impl Pool {
    pub(super) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default(), freed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes that the frames have taken.
    pub(super) fn taken(&self) -> u64 {
        self.state().taken
    }

    /// Returns whether a frame waits for bytes.
    pub(super) fn is_wanted(&self) -> bool {
        self.state().arriving.values().any(|&waits| waits)
    }

    /// Begins a frame, which has no bytes yet.
    pub(super) fn begin(self: &Arc<Self>) -> Share {
        let mut state = self.state();
        state.newest += 1;
        let number = state.newest;
        state.arriving.insert(number, false);
        drop(state);
        Share { pool: self.clone(), number, bytes: 0 }
    }
}

/// The bytes of one frame. They are given back when the value is dropped.
#[derive(Debug)]
pub(super) struct Share {
    pool: Arc<Pool>,
    number: u64,
    bytes: u64,
}

impl Share {
    /// Takes more bytes if there is room, or if the frame is the oldest one that is arriving.
    /// Returns whether the bytes were taken.
    fn try_take(&mut self, more: u64) -> bool {
        let mut state = self.pool.state();
        let is_within = state.taken + more <= self.pool.limit;
        let is_oldest = state.arriving.keys().next() == Some(&self.number);
        let is_only_one_above = state.above.is_none_or(|above| above == self.number);
        let may_exceed = is_oldest && is_only_one_above;
        if !is_within && !may_exceed {
            state.arriving.insert(self.number, true);
            return false;
        }
        if !is_within {
            state.above = Some(self.number);
        }
        state.arriving.insert(self.number, false);
        state.taken += more;
        self.bytes += more;
        true
    }

    /// Takes more bytes, after waiting for room.
    pub(super) async fn take(&mut self, more: u64) {
        let pool = self.pool.clone();
        loop {
            let freed = pool.freed.notified();
            let mut freed = std::pin::pin!(freed);
            // Bytes that are freed from here on end the wait below.
            freed.as_mut().enable();
            if self.try_take(more) {
                return;
            }
            freed.await;
        }
    }

    /// Returns the number of bytes that the frame has taken.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records that the whole frame has arrived. It keeps its bytes.
    pub(super) fn arrived(self) -> Self {
        let is_awaited = {
            let mut state = self.pool.state();
            state.arriving.remove(&self.number);
            state.arriving.values().any(|&waits| waits)
        };
        if is_awaited {
            self.pool.freed.notify_waiters();
        }
        self
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.taken -= self.bytes;
        state.arriving.remove(&self.number);
        if state.taken <= self.pool.limit {
            state.above = None;
        }
        let is_awaited = state.arriving.values().any(|&waits| waits);
        drop(state);
        if is_awaited {
            self.pool.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_frame_arrives_whatever_others_hold_and_only_one_goes_above_the_limit() {
        let pool = Pool::new(100);
        let (mut first, mut second, mut third) = (pool.begin(), pool.begin(), pool.begin());
        assert!(first.try_take(40) && second.try_take(40) && third.try_take(20));
        assert!(!second.try_take(1) && !third.try_take(1));
        assert!(pool.is_wanted());
        assert!(first.try_take(60) && first.try_take(5));
        assert_eq!(pool.taken(), 165);
        let first = first.arrived();
        // The second frame is now the oldest, but the first one is still above the limit.
        assert!(!second.try_take(1));
        drop(first);
        assert!(second.try_take(1) && second.try_take(60));
        assert!(!third.try_take(1));
        drop(second);
        assert_eq!(pool.taken(), 20);
        assert!(third.try_take(80));
        drop(third);
        assert_eq!((pool.taken(), pool.is_wanted()), (0, false));
    }

    #[test]
    fn a_frame_that_waits_takes_the_bytes_of_one_that_goes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let pool = Pool::new(10);
            let (mut first, mut second) = (pool.begin(), pool.begin());
            first.take(10).await;
            let waiting = tokio::spawn(async move {
                second.take(4).await;
                second
            });
            tokio::task::yield_now().await;
            assert!(pool.is_wanted() && !waiting.is_finished());
            drop(first);
            let second = waiting.await.unwrap();
            assert_eq!(pool.taken(), 4);
            drop(second);
        });
    }
}
